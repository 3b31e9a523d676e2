// One topic: what it does now, what it did in the last fourteen days, which jobs become due, and its settings.

import { get, path, post, query } from '../api.js';
import { barChart, lineChart } from '../chart.js';
import { h } from '../dom.js';
import { bytes, count, fullMoment, micros, moment, rate, span, weekday } from '../format.js';
import { t } from '../i18n.js';
import { live } from '../live.js';
import { card, figure, pageHead } from '../parts/card.js';
import { firstJob } from '../parts/first_job.js';
import { forecastCard } from '../parts/forecast.js';
import { empty, loaded, note, problemNote, skeleton } from '../parts/problem.js';
import { receiverCard } from '../parts/receiver.js';
import { topicHref } from '../parts/search.js';
import { table } from '../parts/table.js';
import { oldest } from '../parts/top_topics.js';
import { merged, topicHead } from '../parts/topic_head.js';
import { topicSettings } from '../parts/topic_settings.js';
import { detailText } from '../reason.js';
import { loadWatched, watch, watched } from '../watched.js';

const DAYS = 14;

/** The settings of a topic that are sent to the daemon's check. The answer has the timetable of the attempts. */
function asGiven(topic) {
  const shown = ['secrets', 'source', 'problem', 'revision', 'paused', 'circuit', 'circuit_until_ms', 'circuit_reason'];
  return Object.fromEntries(Object.entries(topic).filter(([name, value]) => !shown.includes(name) && value !== null));
}

function figures(topic) {
  const state = (name, tone) => figure({ key: name, label: t(`state.${name}`), value: count(topic[name]), tone, href: topicHref(topic.topic, name === 'dead' ? 'dead' : 'jobs') + (name === 'dead' ? '' : `?state=${name}`) });
  return h('section', { class: 'figures-row', key: 'figures', 'aria-label': t('overview.figures') },
    state('delayed', 'delayed'), state('ready', 'ready'), state('leased', 'leased'), state('dead', 'bad'),
    topic.max_pending && figure({ key: 'max_pending', label: t('figure.max_pending'), value: `${count(topic.delayed + topic.ready + topic.leased)} / ${count(topic.max_pending)}` }),
    topic.max_bytes && figure({ key: 'max_bytes', label: t('figure.max_bytes'), value: `${bytes(topic.bytes ?? 0)} / ${topic.max_bytes}` }),
    topic.add_rate && figure({ key: 'add_rate', label: t('figure.add_rate'), value: `${topic.add_rate_used === null || topic.add_rate_used === undefined ? '–' : count(topic.add_rate_used)} / ${topic.add_rate}` }),
    figure({ key: 'oldest', label: t('topics.oldest'), value: span(oldest(topic)) }),
    figure({ key: 'in', label: t('figure.in'), value: `${rate(topic.inn ?? 0)}${t('unit.per_s')}` }),
    figure({ key: 'out', label: t('figure.out'), value: `${rate(topic.out ?? 0)}${t('unit.per_s')}` }),
    figure({ key: 'delivered', label: t('figure.delivered'), value: count(topic.sums?.delivered ?? 0), tone: 'good' }));
}

function held(topic, set) {
  return [
    topic.problem && note('warn', h('p', null, h('b', null, t('topic.problem')), ' ', detailText(topic.problem))),
    topic.circuit && topic.circuit !== 'closed' && note('warn', h('p', null, h('b', null, t(`state.${topic.circuit}.why`)), ' ', detailText(set?.circuit_reason)),
      set?.circuit_until_ms && h('p', { title: fullMoment(set.circuit_until_ms) }, t('topic.circuit.until', { at: moment(set.circuit_until_ms) }))),
    topic.paused && note('warn', h('p', null, t('state.paused.why'))),
    topic.status === 'offline' && note('info', h('p', null, t('state.offline.why')))];
}

function charts() {
  const { points } = watched;
  const to = live.at_ms / 1000;
  const common = { xs: points.map((p) => p.at_ms / 1000), from: to - 600, to };
  const of = (name) => points.map((p) => p[name] ?? null);
  const perSecond = (n) => (n === null || n === undefined ? '–' : `${rate(n)}${t('unit.per_s')}`);
  return h('div', { class: 'grid grid--2', key: 'charts' },
    card({ title: t('chart.flow'), key: 'flow', help: t('chart.ten_minutes') }, lineChart({
      ...common, key: 'flow', gaps: true, label: t('chart.flow'), format: perSecond, height: 160,
      series: [{ name: t('figure.in'), color: 'delayed', values: of('written') }, { name: t('figure.out'), color: 'good', values: of('delivered'), fill: true }, { name: t('figure.failed'), color: 'bad', values: of('failed') }],
    })),
    card({ title: t('chart.mean_lateness'), key: 'late', help: t('chart.lateness.help') }, lineChart({
      ...common, key: 'late', label: t('chart.mean_lateness'), format: micros, height: 160, series: [{ name: t('chart.mean'), color: 'accent', values: of('late_us'), fill: true }],
    })));
}

/** All days of the span, also the days on which nothing was done. */
function allDays(days, last) {
  const of = new Map(days.map((day) => [day.day, day]));
  const today = new Date(`${last}T00:00:00Z`).getTime();
  return Array.from({ length: DAYS }, (_, i) => {
    const day = new Date(today - (DAYS - 1 - i) * 86400000).toISOString().slice(0, 10);
    return of.get(day) ?? { day, written: 0, delivered: 0, failed: 0, dead: 0, attempts: 0, late_us: 0 };
  });
}

function daysCard(stats, name) {
  const own = stats.topics.find((topic) => topic.topic === name);
  const days = allDays(own?.days ?? [], stats.today ?? own?.days?.at(-1)?.day ?? new Date().toISOString().slice(0, 10));
  const word = (day) => `${t('figure.delivered')} ${count(day.delivered)}, ${t('figure.failed')} ${count(day.failed)}, ${t('state.dead')} ${count(day.dead)}`;
  const sum = (field) => days.reduce((all, day) => all + day[field], 0);
  const number = (field, label) => ({ key: field, label, right: true, view: (day) => h('span', { class: day[field] === 0 ? 'zero' : '' }, count(day[field])) });
  return [
    h('div', { class: 'legend', key: 'legend' }, [['delivered', 'good', t('figure.delivered')], ['failed', 'ready', t('figure.failed')], ['dead', 'bad', t('state.dead')]].map(([field, color, label]) =>
      h('span', { class: 'legend-item', key: field }, h('i', { class: `swatch swatch--${color}` }), `${label} `, h('b', null, count(sum(field)))))),
    barChart({
      key: 'days', label: t('topic.days'), height: 120,
      bars: days.map((day, i) => ({
        key: day.day, title: `${weekday(day.day)}, ${day.day}: ${word(day)}`, caption: i % 2 === 1 ? day.day.slice(5) : '',
        parts: [{ value: day.dead, color: 'bad' }, { value: day.failed, color: 'ready' }, { value: day.delivered, color: 'good' }],
      })),
    }),
    h('details', { class: 'more', key: 'table' }, h('summary', null, t('as_table')), table({
      label: t('topic.days'), rows: [...days].reverse(), rowKey: (day) => day.day,
      columns: [{ key: 'day', label: t('day'), main: true, view: (day) => h('span', { class: 'figures' }, day.day) }, number('written', t('figure.written')), number('delivered', t('figure.delivered')), number('failed', t('figure.failed')), number('dead', t('state.dead')),
        { key: 'late', label: t('chart.mean_lateness'), right: true, view: (day) => micros(day.attempts > 0 ? day.late_us / day.attempts : null) }],
    }))];
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function topicPage({ params, resource, onLeave }) {
  const name = params.topic;
  const set = resource((signal) => get(path('topics', name), signal), 15000);
  const stats = resource((signal) => get(`/v1/stats?days=${DAYS}`, signal), 30000);
  const forecast = resource((signal) => get(`/v1/forecast${query({ topic: name })}`, signal), 15000);
  const receiver = receiverCard(name, resource);
  let checked = null;
  const check = resource(async (signal) => {
    const topic = await get(path('topics', name), signal);
    checked = await post('/v1/check/topic', asGiven(topic)).catch(() => null);
    return checked;
  });
  watch(name);
  resource(() => loadWatched(), 60000);
  onLeave(check.stop);
  onLeave(() => watch(''));
  return {
    title: () => name,
    view: () => {
      const missing = set.problem?.status === 404;
      const topic = merged(name, set.data);
      const isUnknown = missing && !live.topics.has(name);
      if (isUnknown) return [pageHead({ title: name, mono: true, back: { href: '#/topics', label: t('nav.topics') } }), empty({ title: t('topic.unknown'), text: t('topic.unknown.text') })];
      const isFresh = set.data !== null && topic.delayed + topic.ready + topic.leased + topic.dead === 0 && live.told && !(topic.sums?.written > 0);
      return [
        topicHead({ name, set: set.data, missing, tab: '', reload: set.reload }),
        missing ? note('warn', h('p', null, t('state.unregistered.why'))) : problemNote(set.problem, set.reload),
        set.data?.source === 'file' && note('info', h('p', null, t('topic.from_file'))),
        held(topic, set.data),
        figures(topic),
        isFresh && card({ title: t('first_job'), key: 'first' }, firstJob(name)),
        charts(),
        !missing && receiver(),
        card({ title: t('topic.days'), key: 'days' }, stats.problem?.code === 'no_registry' ? empty({ title: t('stats.none') }) : loaded(stats, (data) => daysCard(data, name))),
        forecastCard(forecast),
        set.data ? topicSettings(set.data, checked) : !missing && skeleton(5)];
    },
  };
}
