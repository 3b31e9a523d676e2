// All topics. The user can search and sort them, pause them, and take them offline. Settings are changed in the form,
// and jobs are changed on the pages of the topic.

import { get } from '../api.js';
import { h } from '../dom.js';
import { compact, count, span } from '../format.js';
import { t } from '../i18n.js';
import { live } from '../live.js';
import { topicBadges, tag } from '../parts/badge.js';
import { button, linkButton } from '../parts/button.js';
import { card, pageHead } from '../parts/card.js';
import { field, segments } from '../parts/field.js';
import { empty, note, problemNote, skeleton } from '../parts/problem.js';
import { topicHref } from '../parts/search.js';
import { sorted, table } from '../parts/table.js';
import { oldest } from '../parts/top_topics.js';
import { topicMenu } from '../parts/topic_actions.js';
import { redraw } from '../redraw.js';
import { mayChange } from '../session.js';

const PAGE = 100;
const NOTHING = { written: 0, delivered: 0, failed: 0, dead: 0 };

/** One row for each topic: its settings, its present counts, and its statistics. */
function rowsOf(settings, stats) {
  const known = new Map((settings?.topics ?? []).map((topic) => [topic.name, topic]));
  const done = new Map((stats?.topics ?? []).map((topic) => [topic.topic, topic]));
  const names = new Set([...live.topics.keys(), ...known.keys()]);
  return [...names].map((name) => {
    const set = known.get(name);
    const now = live.topics.get(name);
    const of = done.get(name);
    return {
      topic: name, title: set?.title ?? '', callback: set?.callback ?? '', mode: set?.mode, source: set?.source, problem: set?.problem,
      delayed: 0, ready: 0, leased: 0, dead: 0, oldest_ready_ms: null, paused: set?.paused, circuit: set?.circuit, status: set?.status, registered: Boolean(set) || settings === null, ...now,
      today: of?.days?.at(-1) ?? NOTHING, totals: of?.totals ?? NOTHING,
    };
  });
}

const needsCare = (row) => row.problem || row.paused || row.circuit === 'open' || row.circuit === 'half_open' || row.status === 'offline' || row.dead > 0 || row.registered === false;

function columns(after) {
  const number = (key, label, of) => ({ key, label, right: true, sort: of, view: (row) => h('span', { class: of(row) === 0 ? 'zero' : '' }, count(of(row))) });
  return [
    {
      key: 'topic', label: t('topic'), main: true, sort: (row) => row.topic,
      view: (row) => h('span', { class: 'two-lines' }, h('a', { class: 'mono name', href: topicHref(row.topic) }, row.topic), row.title && h('span', { class: 'soft' }, row.title), row.problem && h('span', { class: 'bad-text' }, row.problem)),
    },
    { key: 'state', label: t('state'), view: (row) => h('span', { class: 'badges' }, topicBadges(row), row.mode === 'pull' && tag('plain', t('state.pull')), row.source === 'file' && tag('plain', t('state.file'), t('topic.from_file'))) },
    number('delayed', t('state.delayed'), (row) => row.delayed),
    {
      key: 'ready', label: t('state.ready'), right: true, sort: (row) => row.ready,
      view: (row) => h('span', { class: 'two-lines' }, h('span', { class: row.ready === 0 ? 'zero' : '' }, count(row.ready)), oldest(row) && h('span', { class: 'soft', title: t('topics.oldest') }, span(oldest(row), 1))),
    },
    number('leased', t('state.leased'), (row) => row.leased),
    { key: 'dead', label: t('state.dead'), right: true, sort: (row) => row.dead, view: (row) => (row.dead > 0 ? h('a', { class: 'bad-text', href: topicHref(row.topic, 'dead') }, count(row.dead)) : h('span', { class: 'zero' }, '0')) },
    number('in_today', t('topics.in_today'), (row) => row.today.written),
    {
      key: 'out_today', label: t('topics.out_today'), right: true, sort: (row) => row.today.delivered,
      view: (row) => h('span', { class: 'two-lines' }, h('span', { class: row.today.delivered === 0 ? 'zero' : '' }, count(row.today.delivered)), row.totals.delivered > row.today.delivered && h('span', { class: 'soft' }, t('topics.in_all', { n: compact(row.totals.delivered) }))),
    },
    number('failed_today', t('topics.failed_today'), (row) => row.today.failed),
    { key: 'menu', label: t('actions'), hidden: true, right: true, class: 'cell-menu', view: (row) => topicMenu(row, after) },
  ];
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function topics(context) {
  const state = { text: '', only: 'all', order: { by: 'topic', down: false }, shown: PAGE };
  const settings = context.resource((signal) => get('/v1/topics', signal), 20000);
  const stats = context.resource((signal) => get('/v1/stats?days=1', signal).catch((problem) => {
    if (problem.code === 'no_registry') return { topics: [] };
    throw problem;
  }), 15000);
  const set = (values) => { Object.assign(state, values); redraw(); };

  function list(rows) {
    const all = columns(() => { settings.reload(); });
    const wanted = state.text.trim().toLowerCase();
    const found = rows.filter((row) => (state.only === 'all' || needsCare(row)) && (wanted === '' || `${row.topic} ${row.title} ${row.callback}`.toLowerCase().includes(wanted)));
    const shown = sorted(found, all, state.order).slice(0, state.shown);
    if (found.length === 0) return empty({ title: t('topics.no_match'), key: 'no_match' }, button({ label: t('filter.clear'), onclick: () => set({ text: '', only: 'all' }) }));
    return [
      table({ key: 'table', label: t('nav.topics'), columns: all, rows: shown, rowKey: (row) => row.topic, order: state.order, onSort: (order) => set({ order }) }),
      found.length > shown.length && h('div', { class: 'pager', key: 'more' }, h('span', { class: 'soft' }, t('shown.of', { shown: count(shown.length), all: count(found.length) })), h('span', { class: 'gap' }),
        button({ label: t('shown.more'), small: true, onclick: () => set({ shown: state.shown + PAGE }) }))];
  }

  function tools(rows) {
    const care = rows.filter(needsCare).length;
    return h('div', { class: 'tools', key: 'tools' },
      field({ name: 'find', label: t('topics.find'), hideLabel: true, kind: 'search', placeholder: t('topics.find'), value: state.text, onchange: (text) => set({ text, shown: PAGE }) }),
      segments({ name: 'only', label: t('topics.which'), value: state.only, options: [['all', t('topics.all', { n: count(rows.length) })], ['care', t('topics.care', { n: count(care) })]], onchange: (only) => set({ only }) }));
  }

  return {
    title: () => t('nav.topics'),
    view: () => {
      const rows = rowsOf(settings.data, stats.data);
      const isKnown = settings.data !== null || live.told;
      return [
        pageHead({ title: t('nav.topics'), about: t('topics.about'), actions: mayChange() && linkButton({ label: t('topic.register'), href: '#/register', icon: 'plus', kind: 'primary' }) }),
        problemNote(settings.problem, settings.reload),
        settings.data?.away && note('warn', h('p', null, t('topics.away', { why: settings.data.away }))),
        settings.data?.unusable?.length > 0 && note('warn', h('p', null, t('topics.unusable')), h('ul', null, settings.data.unusable.map((why) => h('li', { key: why }, why)))),
        !isKnown ? skeleton(6) : rows.length === 0
          ? empty({ title: t('topics.none'), text: t('topics.none.text'), icon: 'topics' }, mayChange() && linkButton({ label: t('topic.register'), href: '#/register', icon: 'plus', kind: 'primary' }))
          : card({ key: 'list', flush: true }, tools(rows), list(rows))];
    },
  };
}
