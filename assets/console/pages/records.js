// How the jobs of a topic ended, the latest first. The filter is in the address, so that people can share it as a
// link.

import { get, path, query } from '../api.js';
import { h } from '../dom.js';
import { count, micros } from '../format.js';
import { t } from '../i18n.js';
import { lastAttempt } from '../parts/attempts.js';
import { button, linkButton } from '../parts/button.js';
import { card } from '../parts/card.js';
import { OUTCOMES, endedBadge } from '../parts/ended.js';
import { field } from '../parts/field.js';
import { empty, loaded, note } from '../parts/problem.js';
import { jobHref, topicHref } from '../parts/search.js';
import { pager, table } from '../parts/table.js';
import { isTag, tagColumn } from '../parts/tags.js';
import { ago, at } from '../parts/time.js';
import { topicHead } from '../parts/topic_head.js';
import { redraw } from '../redraw.js';

const PAGE = 50;
const AGES = ['1h', '24h', '7d'];
const NAMES = ['outcome', 'status', 'text', 'id_prefix', 'tag', 'since', 'until'];
// How many pages are read until one has a record. With a filter, many pages may be empty.
const LOOKS = 8;

const isStatus = (text) => text === '' || /^\d{3}$/.test(text);

async function read(topic, asked, cursor, signal) {
  const found = { records: [], next: cursor, looked: 0, away: [] };
  for (let i = 0; i < LOOKS; i++) {
    const some = await get(`${path('topics', topic, 'records')}${query({ ...asked, limit: PAGE - found.records.length, cursor: found.next })}`, signal);
    found.records.push(...some.records);
    found.looked += some.looked_at;
    Object.assign(found, { next: some.next, away: some.away ?? [] });
    if (!found.next || found.records.length > 0) break;
  }
  return found;
}

class EndedJobs {
  constructor({ params, query: asked, resource, onLeave }) {
    this.topic = params.topic;
    this.filter = Object.fromEntries(NAMES.map((name) => [name, asked.get(name) ?? '']));
    Object.assign(this, { cursor: null, page: 1 });
    this.it = resource((signal) => read(this.topic, this.asked(), this.cursor, signal).catch((problem) => {
      if (problem.code === 'unknown_topic') return { records: [], next: null, looked: 0, away: [] };
      throw problem;
    }), 10000);
    onLeave(() => clearTimeout(this.timer));
  }

  /** The filter as the API takes it. */
  asked() {
    const moment = (text) => (text === '' || AGES.includes(text) ? text : new Date(text).getTime() || '');
    return { ...this.filter, status: isStatus(this.filter.status) ? this.filter.status : '', tag: isTag(this.filter.tag) ? this.filter.tag : '', since: moment(this.filter.since), until: moment(this.filter.until) };
  }

  isFiltered() {
    return NAMES.some((name) => this.filter[name] !== '');
  }

  set(change) {
    Object.assign(this.filter, change);
    history.replaceState(null, '', `${topicHref(this.topic, 'records')}${query(this.filter)}`);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.go(null, 1), 250);
    redraw();
  }

  clear() {
    this.set(Object.fromEntries(NAMES.map((name) => [name, ''])));
  }

  go(cursor, page) {
    Object.assign(this, { cursor, page });
    this.it.reload();
  }
}

function filterFields(jobs) {
  const { filter } = jobs;
  const told = (name, label, more) => field({ name: `ended-${name}`, label, value: filter[name], onchange: (value) => jobs.set({ [name]: value }), ...more });
  const isBetween = filter.until !== '' || (filter.since !== '' && !AGES.includes(filter.since));
  const age = isBetween || jobs.isBetween ? 'between' : filter.since;
  const ofAge = (value) => {
    jobs.isBetween = value === 'between';
    jobs.set({ since: value === 'between' ? '' : value, until: '' });
  };
  return h('div', { class: 'filter', role: 'group', 'aria-label': t('filter'), key: 'filter' },
    told('outcome', t('ended.outcome'), { kind: 'select', options: [['', t('ended.any')], ...OUTCOMES.map((one) => [one, t(`ended.${one}`)])] }),
    told('id_prefix', t('ended.id'), { kind: 'search', mono: true }),
    told('tag', t('tag'), { kind: 'search', mono: true, problem: isTag(filter.tag) ? null : t('tag.bad') }),
    told('text', t('ended.text'), { kind: 'search' }),
    told('status', t('dead.status'), { mono: true, placeholder: '200', problem: isStatus(filter.status) ? null : t('dead.status.bad') }),
    field({ name: 'ended-age', label: t('ended.at'), kind: 'select', value: age, options: [['', t('dead.age.any')], ...AGES.map((one) => [one, t(`dead.age.${one}`)]), ['between', t('dead.age.between')]], onchange: ofAge }),
    age === 'between' && told('since', t('dead.after'), { kind: 'datetime-local' }),
    age === 'between' && told('until', t('dead.before'), { kind: 'datetime-local' }),
    h('div', { class: 'filter-clear', key: 'bulk' }, linkButton({ label: t('bulk.select'), href: `${topicHref(jobs.topic, 'bulk')}${query({ ...filter, operation: 'replay' })}` })),
    jobs.isFiltered() && h('div', { class: 'filter-clear', key: 'clear' }, button({ label: t('filter.clear'), kind: 'quiet', onclick: () => jobs.clear() })));
}

const columns = (records) => [
  { key: 'id', label: t('job.id'), main: true, view: (record) => h('a', { class: 'mono name', href: jobHref(record.topic, record.id) }, record.id) },
  { key: 'outcome', label: t('ended.outcome'), view: (record) => endedBadge(record.outcome) },
  { key: 'ended', label: t('ended.at'), view: (record) => h('span', { class: 'two-lines' }, ago(record.ended_ms), h('span', { class: 'soft' }, at(record.ended_ms))) },
  { key: 'late', label: t('ended.late'), right: true, view: (record) => (record.late_ms === undefined ? '–' : micros(record.late_ms * 1000)) },
  { key: 'attempts', label: t('job.attempts'), right: true, view: (record) => count(record.attempts) },
  { key: 'last', label: t('ended.last'), class: 'cell-reason', view: (record) => lastAttempt(record.log) },
  tagColumn(records),
].filter(Boolean);

function list(jobs, data) {
  const none = data.records.length === 0;
  const nothing = () => (jobs.isFiltered()
    ? empty({ title: t('ended.no_match'), text: data.next ? t('ended.looked', { n: count(data.looked) }) : undefined, key: 'no_match' }, button({ label: t('filter.clear'), onclick: () => jobs.clear() }))
    : empty({ title: t('ended.none'), text: t('ended.none.text'), calm: true }));
  return [
    data.away.length > 0 && note('warn', h('p', null, t('jobs.away', { nodes: data.away.join(', ') }))),
    none ? nothing() : table({ key: 'table', label: t('tab.records'), columns: columns(data.records), rows: data.records, rowKey: (record) => `${record.id} ${record.ended_ms}` }),
    pager({ isFirst: jobs.page === 1, next: data.next, onFirst: () => jobs.go(null, 1), onNext: () => jobs.go(data.next, jobs.page + 1), shown: t('page.at', { page: jobs.page, n: count(data.records.length) }) })];
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function records(context) {
  const name = context.params.topic;
  const jobs = new EndedJobs(context);
  const set = context.resource((signal) => get(path('topics', name), signal), 20000);
  return {
    title: () => `${name} · ${t('tab.records')}`,
    view: () => [
      topicHead({ name, set: set.data, missing: set.problem?.status === 404, tab: 'records', reload: set.reload }),
      card({ key: 'records', flush: true }, filterFields(jobs), loaded(jobs.it, (data) => list(jobs, data)))],
  };
}
