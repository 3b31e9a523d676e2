// Tokens: who may use the API, and for what. A new token is shown once, and the console does not keep it.

import { get, path, post, remove } from '../api.js';
import { h } from '../dom.js';
import { now } from '../format.js';
import { t } from '../i18n.js';
import { live } from '../live.js';
import { tag } from '../parts/badge.js';
import { actionButton, button } from '../parts/button.js';
import { card, pageHead } from '../parts/card.js';
import { confirm } from '../parts/confirm.js';
import { openDialog } from '../parts/dialog.js';
import { checkbox, field } from '../parts/field.js';
import { empty, loaded, note } from '../parts/problem.js';
import { snippet } from '../parts/snippet.js';
import { table } from '../parts/table.js';
import { ago, at } from '../parts/time.js';
import { say } from '../parts/toast.js';
import { redraw } from '../redraw.js';

/** The kinds of scopes. Those in `OF_TOPICS` are for given topics. `read_topics` means `read:<topic>`. */
const OF_TOPICS = ['produce', 'consume', 'manage', 'read_topics'];
const KINDS = [...OF_TOPICS, 'read', 'metrics', 'admin'];

function scopesOf(state) {
  const topics = state.topics.split(/[,\s]+/).filter(Boolean);
  const of = (kind) => (topics.length === 0 ? ['*'] : topics).map((topic) => `${kind.replace('_topics', '')}:${topic}`);
  return KINDS.filter((kind) => state[kind]).flatMap((kind) => (OF_TOPICS.includes(kind) ? of(kind) : [kind]));
}

function showSecret(token) {
  openDialog({
    title: t('token.made', { name: token.name }), wide: true,
    view: () => [note('warn', h('p', null, t('token.once'))), snippet({ label: t('token'), text: token.token }), snippet({ label: 'curl', text: `curl -H 'Authorization: Bearer ${token.token}' ${location.origin}/v1/topics` })],
    actions: (it) => button({ label: t('token.kept'), kind: 'primary', onclick: it.close }),
  });
}

function make(reload) {
  const fieldProblem = (it, name) => (it.problem?.field === name ? it.problem.detail : null);
  const dialog = openDialog({
    title: t('token.new'),
    onsubmit: (it) => it.run(async () => {
      const wanted = { name: it.state.name.trim(), scopes: scopesOf(it.state) };
      if (it.state.expires) wanted.expires = it.state.expires;
      if (it.state.add_rate.trim()) wanted.add_rate = it.state.add_rate.trim();
      const token = await post('/v1/tokens', wanted);
      reload();
      showSecret(token);
    }),
    view: (it) => {
      const set = (name) => (value) => { it.state[name] = value; redraw(); };
      return [
        field({ name: 'token-name', label: t('token.name'), value: it.state.name, mono: true, required: true, autofocus: true, problem: fieldProblem(it, 'name'), help: t('token.name.help'), onchange: set('name') }),
        h('fieldset', { class: 'fieldset', key: 'scopes' }, h('legend', { class: 'field-label' }, t('token.scopes')),
          KINDS.map((kind) => checkbox({ name: kind, label: h('span', null, h('b', null, t(`scope.${kind}`)), ' ', h('span', { class: 'soft' }, t(`scope.${kind}.help`))), checked: Boolean(it.state[kind]), onchange: set(kind) }))),
        OF_TOPICS.some((kind) => it.state[kind]) && field({ name: 'topics', label: t('token.topics'), value: it.state.topics, mono: true, placeholder: '*', problem: fieldProblem(it, 'scopes'), help: [t('token.topics.help'), ' ', [...live.topics.keys()].slice(0, 6).join(', ')], onchange: set('topics') }),
        field({ name: 'expires', label: t('token.expires'), kind: 'select', value: it.state.expires, options: [['', t('token.never')], ['30d', t('token.30d')], ['90d', t('token.90d')], ['365d', t('token.365d')]], onchange: set('expires') }),
        it.state.produce && field({ name: 'add_rate', label: t('field.add_rate'), value: it.state.add_rate, mono: true, placeholder: '100/s', problem: fieldProblem(it, 'add_rate'), help: t('field.add_rate.help'), onchange: set('add_rate') })];
    },
    actions: (it) => [button({ label: t('cancel'), onclick: it.close }), button({ label: t('token.make'), type: 'submit', kind: 'primary', busy: it.busy, disabled: it.state.name.trim() === '' || scopesOf(it.state).length === 0 })],
  });
  Object.assign(dialog.state, { name: '', produce: true, topics: '', expires: '', add_rate: '' });
  redraw();
}

function revoke(token, reload) {
  confirm({
    title: t('token.revoke.title', { name: token.name }), action: t('token.revoke'), text: h('p', null, t('token.revoke.text')),
    act: async () => {
      await remove(path('tokens', token.name));
      say(t('token.revoked', { name: token.name }));
      reload();
    },
  });
}

function list(tokens, reload) {
  const isOver = (token) => token.expires_ms !== null && token.expires_ms < now();
  return table({
    label: t('nav.tokens'), rows: tokens, rowKey: (token) => token.name,
    columns: [
      { key: 'name', label: t('token.name'), main: true, view: (token) => h('span', { class: 'mono' }, token.name) },
      { key: 'scopes', label: t('token.scopes'), view: (token) => h('span', { class: 'badges' }, token.scopes.map((scope) => h('span', { key: scope }, tag(scope === 'admin' ? 'ready' : 'plain', scope)))) },
      { key: 'add_rate', label: t('field.add_rate'), view: (token) => (token.add_rate ? h('span', { class: 'mono' }, token.add_rate) : h('span', { class: 'soft' }, '–')) },
      { key: 'created', label: t('token.created'), view: (token) => h('span', { class: 'two-lines' }, at(token.created_ms), token.creator && h('span', { class: 'soft' }, token.creator)) },
      { key: 'expires', label: t('token.expires'), view: (token) => (token.expires_ms === null ? h('span', { class: 'soft' }, t('token.never')) : isOver(token) ? tag('bad', t('token.over')) : ago(token.expires_ms)) },
      { key: 'revoke', label: t('actions'), hidden: true, right: true, view: (token) => actionButton({ label: t('token.revoke'), small: true, onclick: () => revoke(token, reload) }) },
    ],
  });
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function tokens({ resource }) {
  const it = resource((signal) => get('/v1/tokens', signal), 30000);
  const add = () => actionButton({ key: 'add', label: t('token.new'), icon: 'plus', kind: 'primary', onclick: () => make(it.reload) });
  return {
    title: () => t('nav.tokens'),
    view: () => [
      pageHead({ title: t('nav.tokens'), about: t('tokens.about'), actions: it.data?.tokens.length > 0 && add() }),
      loaded(it, (data) => (data.tokens.length === 0 ? empty({ title: t('tokens.none'), text: t('tokens.none.text'), icon: 'tokens' }, add()) : card({ key: 'list', flush: true }, list(data.tokens, it.reload))))],
  };
}
