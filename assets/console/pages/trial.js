// Tries the callback of a topic: dq makes one call now, with the entered body. This call belongs to no job, so nothing
// is stored or tried again.

import { get, path, request } from '../api.js';
import { h } from '../dom.js';
import { dropDraft, keepDraft, keptDraft } from '../drafts.js';
import { micros } from '../format.js';
import { t } from '../i18n.js';
import { flaw, pretty } from '../json.js';
import { badge, tag } from '../parts/badge.js';
import { actionButton, button } from '../parts/button.js';
import { card, facts } from '../parts/card.js';
import { field } from '../parts/field.js';
import { empty, note, problemNote } from '../parts/problem.js';
import { codeBlock } from '../parts/snippet.js';
import { topicHead } from '../parts/topic_head.js';
import { detailText } from '../reason.js';
import { redraw } from '../redraw.js';

const FIRST = '{\n  "test": true\n}';

const lines = (headers) => headers.map(([name, value]) => `${name}: ${value}`).sort().join('\n');

/** The request exactly as it was sent, except its secrets. */
function sentView({ request: line, headers, body }) {
  return line !== '' && card({ title: t('trial.sent'), key: 'sent' },
    codeBlock(`${line}\n${lines(headers)}${body === '' ? '' : `\n\n${body}`}`, t('trial.sent')));
}

function cameView(came) {
  const { outcome, status, duration_ms: ms, answer, error } = came;
  return card({ title: t('trial.answer'), key: 'came', tone: outcome === 'accepted' ? 'good' : 'warn' },
    h('p', { class: 'line', key: 'judged' }, badge(outcome), status !== null && tag(status < 300 ? 'good' : 'bad', `HTTP ${status}`), h('span', { class: 'soft' }, t('attempt.took', { span: micros(ms * 1000) }))),
    h('p', { key: 'means' }, t(`trial.${outcome}`)),
    error && note('warn', h('p', null, detailText(error))),
    h('h3', { class: 'sub', key: 'sub' }, t('trial.body')), answer ? codeBlock(answer, t('trial.body')) : h('p', { class: 'soft', key: 'none' }, t('trial.no_body')),
    came.answer_headers.length > 0 && h('details', { class: 'more', key: 'headers' }, h('summary', null, t('trial.headers')), codeBlock(lines(came.answer_headers), t('trial.headers'))));
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function trial({ params, resource, onLeave }) {
  const name = params.topic;
  const set = resource((signal) => get(path('topics', name), signal), 20000);
  const state = { text: keptDraft()?.text ?? FIRST, busy: false, came: null, problem: null };
  let left = false;
  onLeave(() => { left = true; });

  function enter(text) {
    state.text = text;
    keepDraft({ text });
    redraw();
  }

  async function call() {
    dropDraft();
    Object.assign(state, { busy: true, problem: null });
    redraw();
    try {
      state.came = (await request('POST', path('topics', name, 'test'), `{"body": ${state.text}}`)).json;
    } catch (problem) {
      Object.assign(state, { problem, came: null });
    }
    state.busy = false;
    if (!left) redraw();
  }

  function request_(topic) {
    const why = flaw(state.text);
    return card({ title: t('trial.request'), key: 'request' },
      facts([[t('field.callback'), h('span', { class: 'mono break' }, `${topic.method} ${topic.callback}`)]]),
      field({ name: 'body', label: t('trial.send_body'), kind: 'area', rows: 10, mono: true, value: state.text, problem: why && t('json.flaw', { why }), onchange: enter }),
      h('div', { class: 'line', key: 'do' },
        actionButton({ label: state.busy ? t('trial.calling') : t('trial.call'), icon: 'send', kind: 'primary', busy: state.busy, disabled: why !== null, onclick: call }),
        button({ label: t('trial.pretty'), kind: 'quiet', disabled: why !== null, onclick: () => { state.text = pretty(state.text); redraw(); } })));
  }

  return {
    title: () => `${name} · ${t('tab.test')}`,
    view: () => [
      topicHead({ name, set: set.data, missing: set.problem?.status === 404, tab: 'test', reload: set.reload }),
      problemNote(set.problem, set.reload),
      set.data && h('div', { class: 'grid grid--2', key: 'trial' }, request_(set.data),
        h('div', { class: 'stack', key: 'right' }, problemNote(state.problem), state.came ? [cameView(state.came), sentView(state.came.sent)] : !state.problem && card({ title: t('trial.answer'), key: 'came' }, empty({ title: t('trial.none'), text: t('trial.about'), icon: 'send', calm: true }))))],
  };
}
