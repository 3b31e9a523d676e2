// The jobs of a topic in one state, a page at a time. Each job has its own page, and actions on it are there.

import { get, path, query } from '../api.js';
import { h } from '../dom.js';
import { count, priorityText } from '../format.js';
import { t } from '../i18n.js';
import { live } from '../live.js';
import { button, linkButton } from '../parts/button.js';
import { card } from '../parts/card.js';
import { segments } from '../parts/field.js';
import { firstJob } from '../parts/first_job.js';
import { empty, loaded, note } from '../parts/problem.js';
import { jobHref, topicHref } from '../parts/search.js';
import { pager, table } from '../parts/table.js';
import { tagColumn } from '../parts/tags.js';
import { ago, at } from '../parts/time.js';
import { merged, topicHead } from '../parts/topic_head.js';

const PAGE = 50;
const STATES = ['delayed', 'ready', 'leased'];

const previews = new WeakMap();

/** The beginning of a job's body. It is made only once, because the body may be long. @param {{body: any}} job @returns {string} */
export function preview(job) {
  let text = previews.get(job);
  if (text === undefined) {
    text = JSON.stringify(job.body);
    if (text.length > 120) text = `${text.slice(0, 119)}…`;
    previews.set(job, text);
  }
  return text;
}

function columns(name, state, jobs) {
  return [
    { key: 'id', label: t('job.id'), main: true, view: (job) => h('a', { class: 'mono name', href: jobHref(name, job.id) }, job.id) },
    { key: 'due', label: t('job.due'), view: (job) => h('span', { class: 'two-lines' }, ago(job.due_ms), h('span', { class: 'soft' }, at(job.due_ms))) },
    state === 'leased' && jobs.some((job) => job.consumer) && { key: 'holder', label: t('job.held_by'), view: (job) => job.consumer && h('span', { class: 'two-lines' }, job.consumer.name, h('span', { class: 'soft' }, job.consumer.address, job.consumer.address && ' · ', ago(job.consumer.since_ms))) },
    state === 'leased' && { key: 'until', label: t('job.until'), view: (job) => ago(job.until_ms) },
    { key: 'attempts', label: t('job.attempts'), right: true, view: (job) => h('span', { class: job.attempts === 0 ? 'zero' : '' }, count(job.attempts)) },
    { key: 'priority', label: t('job.priority'), view: (job) => h('span', { class: job.priority === 'normal' ? 'soft' : '' }, priorityText(job.priority)) },
    { key: 'added', label: t('job.added'), view: (job) => ago(job.added_ms) },
    tagColumn(jobs),
    { key: 'body', label: t('job.body'), class: 'cell-body', view: (job) => h('code', { class: 'preview' }, preview(job)) },
  ].filter(Boolean);
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function jobs({ params, query: asked, resource }) {
  const name = params.topic;
  const state = STATES.includes(asked.get('state')) ? asked.get('state') : 'delayed';
  const turn = { cursor: null, page: 1 };
  const set = resource((signal) => get(path('topics', name), signal), 20000);
  const listed = resource((signal) => get(`${path('topics', name, 'jobs')}${query({ state, limit: PAGE, cursor: turn.cursor })}`, signal).catch((problem) => {
    if (problem.code === 'unknown_topic') return { jobs: [], next: null };
    throw problem;
  }), 5000);
  const go = (cursor, page) => { Object.assign(turn, { cursor, page }); listed.reload(); };

  function list(data) {
    const none = data.jobs.length === 0;
    const topic = merged(name, set.data);
    if (none && topic.delayed + topic.ready + topic.leased + topic.dead === 0 && live.told) return empty({ title: t('jobs.none.at_all'), icon: 'topics' }, firstJob(name));
    return [
      data.away?.length > 0 && note('warn', h('p', null, t('jobs.away', { nodes: data.away.join(', ') }))),
      none ? empty({ title: t(`jobs.none.${state}`), calm: true }, turn.page > 1 && button({ label: t('page.first'), onclick: () => go(null, 1) })) : table({ key: `table-${state}`, label: t(`state.${state}`), columns: columns(name, state, data.jobs), rows: data.jobs, rowKey: (job) => job.id }),
      pager({ isFirst: turn.page === 1, next: data.next, onFirst: () => go(null, 1), onNext: () => go(data.next, turn.page + 1), shown: t('page.at', { page: turn.page, n: count(data.jobs.length) }) })];
  }

  return {
    title: () => `${name} · ${t('tab.jobs')}`,
    view: () => {
      const topic = merged(name, set.data);
      return [
        topicHead({ name, set: set.data, missing: set.problem?.status === 404, tab: 'jobs', reload: set.reload }),
        card({ key: 'jobs', flush: true },
          h('div', { class: 'tools', key: 'tools' }, segments({
            name: 'state', label: t('state'), value: state, onchange: (other) => { location.hash = `${topicHref(name, 'jobs')}?state=${other}`; },
            options: STATES.map((one) => [one, [h('i', { class: `swatch swatch--${one}`, key: 's' }), `${t(`state.${one}`)} `, h('span', { class: 'soft', key: 'n' }, count(topic[one]))]]),
          }), h('span', { class: 'gap', key: 'gap' }), linkButton({ label: t('bulk.select'), small: true, href: `${topicHref(name, 'bulk')}${query({ operation: state === 'leased' ? 'cancel' : 'reschedule', state })}` })),
          loaded(listed, list))];
    },
  };
}
