// Dead letters of one topic, or of all topics that have some. The user filters and selects them, and redrives or purges
// them.

import { get, path, query } from '../api.js';
import { h } from '../dom.js';
import { count } from '../format.js';
import { t } from '../i18n.js';
import { live } from '../live.js';
import { tag } from '../parts/badge.js';
import { actionButton, button } from '../parts/button.js';
import { card, pageHead } from '../parts/card.js';
import { purge, redrive } from '../parts/dead_actions.js';
import { filterFields, filterGiven, isFlawed, noFilter } from '../parts/dead_filter.js';
import { checkbox } from '../parts/field.js';
import { empty, loaded, note, skeleton } from '../parts/problem.js';
import { jobHref, topicHref } from '../parts/search.js';
import { pager, table } from '../parts/table.js';
import { tagColumn } from '../parts/tags.js';
import { ago, at } from '../parts/time.js';
import { topicHead } from '../parts/topic_head.js';
import { detailText } from '../reason.js';
import { redraw } from '../redraw.js';
import { preview } from './jobs.js';

const PAGE = 50;
const OF_EACH = 20;
const TOPICS = 25;
const LOOKS = 8;

const keyOf = (job) => `${job.topic} ${job.id} ${job.until_ms}`;
// The API takes ids. If an id has several dead letters, the user selects all of them when selecting one of them.
const pickOf = (job) => `${job.topic} ${job.id}`;
const last = (job) => job.log?.at(-1) ?? {};

/** Reads one page of letters. With a filter, some pages may be empty, so further pages are read. */
async function page(topic, filter, limit, from, signal) {
  const found = { jobs: [], next: from, away: [] };
  for (let i = 0; i < LOOKS; i++) {
    try {
      const some = await get(`${path('topics', topic, 'dead')}${query({ ...filter, limit: limit - found.jobs.length, cursor: found.next })}`, signal);
      found.jobs.push(...some.jobs);
      found.next = some.next;
      found.away.push(...(some.away ?? []));
    } catch (problem) {
      if (problem.code === 'unknown_topic') return { jobs: [], next: null, away: [] };
      throw problem;
    }
    if (!found.next || found.jobs.length > 0) break;
  }
  return found;
}

function withDead() {
  return [...live.topics.values()].filter((topic) => topic.dead > 0).sort((a, b) => b.dead - a.dead);
}

class Letters {
  constructor(context) {
    this.topic = context.params.topic ?? null;
    Object.assign(this, { filter: noFilter(), cursor: null, page: 1, picked: new Map() });
    this.it = context.resource((signal) => this.read(signal), 10000);
    context.onLeave(() => clearTimeout(this.timer));
  }

  async read(signal) {
    const filter = filterGiven(this.filter);
    if (this.topic !== null) return page(this.topic, filter, PAGE, this.cursor, signal);
    const pages = await Promise.all(withDead().slice(0, TOPICS).map((topic) => page(topic.topic, filter, OF_EACH, null, signal)));
    const jobs = pages.flatMap((one) => one.jobs).sort((a, b) => (b.until_ms ?? 0) - (a.until_ms ?? 0));
    return { jobs, next: null, away: [...new Set(pages.flatMap((one) => one.away))], more: pages.some((one) => one.next) };
  }

  set(change) {
    Object.assign(this.filter, change);
    Object.assign(this, { cursor: null, page: 1 });
    this.picked.clear();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.it.reload(), 250);
    redraw();
  }

  go(cursor, number) {
    Object.assign(this, { cursor, page: number });
    this.it.reload();
  }

  pick(job, on) {
    if (on) this.picked.set(pickOf(job), job);
    else this.picked.delete(pickOf(job));
    redraw();
  }

  /** The picked letters, by topic. If none is picked, all letters that the filter selects. */
  meant() {
    if (this.picked.size === 0) {
      const filter = filterGiven(this.filter);
      return (this.topic !== null ? [this.topic] : withDead().map((topic) => topic.topic)).map((topic) => ({ topic, filter }));
    }
    const ids = Map.groupBy ? Map.groupBy(this.picked.values(), (job) => job.topic) : grouped(this.picked.values());
    return [...ids].map(([topic, jobs]) => ({ topic, ids: jobs.map((job) => job.id) }));
  }

  done() {
    this.picked.clear();
    this.go(null, 1);
  }
}

function grouped(jobs) {
  const by = new Map();
  for (const job of jobs) by.set(job.topic, [...(by.get(job.topic) ?? []), job]);
  return by;
}

function columns(letters, jobs) {
  const all = jobs.length > 0 && jobs.every((job) => letters.picked.has(pickOf(job)));
  const pickAll = checkbox({ name: 'all', label: t('dead.pick_all'), hideLabel: true, checked: all, some: !all && letters.picked.size > 0, onchange: (on) => { for (const job of jobs) letters.pick(job, on); } });
  return [
    { key: 'pick', label: t('dead.pick'), hidden: true, head: pickAll, class: 'cell-pick', view: (job) => checkbox({ name: 'pick', label: t('dead.pick.one', { id: job.id }), hideLabel: true, checked: letters.picked.has(pickOf(job)), onchange: (on) => letters.pick(job, on) }) },
    { key: 'id', label: t('job.id'), main: true, view: (job) => h('a', { class: 'mono name', href: jobHref(job.topic, job.id) }, job.id) },
    letters.topic === null && { key: 'topic', label: t('topic'), view: (job) => h('a', { class: 'mono', href: topicHref(job.topic, 'dead') }, job.topic) },
    { key: 'died', label: t('job.died'), view: (job) => h('span', { class: 'two-lines' }, ago(job.until_ms), h('span', { class: 'soft' }, at(job.until_ms))) },
    { key: 'attempts', label: t('job.attempts'), right: true, view: (job) => count(job.attempts) },
    { key: 'reason', label: t('dead.why'), class: 'cell-reason', view: (job) => h('span', { class: 'reason' }, last(job).status !== undefined && tag('bad', `HTTP ${last(job).status}`), last(job).error === `status ${last(job).status}` ? null : h('span', null, detailText(last(job).error) || t('dead.why.unknown'))) },
    tagColumn(jobs),
    { key: 'body', label: t('job.body'), class: 'cell-body', view: (job) => h('code', { class: 'preview' }, preview(job)) },
  ].filter(Boolean);
}

/** Whether a picked id has more than one letter on the page. */
function isTwice(letters, jobs) {
  const seen = new Set();
  return jobs.some((job) => letters.picked.has(pickOf(job)) && seen.size === seen.add(pickOf(job)).size);
}

function tools(letters, jobs) {
  const n = letters.picked.size;
  const isFiltered = filterGiven(letters.filter) !== null;
  const isUnclear = n === 0 && isFlawed(letters.filter);
  const which = n > 0 ? t('dead.picked', { n: count(n) }) : isFiltered ? t('dead.filtered') : t('dead.all');
  return h('div', { class: 'tools tools--actions', key: 'tools' }, h('span', { class: 'tools-text', role: 'status' }, which), h('span', { class: 'gap' }),
    n > 0 && button({ key: 'none', label: t('dead.pick_none'), kind: 'quiet', small: true, onclick: () => { letters.picked.clear(); redraw(); } }),
    actionButton({ key: 'redrive', label: n > 0 ? t('redrive') : isFiltered ? t('dead.redrive.filtered') : t('dead.redrive.all'), icon: 'redrive', kind: 'primary', small: true, disabled: isUnclear, onclick: () => redrive(letters.meant(), () => letters.done()) }),
    actionButton({ key: 'purge', label: n > 0 ? t('dead.purge') : isFiltered ? t('dead.purge.filtered') : t('dead.purge.all'), icon: 'trash', small: true, disabled: isUnclear, onclick: () => purge(letters.meant(), () => letters.done()) }));
}

function list(letters, data) {
  const isFiltered = filterGiven(letters.filter) !== null;
  const total = letters.topic === null ? withDead().reduce((sum, topic) => sum + topic.dead, 0) : live.topics.get(letters.topic)?.dead ?? 0;
  if (data.jobs.length === 0 && !data.next) {
    return isFiltered
      ? empty({ title: t('dead.no_match'), key: 'no_match' }, button({ label: t('filter.clear'), onclick: () => letters.set(noFilter()) }))
      : empty({ title: t('dead.none'), text: t('dead.none.text'), icon: 'check', calm: true });
  }
  return [
    data.away?.length > 0 && note('warn', h('p', null, t('jobs.away', { nodes: data.away.join(', ') }))),
    tools(letters, data.jobs),
    isTwice(letters, data.jobs) && note('warn', h('p', null, t('dead.twice'))),
    table({ key: 'table', label: t('nav.dead'), columns: columns(letters, data.jobs), rows: data.jobs, rowKey: keyOf, rowClass: (job) => (letters.picked.has(pickOf(job)) ? 'row--picked' : '') }),
    letters.topic === null
      ? h('p', { class: 'card-more soft', key: 'of' }, t('shown.of', { shown: count(data.jobs.length), all: count(total) }), data.more ? ` · ${t('dead.of_each')}` : '')
      : pager({ isFirst: letters.page === 1, next: data.next, onFirst: () => letters.go(null, 1), onNext: () => letters.go(data.next, letters.page + 1), shown: t('page.at', { page: letters.page, n: count(data.jobs.length) }) })];
}

function byTopic() {
  const all = withDead();
  return all.length > 1 && h('ul', { class: 'chips', key: 'by' }, all.slice(0, TOPICS).map((topic) => h('li', { key: topic.topic },
    h('a', { class: 'chip chip--link', href: topicHref(topic.topic, 'dead') }, h('span', { class: 'mono' }, topic.topic), h('b', null, count(topic.dead))))));
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function dead(context) {
  const name = context.params.topic ?? null;
  const letters = new Letters(context);
  const set = name === null ? null : context.resource((signal) => get(path('topics', name), signal), 20000);
  let known = live.told;
  return {
    title: () => (name === null ? t('nav.dead') : `${name} · ${t('tab.dead')}`),
    view: () => {
      // The first event says which topics have dead letters.
      if (!known && live.told) {
        known = true;
        if (name === null) letters.it.reload();
      }
      return [
        name === null ? pageHead({ title: t('nav.dead'), about: t('dead.about') }) : topicHead({ name, set: set.data, missing: set.problem?.status === 404, tab: 'dead', reload: set.reload }),
        name === null && byTopic(),
        card({ key: 'letters', flush: true }, filterFields(letters.filter, (change) => letters.set(change)), known ? loaded(letters.it, (data) => list(letters, data)) : skeleton(5))];
    },
  };
}
