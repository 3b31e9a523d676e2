// One job: its body as it is stored, its due time, the results of its attempts, and what can be done with it.

import { Problem, change, get, path, post, remove, request } from '../api.js';
import { h } from '../dom.js';
import { bytes, count, now, priorityText, span } from '../format.js';
import { t } from '../i18n.js';
import { byteLength, flaw, member, pretty, readable } from '../json.js';
import { attemptLines, point } from '../parts/attempts.js';
import { badge } from '../parts/badge.js';
import { actionButton, button } from '../parts/button.js';
import { card, facts, pageHead } from '../parts/card.js';
import { confirm } from '../parts/confirm.js';
import { openDialog } from '../parts/dialog.js';
import { endedBadge, endedDetail, forgetButton } from '../parts/ended.js';
import { field, segments } from '../parts/field.js';
import { empty, problemNote, skeleton } from '../parts/problem.js';
import { topicHref } from '../parts/search.js';
import { codeBlock } from '../parts/snippet.js';
import { linkFacts } from '../parts/links.js';
import { tagLinks } from '../parts/tags.js';
import { when } from '../parts/time.js';
import { say } from '../parts/toast.js';
import { detailText, waitingText } from '../reason.js';
import { redraw } from '../redraw.js';
import { mayChange } from '../session.js';

/** The job's own lease time, in the form in which a user types it. */
const ttrText = (job) => (job.ttr_ms === undefined ? '' : job.ttr_ms % 1000 === 0 ? `${job.ttr_ms / 1000}s` : `${job.ttr_ms}ms`);

function editJob(at, job, body, reload) {
  const [first, firstTtr] = [readable(pretty(body)), ttrText(job)];
  const dialog = openDialog({
    title: t('job.edit'), wide: true,
    // The body is sent exactly as it was typed, because a browser would round some numbers. What was not changed here
    // is not sent. A client may have replaced the job meanwhile, and its new version must stay.
    onsubmit: (it) => flaw(it.state.text) === null && it.run(async () => {
      const ttr = it.state.ttr.trim();
      const changes = [
        it.state.text !== first && `"body": ${it.state.text}`,
        ttr !== firstTtr && `"ttr": ${JSON.stringify(ttr === '' ? null : ttr)}`].filter(Boolean);
      if (changes.length === 0) return;
      const now = await request('GET', at);
      if (now.json.added_ms !== job.added_ms || (member(now.text, 'body') ?? 'null') !== body) {
        throw new Problem(0, { code: 'replaced', detail: t('job.edit.replaced') });
      }
      await change(at, `{${changes.join(', ')}}`);
      say(t('job.edited'));
      reload();
    }),
    view: (it) => [
      field({ name: 'body', label: t('job.body'), kind: 'area', rows: 16, mono: true, wide: true, value: it.state.text, problem: flaw(it.state.text) && t('json.flaw', { why: flaw(it.state.text) }), onchange: (text) => { it.state.text = text; redraw(); }, help: t('job.edit.help') }),
      field({ name: 'job-ttr', label: t('job.ttr'), value: it.state.ttr, mono: true, problem: it.problem?.field === 'ttr' ? it.problem.detail : null, help: t('job.ttr.help'), onchange: (ttr) => { it.state.ttr = ttr; redraw(); } })],
    actions: (it) => [button({ label: t('cancel'), onclick: it.close }), button({ label: t('save'), type: 'submit', kind: 'primary', busy: it.busy, disabled: flaw(it.state.text) !== null })],
  });
  Object.assign(dialog.state, { text: first, ttr: firstTtr });
  redraw();
}

/** A moment in the form of a `datetime-local` field. */
function localInput(at_ms) {
  return new Date(at_ms - new Date(at_ms).getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}

function reschedule(at, job, reload) {
  const dialog = openDialog({
    title: t('job.reschedule'),
    onsubmit: (it) => it.run(async () => {
      await change(at, it.state.way === 'in' ? { delay: it.state.delay.trim() } : { run_at: new Date(it.state.at).getTime() });
      say(t('job.rescheduled'));
      reload();
    }),
    view: (it) => [
      segments({ name: 'way', label: t('job.when'), value: it.state.way, options: [['in', t('job.in')], ['at', t('job.at')]], onchange: (way) => { it.state.way = way; redraw(); } }),
      it.state.way === 'in'
        ? field({ name: 'delay', label: t('job.in.label'), value: it.state.delay, mono: true, autofocus: true, help: t('span.help'), onchange: (delay) => { it.state.delay = delay; redraw(); } })
        : field({ name: 'at', label: t('job.at.label'), kind: 'datetime-local', value: it.state.at, help: t('zone.help', { zone: Intl.DateTimeFormat().resolvedOptions().timeZone }), onchange: (moment) => { it.state.at = moment; redraw(); } })],
    actions: (it) => [button({ label: t('cancel'), onclick: it.close }), button({ label: t('job.reschedule'), type: 'submit', kind: 'primary', busy: it.busy, disabled: it.state.way === 'in' ? it.state.delay.trim() === '' : it.state.at === '' })],
  });
  Object.assign(dialog.state, { way: 'in', delay: '10m', at: localInput(job.due_ms) });
  redraw();
}

/** Asks the user before a job is delivered. */
function asked(name, job, path_, body, said, reload) {
  confirm({
    title: t(`${name}.title`), action: t(name), danger: false, text: h('p', null, t(`${name}.text`, { id: job.id, topic: job.topic })),
    act: async () => {
      await post(path_, body);
      say(said);
      reload();
    },
  });
}

function deletion(at, job) {
  const isDead = job.state === 'dead';
  confirm({
    title: t('job.delete.title'), action: t('job.delete'),
    text: [h('p', { key: 'what' }, t('job.delete.text', { id: job.id, topic: job.topic })), job.state === 'leased' && h('p', { key: 'leased' }, t('job.delete.leased'))],
    counted: (n) => t('confirm.jobs', { n: count(n) }),
    countJobs: async () => (isDead ? (await post(path('topics', job.topic, 'dead', 'purge'), { ids: [job.id], dry_run: true })).matched : 1),
    act: async () => {
      if (isDead) await post(path('topics', job.topic, 'dead', 'purge'), { ids: [job.id] });
      else await remove(at);
      say(t('job.deleted'));
      location.hash = isDead ? topicHref(job.topic, 'dead') : `${topicHref(job.topic, 'jobs')}?state=${job.state}`;
    },
  });
}

function actions(at, job, body, reload) {
  const busy = job.state === 'leased';
  const why = busy ? t('job.is_leased') : undefined;
  const redriving = () => asked('job.redrive', job, path('topics', job.topic, 'dead', 'redrive'), { ids: [job.id] }, t('job.redriven'), reload);
  if (job.state === 'dead') return [actionButton({ key: 'redrive', label: t('job.redrive'), icon: 'redrive', kind: 'primary', onclick: redriving }), actionButton({ key: 'delete', label: t('job.delete'), icon: 'trash', onclick: () => deletion(at, job) })];
  return [
    job.state === 'delayed' && actionButton({ key: 'run', label: t('job.run'), icon: 'play', kind: 'primary', onclick: () => asked('job.run', job, `${at}/run`, undefined, t('job.runs'), reload) }),
    actionButton({ key: 'when', label: t('job.reschedule'), icon: 'clock', disabled: busy, title: why, onclick: () => reschedule(at, job, reload) }),
    actionButton({ key: 'edit', label: t('job.edit'), icon: 'edit', disabled: busy, title: why, onclick: () => editJob(at, job, body, reload) }),
    actionButton({ key: 'delete', label: t('job.delete'), icon: 'trash', onclick: () => deletion(at, job) })];
}

function coming(job) {
  if (job.state === 'dead') return point('end', 'end', t('job.died'), when(job.until_ms));
  if (job.state === 'leased') return point('now', 'now', t('job.delivering'), h('span', { class: 'soft' }, t('job.lease_until'), ' '), when(job.until_ms));
  return point('next', 'next', t('job.next', { n: job.attempts + 1 }), job.state === 'ready' ? t('job.next.ready') : when(job.due_ms));
}

function attempts(job) {
  const log = job.log ?? [];
  const missing = job.attempts - log.length;
  return card({ title: t('job.attempts'), key: 'attempts', help: missing > 0 && log.length > 0 ? t('job.attempts.kept', { n: log.length, all: count(job.attempts) }) : undefined },
    h('ol', { class: 'attempts' }, attemptLines(log), coming(job)));
}

function detail(job, { shown, size }) {
  const headers = Object.entries(job.headers ?? {}).map(([name, value]) => `${name}: ${value}`).join('\n');
  return h('div', { class: 'grid grid--job', key: 'detail' },
    h('div', { class: 'stack', key: 'left' },
      card({ title: t('job.body'), key: 'body', help: bytes(size) }, codeBlock(shown, t('job.body'))),
      headers && card({ title: t('job.headers'), key: 'headers' }, codeBlock(headers, t('job.headers')))),
    h('div', { class: 'stack', key: 'right' },
      card({ title: t('job.facts'), key: 'facts' }, facts([
        [t('state'), badge(job.state)],
        job.waiting && [t('job.waits'), [job.waiting, ...job.waiting.also ?? []].map((why) => h('p', { key: why.code }, waitingText(why)))],
        [t('job.due'), when(job.due_ms)],
        job.state === 'dead' && [t('job.died'), when(job.until_ms)],
        job.state === 'leased' && [t('job.until'), when(job.until_ms)],
        job.consumer && [t('job.held_by'), [job.consumer.name, job.consumer.address].filter(Boolean).join(' · ')],
        job.consumer && [t('job.since'), when(job.consumer.since_ms)],
        job.expires_ms !== undefined && [t('job.expires'), when(job.expires_ms)],
        job.ttr_ms !== undefined && [t('job.ttr'), span(job.ttr_ms)],
        job.path && [t('job.path'), job.path],
        job.url && [t('job.url'), job.url],
        job.tags && [t('job.tags'), tagLinks(job.tags)],
        ...linkFacts(job),
        [t('job.added'), when(job.added_ms)],
        [t('job.priority'), priorityText(job.priority)],
        [t('job.attempts'), job.max_attempts ? t('job.attempts.of', { n: count(job.attempts), most: count(job.max_attempts) }) : count(job.attempts)],
        [t('job.waited'), job.state === 'ready' ? span(Math.max(0, now() - job.due_ms)) : null],
      ].filter(Boolean))),
      attempts(job)));
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function jobPage({ params, resource }) {
  const { topic, id } = params;
  const at = path('topics', topic, 'jobs', id);
  const records = `${at}/records`;
  const it = resource(async (signal) => {
    let answer;
    try {
      answer = await request('GET', at, undefined, { signal });
    } catch (problem) {
      // The job may have ended.
      const ended = problem.status === 404 ? (await get(records, signal)).records : [];
      if (ended.length === 0) throw problem;
      return { ended };
    }
    const { json, text } = answer;
    // These values are made here and not at each redraw, because a body may have a megabyte.
    const body = member(text, 'body') ?? 'null';
    return { job: json, body, shown: readable(pretty(body)), size: byteLength(body) };
  }, 3000);
  const head = (more) => pageHead({ title: id, mono: true, back: { href: topicHref(topic), label: topic }, ...more });
  return {
    title: () => `${id} · ${topic}`,
    view: () => {
      if (it.problem?.status === 404) return [head({}), empty({ title: t(it.data ? 'job.gone' : 'job.unknown'), text: t('job.unknown.text') })];
      if (!it.data) return [head({}), it.problem ? problemNote(it.problem, it.reload) : skeleton(6)];
      const { job, body, ended } = it.data;
      if (ended) return [head({ badges: endedBadge(ended[0].outcome), actions: forgetButton(records, ended[0], it.reload) }), problemNote(it.problem, it.reload), endedDetail(ended)];
      return [
        head({ badges: badge(job.state), actions: mayChange() ? actions(at, job, body, it.reload) : undefined }),
        problemNote(it.problem, it.reload), detail(job, it.data)];
    },
  };
}
