// The overview. It shows first what needs attention, then the state of the daemon, then the jobs that become due. It
// changes nothing.

import { get } from '../api.js';
import { lineChart, sparkline } from '../chart.js';
import { classes, h } from '../dom.js';
import { compact, micros, rate } from '../format.js';
import { t } from '../i18n.js';
import { live, loadHistory, total } from '../live.js';
import { attentionCard } from '../parts/attention.js';
import { card, pageHead } from '../parts/card.js';
import { segments } from '../parts/field.js';
import { forecastCard } from '../parts/forecast.js';
import { linkButton } from '../parts/button.js';
import { empty, skeleton } from '../parts/problem.js';
import { nodesInShort, processesInShort } from '../parts/daemon.js';
import { topTopics } from '../parts/top_topics.js';
import { redraw } from '../redraw.js';
import { mayChange } from '../session.js';

const SPARK_POINTS = 120;

/** The mean of the newest points. The values of single seconds vary too much. */
function recent(points, name, of = 5) {
  const some = points.slice(-of).map((p) => p[name]).filter((v) => v !== null && v !== undefined);
  return some.length === 0 ? null : some.reduce((sum, v) => sum + v, 0) / some.length;
}

function tile({ key, label, value, unit, color, values, href, help }) {
  return h(href ? 'a' : 'div', { class: classes('tile', href && 'tile--link'), key, href, title: help },
    h('span', { class: 'tile-label' }, h('i', { class: `swatch swatch--${color}` }), label),
    h('span', { class: 'tile-value' }, value, unit && h('small', null, ` ${unit}`)),
    sparkline(values, color));
}

function tiles() {
  const points = live.points.slice(-SPARK_POINTS);
  const of = (name) => points.map((p) => p[name]);
  const seconds = t('unit.per_s');
  // The tiles of p50 and p99 show the last values of the chart's lines.
  const newest = calmed(live.points, CALM_MS.minutes).at(-1);
  return h('section', { class: 'tiles', 'aria-label': t('overview.figures'), key: 'tiles' },
    tile({ key: 'in', label: t('figure.in'), value: rate(recent(points, 'written')), unit: seconds, color: 'delayed', values: of('written'), help: t('figure.in.help') }),
    tile({ key: 'out', label: t('figure.out'), value: rate(recent(points, 'delivered')), unit: seconds, color: 'good', values: of('delivered'), help: t('figure.out.help') }),
    tile({ key: 'p50', label: t('figure.p50'), value: micros(newest?.p50_us), color: 'accent', values: of('p50_us'), help: t('figure.p50.help') }),
    tile({ key: 'p99', label: t('figure.p99'), value: micros(newest?.p99_us), color: 'leased', values: of('p99_us'), help: t('figure.p99.help') }),
    tile({ key: 'waiting', label: t('figure.waiting'), value: compact(total('delayed')), color: 'delayed', values: of('waiting'), href: '#/topics', help: t('figure.waiting.help') }),
    tile({ key: 'ready', label: t('figure.ready'), value: compact(total('ready')), color: 'ready', values: of('ready'), href: '#/topics', help: t('figure.ready.help') }),
    tile({ key: 'leased', label: t('figure.leased'), value: compact(total('leased')), color: 'leased', values: of('leased'), href: '#/topics', help: t('figure.leased.help') }),
    tile({ key: 'dead', label: t('figure.dead'), value: compact(total('dead')), color: 'bad', values: of('letters'), href: '#/dead', help: t('figure.dead.help') }));
}

const CALM_MS = { minutes: 5000, day: 300000 };

/** Means over spans of `span_ms`, so that the lines are readable. The spans begin at fixed times. */
function calmed(points, span_ms) {
  const groups = [];
  for (const point of points) {
    const of = Math.floor(point.at_ms / span_ms);
    if (groups.at(-1)?.of === of) groups.at(-1).points.push(point);
    else groups.push({ of, points: [point] });
  }
  const mean = (some, name) => {
    const known = some.map((p) => p[name]).filter((v) => v !== null && v !== undefined);
    return known.length === 0 ? null : known.reduce((sum, v) => sum + v, 0) / known.length;
  };
  // The newest group is left out. Its time is not over, so its mean still changes a lot.
  return groups.slice(0, -1).map(({ of, points: some }) => ({
    at_ms: (of + 1) * span_ms, ...Object.fromEntries(['written', 'delivered', 'failed', 'p50_us'].map((name) => [name, mean(some, name)])),
    p99_us: some.some((p) => p.p99_us !== null) ? Math.max(...some.map((p) => p.p99_us ?? 0)) : null,
  }));
}

function charts(state) {
  const isShort = state.range === 'minutes';
  const points = calmed(isShort ? live.points : live.minutes, CALM_MS[state.range]);
  const to = (isShort ? live.at_ms : points.at(-1)?.at_ms ?? live.at_ms) / 1000;
  const common = { xs: points.map((p) => p.at_ms / 1000), seconds: isShort, from: to - (isShort ? 600 : 86400), to };
  const series = (name, label, color, more) => ({ name: label, color, values: points.map((p) => p[name]), ...more });
  const choice = segments({
    name: 'range', label: t('chart.range'), value: state.range, options: [['minutes', t('chart.10min')], ['day', t('chart.24h')]], onchange: (range) => { state.range = range; redraw(); },
  });
  const perSecond = (n) => (n === null || n === undefined ? '–' : `${rate(n)}${t('unit.per_s')}`);
  return h('div', { class: 'grid grid--2', key: 'charts' },
    card({ title: t('chart.flow'), key: 'flow', actions: choice }, lineChart({
      ...common, key: `flow-${state.range}`, label: t('chart.flow'), format: perSecond,
      series: [series('written', t('figure.in'), 'delayed'), series('delivered', t('figure.out'), 'good', { fill: true }), series('failed', t('figure.failed'), 'bad')],
    })),
    card({ title: t('chart.lateness'), key: 'lateness', help: t('chart.lateness.help') }, lineChart({
      ...common, key: `late-${state.range}`, label: t('chart.lateness'), format: micros,
      series: [series('p50_us', 'p50', 'accent', { fill: true }), series('p99_us', 'p99', 'leased')],
    })));
}

function noTopics() {
  return empty({ title: t('topics.none'), text: t('topics.none.text'), icon: 'topics', key: 'none' }, mayChange() && linkButton({ label: t('topic.register'), href: '#/register', icon: 'plus', kind: 'primary' }));
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function overview(context) {
  const state = { range: 'minutes' };
  const today = context.resource((signal) => get('/v1/stats?days=1', signal).catch((problem) => {
    if (problem.code === 'no_registry') return { topics: [] };
    throw problem;
  }), 15000);
  const forecast = context.resource((signal) => get('/v1/forecast', signal), 15000);
  context.resource(() => loadHistory(), 60000);
  return {
    title: () => t('nav.overview'),
    view: () => [
      pageHead({ title: t('nav.overview'), about: live.instance }),
      !live.told ? skeleton(6) : [
        attentionCard(today.data),
        tiles(),
        charts(state),
        live.topics.size === 0 ? noTopics() : null,
        forecastCard(forecast),
        live.topics.size > 0 ? topTopics() : null,
        h('div', { class: 'grid grid--2', key: 'daemon' }, processesInShort(live.processes), nodesInShort(live.nodes, live.away)),
      ]],
  };
}
