// Searches for jobs in all topics by filters. The filters are in the address. Ended jobs are searched too, if they can
// meet the filters.

import { get, path, query } from '../api.js';
import { h } from '../dom.js';
import { count } from '../format.js';
import { t } from '../i18n.js';
import { redraw } from '../redraw.js';
import { lastAttempt } from './attempts.js';
import { badge } from './badge.js';
import { button } from './button.js';
import { card, pageHead } from './card.js';
import { endedBadge } from './ended.js';
import { field } from './field.js';
import { empty, loaded, note } from './problem.js';
import { jobHref, topicHref } from './search.js';
import { pager, table } from './table.js';
import { isTag, tagColumn } from './tags.js';
import { ago, at } from './time.js';

const PAGE = 50;
// How many pages are read until one has a job. With a filter, many pages may be empty.
const LOOKS = 8;
const STATES = ['delayed', 'ready', 'leased', 'dead'];
const NAMES = ['id_prefix', 'tag', 'state', 'topic', 'due_since', 'due_until'];

/** Reads pages of a list until one of them has an entry. @param {string} url @param {'jobs' | 'records'} what */
async function read(url, what, asked, cursor, signal) {
  const found = { items: [], next: cursor, looked: 0, away: [] };
  for (let i = 0; i < LOOKS; i++) {
    const some = await get(`${url}${query({ ...asked, limit: PAGE, cursor: found.next })}`, signal);
    found.items.push(...some[what]);
    found.looked += some.looked_at;
    Object.assign(found, { next: some.next, away: some.away ?? [] });
    if (!found.next || found.items.length > 0) break;
  }
  return found;
}

/** A list, with the number of the page that is shown. */
class List {
  constructor(resource, ask) {
    Object.assign(this, { cursor: null, page: 1 });
    this.it = resource((signal) => ask(this.cursor, signal));
  }

  go(cursor, page) {
    Object.assign(this, { cursor, page });
    this.it.reload();
  }
}

class JobSearch {
  constructor({ query: asked, resource, onLeave }) {
    this.filter = Object.fromEntries(NAMES.map((name) => [name, asked.get(name) ?? '']));
    this.jobs = new List(resource, (cursor, signal) => read(path('jobs'), 'jobs', this.asked(), cursor, signal));
    this.ended = new List(resource, async (cursor, signal) => {
      const { id_prefix, tag, topic } = this.asked();
      return this.hasEnded() ? read(topic ? path('topics', topic, 'records') : path('records'), 'records', { id_prefix, tag }, cursor, signal) : null;
    });
    onLeave(() => clearTimeout(this.timer));
  }

  /** The filters as the API takes them. */
  asked() {
    const moment = (text) => (text === '' ? '' : new Date(text).getTime() || '');
    const { filter } = this;
    return { ...filter, topic: filter.topic.trim(), tag: isTag(filter.tag) ? filter.tag : '', due_since: moment(filter.due_since), due_until: moment(filter.due_until) };
  }

  isFiltered() {
    return NAMES.some((name) => this.filter[name] !== '');
  }

  /** Whether ended jobs are searched. They are not searched by state or due time. */
  hasEnded() {
    const { filter } = this;
    return (filter.id_prefix !== '' || filter.tag !== '') && ['state', 'due_since', 'due_until'].every((name) => filter[name] === '');
  }

  set(change) {
    Object.assign(this.filter, change);
    history.replaceState(null, '', `#/find${query(this.filter)}`);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => { this.jobs.go(null, 1); this.ended.go(null, 1); }, 250);
    redraw();
  }

  clear() {
    this.set(Object.fromEntries(NAMES.map((name) => [name, ''])));
  }
}

function filterFields(search) {
  const { filter } = search;
  const told = (name, label, more) => field({ name: `find-${name}`, label, value: filter[name], onchange: (value) => search.set({ [name]: value }), ...more });
  return h('div', { class: 'filter', role: 'group', 'aria-label': t('filter'), key: 'filter' },
    told('id_prefix', t('ended.id'), { kind: 'search', mono: true }),
    told('tag', t('tag'), { kind: 'search', mono: true, problem: isTag(filter.tag) ? null : t('tag.bad') }),
    told('state', t('state'), { kind: 'select', options: [['', t('ended.any')], ...STATES.map((state) => [state, t(`state.${state}`)])] }),
    told('topic', t('topic'), { kind: 'search', mono: true }),
    told('due_since', t('find.due_since'), { kind: 'datetime-local' }),
    told('due_until', t('find.due_until'), { kind: 'datetime-local' }),
    search.isFiltered() && h('div', { class: 'filter-clear', key: 'clear' }, button({ label: t('filter.clear'), kind: 'quiet', onclick: () => search.clear() })));
}

const moments = (ms) => h('span', { class: 'two-lines' }, ago(ms), h('span', { class: 'soft' }, at(ms)));

function columns(rows, what, when) {
  return [
    { key: 'id', label: t('job.id'), main: true, view: (row) => h('a', { class: 'mono name', href: jobHref(row.topic, row.id) }, row.id) },
    { key: 'topic', label: t('topic'), view: (row) => h('a', { class: 'mono', href: topicHref(row.topic) }, row.topic) },
    what, when,
    { key: 'attempts', label: t('job.attempts'), right: true, view: (row) => count(row.attempts) },
    { key: 'last', label: t('ended.last'), class: 'cell-reason', view: (row) => lastAttempt(row.log) },
    tagColumn(rows),
  ].filter(Boolean);
}

function view(list, label, none, what, when, data) {
  return [
    data.away.length > 0 && note('warn', h('p', null, t('jobs.away', { nodes: data.away.join(', ') }))),
    data.items.length === 0
      ? empty({ title: none, text: data.next ? t('find.looked', { n: count(data.looked) }) : undefined, calm: true })
      : table({ key: 'table', label, columns: columns(data.items, what, when), rows: data.items, rowKey: (row) => `${row.topic} ${row.id} ${row.until_ms ?? row.ended_ms} ${row.added_ms}` }),
    pager({ isFirst: list.page === 1, next: data.next, onFirst: () => list.go(null, 1), onNext: () => list.go(data.next, list.page + 1), shown: t('page.at', { page: list.page, n: count(data.items.length) }) })];
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export function jobSearch(context) {
  const search = new JobSearch(context);
  const state = () => ({ key: 'state', label: t('state'), view: (job) => badge(job.state) });
  const due = () => ({ key: 'due', label: t('job.due'), view: (job) => moments(job.due_ms) });
  const outcome = () => ({ key: 'outcome', label: t('ended.outcome'), view: (record) => endedBadge(record.outcome) });
  const ended = () => ({ key: 'ended', label: t('ended.at'), view: (record) => moments(record.ended_ms) });
  return {
    title: () => t('find.jobs'),
    view: () => [
      pageHead({ title: t('find.jobs'), about: t('find.jobs.about') }),
      card({ key: 'jobs', flush: true }, filterFields(search),
        loaded(search.jobs.it, (data) => view(search.jobs, t('find.jobs'), t('find.no_match'), state(), due(), data))),
      search.hasEnded() && card({ key: 'ended', title: t('tab.records'), flush: true },
        loaded(search.ended.it, (data) => data && view(search.ended, t('tab.records'), t('ended.no_match'), outcome(), ended(), data)))],
  };
}
