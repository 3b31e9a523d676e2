// Operations on many jobs of a topic. The page counts the jobs that a filter selects. Then it cancels, reschedules,
// runs, redrives or replays them. The filter and the operation are in the address, so that a list of jobs can link to
// this page with its own filter.

import { get, path, post, query } from '../api.js';
import { h } from '../dom.js';
import { count } from '../format.js';
import { t } from '../i18n.js';
import { actionButton, button } from '../parts/button.js';
import { operations } from '../parts/bulk_list.js';
import { card } from '../parts/card.js';
import { confirm, jobCount } from '../parts/confirm.js';
import { OUTCOMES } from '../parts/ended.js';
import { field, segments } from '../parts/field.js';
import { problemNote } from '../parts/problem.js';
import { topicHref } from '../parts/search.js';
import { say } from '../parts/toast.js';
import { topicHead } from '../parts/topic_head.js';
import { redraw } from '../redraw.js';

const OPERATIONS = ['cancel', 'reschedule', 'run', 'redrive', 'replay'];
const STATES = { cancel: ['delayed', 'ready', 'leased'], reschedule: ['delayed', 'ready'] };
const WAYS = ['by', 'at', 'spread'];
const OF_JOBS = ['state', 'id_prefix', 'tag', 'due_since', 'due_until'];
const OF_RECORDS = ['outcome', 'status', 'text', 'id_prefix', 'tag', 'since', 'until'];
const AGES = ['1h', '24h', '7d'];

const isMoment = (name) => ['due_since', 'due_until', 'since', 'until'].includes(name);
const isStatus = (text) => text === '' || /^\d{3}$/.test(text);
// A span such as `24h` means the moment that was this long ago.
const moment = (text) => (AGES.includes(text) ? text : new Date(text).getTime() || undefined);

class BulkForm {
  constructor({ params, query: asked, onLeave }) {
    this.topic = params.topic;
    const operation = asked.get('operation');
    this.operation = OPERATIONS.includes(operation) ? operation : 'reschedule';
    this.way = 'by';
    this.values = { by: '1h', at: '', spread: '1h', rate: '' };
    for (const name of [...OF_JOBS, ...OF_RECORDS]) this.values[name] = asked.get(name) ?? '';
    Object.assign(this, { found: null, problem: null, turn: 0 });
    onLeave(() => clearTimeout(this.timer));
    this.countSoon(0);
  }

  /** Calls `act` with the count when the count is known. If the form changes before that, `act` is not called. @param {(found: any) => void} act */
  withCount(act) {
    if (this.found) act(this.found);
    else this.whenFound = act;
  }

  names() {
    if (this.operation === 'replay') return OF_RECORDS;
    return STATES[this.operation] ? OF_JOBS : OF_JOBS.slice(1);
  }

  filter() {
    const given = {};
    for (const name of this.names()) {
      const value = this.values[name].trim();
      if (value === '' || (name === 'state' && !STATES[this.operation].includes(value))) continue;
      given[name] = name === 'status' ? Number(value) : isMoment(name) ? moment(value) : value;
    }
    return given;
  }

  /** Whether the form has an invalid value. If so, it is not clear which jobs the user means. */
  isFlawed() {
    if (this.operation === 'replay') return !isStatus(this.values.status);
    return this.operation === 'reschedule' && this.values[this.way].trim() === '';
  }

  body(more) {
    const { by, at, spread, rate } = this.values;
    const when = this.operation !== 'reschedule' ? {} : this.way === 'by' ? { by } : this.way === 'at' ? { at: new Date(at).getTime() } : { spread, at: at ? new Date(at).getTime() : undefined };
    return { topic: this.topic, operation: this.operation, ...when, filter: this.filter(), rate: rate ? Number(rate) : undefined, ...more };
  }

  set(change) {
    Object.assign(this.values, change);
    this.countSoon(300);
  }

  choose(operation) {
    this.operation = operation;
    this.countSoon(0);
  }

  countSoon(ms) {
    Object.assign(this, { found: null, problem: null, whenFound: null });
    const mine = ++this.turn;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.count(mine), ms);
    redraw();
  }

  async count(mine) {
    if (this.isFlawed()) return;
    try {
      const found = await post(path('jobs', 'bulk'), this.body({ dry_run: true }));
      if (mine === this.turn) {
        this.found = found;
        if (found.matched > 0) this.whenFound?.(found);
      }
    } catch (problem) {
      if (mine === this.turn) this.problem = problem;
    }
    redraw();
  }
}

const matchText = (found) => [found.is_complete ? '' : `${t('bulk.at_least')} `, jobCount(found.matched), ` ${t('bulk.match')}`];

function start(form, found, reload) {
  const { operation } = form;
  confirm({
    title: t(`bulk.${operation}`), action: t('bulk.start'), danger: operation === 'cancel',
    text: [h('p', { key: 'count' }, matchText(found)), h('p', { class: 'soft', key: 'text' }, t(`bulk.${operation}.text`))],
    act: async () => {
      const begun = await post(path('jobs', 'bulk'), form.body());
      say(t('bulk.begun', { n: begun.number }));
      form.countSoon(1000);
      reload();
    },
  });
}

function filterFields(form) {
  const { values } = form;
  const told = (name, label, more) => field({ name: `bulk-${name}`, label, value: values[name], onchange: (value) => form.set({ [name]: value }), ...more });
  const fields = {
    state: () => told('state', t('state'), { kind: 'select', options: [['', t('ended.any')], ...STATES[form.operation].map((one) => [one, t(`state.${one}`)])] }),
    id_prefix: () => told('id_prefix', t('ended.id'), { kind: 'search', mono: true }),
    tag: () => told('tag', t('bulk.tag'), { kind: 'search', mono: true }),
    due_since: () => told('due_since', t('bulk.due_since'), { kind: 'datetime-local' }),
    due_until: () => told('due_until', t('bulk.due_until'), { kind: 'datetime-local' }),
    outcome: () => told('outcome', t('ended.outcome'), { kind: 'select', options: [['', t('ended.any')], ...OUTCOMES.map((one) => [one, t(`ended.${one}`)])] }),
    status: () => told('status', t('dead.status'), { mono: true, placeholder: '503', problem: isStatus(values.status) ? null : t('dead.status.bad') }),
    text: () => told('text', t('ended.text'), { kind: 'search' }),
    since: () => (AGES.includes(values.since)
      ? told('since', t('ended.at'), { kind: 'select', options: [['', t('dead.age.any')], ...AGES.map((one) => [one, t(`dead.age.${one}`)])] })
      : told('since', t('dead.after'), { kind: 'datetime-local' })),
    until: () => told('until', t('dead.before'), { kind: 'datetime-local' }),
  };
  return h('div', { class: 'filter', role: 'group', 'aria-label': t('filter'), key: `filter-${form.operation}` }, form.names().map((name) => fields[name]()));
}

function timeFields(form) {
  const { values, way } = form;
  const told = (name, more) => field({ name: `bulk-${name}`, label: t(`bulk.way.${name}`), value: values[name], onchange: (value) => form.set({ [name]: value }), ...more });
  return h('div', { class: 'filter', key: 'when' },
    h('div', { class: 'field', key: 'way' }, h('span', { class: 'field-label' }, t('bulk.way')),
      segments({ name: 'way', label: t('bulk.way'), value: way, options: WAYS.map((one) => [one, t(`bulk.way.${one}`)]), onchange: (chosen) => { form.way = chosen; form.countSoon(0); } })),
    way === 'by' && told('by', { mono: true, placeholder: '-10m', help: t('bulk.by.help') }),
    way === 'spread' && told('spread', { mono: true, placeholder: '2h', help: t('span.help') }),
    way !== 'by' && told('at', { kind: 'datetime-local', label: way === 'spread' ? t('bulk.from') : t('bulk.way.at') }));
}

function formCard(form, reload) {
  const { found, problem, operation } = form;
  return card({ key: 'bulk', title: t('bulk.title'), help: t('bulk.about') },
    segments({ name: 'operation', label: t('bulk.operation'), value: operation, options: OPERATIONS.map((one) => [one, t(`bulk.${one}`)]), onchange: (one) => form.choose(one) }),
    h('p', { class: 'soft', key: 'text' }, t(`bulk.${operation}.text`)),
    filterFields(form),
    operation === 'reschedule' && timeFields(form),
    h('div', { class: 'filter', key: 'rate' }, field({ name: 'bulk-rate', label: t('bulk.rate'), kind: 'number', min: 1, max: 20000, placeholder: '5000', value: form.values.rate, onchange: (rate) => form.set({ rate }) })),
    h('p', { key: 'found', class: 'bulk-found', role: 'status' }, problem ? null : found ? matchText(found) : form.isFlawed() ? null : t('confirm.counting')),
    found?.skipped > 0 && h('p', { class: 'soft', key: 'skipped' }, t('bulk.would_skip', { n: count(found.skipped) })),
    problemNote(problem, () => form.countSoon(0)),
    h('div', { class: 'page-actions', key: 'go' },
      actionButton({ label: t('bulk.start'), kind: operation === 'cancel' ? 'danger' : 'primary', disabled: found?.matched === 0 || problem !== null || form.isFlawed(), onclick: () => form.withCount((counted) => start(form, counted, reload)) }),
      button({ label: t('filter.clear'), kind: 'quiet', onclick: () => form.set(Object.fromEntries([...OF_JOBS, ...OF_RECORDS].map((name) => [name, '']))) })));
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function bulk(context) {
  const name = context.params.topic;
  const form = new BulkForm(context);
  const set = context.resource((signal) => get(path('topics', name), signal), 20000);
  const done = context.resource(async (signal) => {
    const page = await get(`${path('jobs', 'bulk')}${query({ limit: 200 })}`, signal);
    return page.operations.filter((one) => one.topic === name).slice(0, 20);
  }, 1000);
  return {
    title: () => `${name} · ${t('bulk.title')}`,
    view: () => [
      topicHead({ name, set: set.data, missing: set.problem?.status === 404, tab: form.operation === 'replay' ? 'records' : 'jobs', reload: set.reload }),
      h('a', { class: 'back', key: 'back', href: topicHref(name, form.operation === 'replay' ? 'records' : 'jobs') }, `← ${t(form.operation === 'replay' ? 'tab.records' : 'tab.jobs')}`),
      formCard(form, done.reload),
      operations(done)],
  };
}
