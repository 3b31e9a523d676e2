// Charts. uPlot draws the lines, and this file draws sparklines and bars. The colours are variables of the style sheet,
// so that charts follow the theme. Each chart has a text that says what it shows.

import { classes, h } from './dom.js';
import { clockSeconds, clockTime } from './format.js';

/** @typedef {{name: string, color: string, values: (?number)[], fill?: boolean, dash?: number[]}} Series */

/** If there are fewer values than this, each value also has a dot. A line with only one value would be invisible. */
const SPARSE = 30;

const charts = new Set();

/** Draws all charts again, in the present colours. */
export function recolour() {
  for (const chart of charts) chart.remake();
}

function color(name, alpha) {
  const value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  if (alpha === undefined) return value;
  const rgb = value.match(/[0-9a-f]{2}/gi)?.map((part) => parseInt(part, 16)) ?? [128, 128, 128];
  return `rgba(${rgb.join(',')},${alpha})`;
}

/** A uPlot chart in an element. */
class Lines {
  constructor(el, told) {
    Object.assign(this, { el, told, plot: null });
    this.tip = document.createElement('div');
    this.tip.className = 'chart-tip';
    this.tip.hidden = true;
    this.sized = new ResizeObserver(() => this.fit());
    this.sized.observe(el);
    charts.add(this);
    this.remake();
  }

  fit() {
    const width = this.el.clientWidth;
    if (!this.plot) this.remake();
    else if (width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.told.height });
  }

  data() {
    return [this.told.xs, ...this.told.series.map((s) => s.values)];
  }

  remake() {
    this.plot?.destroy();
    this.plot = null;
    if (this.el.clientWidth === 0 || typeof window.uPlot !== 'function') return;
    this.plot = new window.uPlot(this.options(), this.data(), this.el);
    this.plot.over.append(this.tip);
  }

  options() {
    const { told } = this;
    const font = '11px system-ui, sans-serif';
    const [ink, grid] = [color('ink-3'), color('line')];
    const series = told.series.map((s) => ({
      label: s.name, stroke: color(s.color), width: 1.75, dash: s.dash, fill: s.fill ? color(s.color, 0.1) : undefined,
      points: { show: (u, i) => u.data[i].filter((v) => v !== null && v !== undefined).length < SPARSE, size: 4 }, spanGaps: told.gaps !== true,
    }));
    return {
      width: this.el.clientWidth, height: told.height, padding: [10, 4, 0, 0], legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false, setScale: false }, points: { size: 7, width: 1.5 } },
      scales: { x: { time: true, range: (u, low, high) => (this.told.from ? [this.told.from, this.told.to] : [low, high]) }, y: { range: (u, low, high) => [0, high > 0 ? high * 1.12 : 1] } },
      series: [{}, ...series],
      axes: [
        { stroke: ink, font, size: 26, space: 64, gap: 4, grid: { show: false }, ticks: { show: false }, values: (u, at) => at.map((x) => (this.told.seconds ? timeLabel(x, at) : clockTime(x * 1000))) },
        { stroke: ink, font, size: 58, space: 36, gap: 6, grid: { stroke: grid, width: 1 }, ticks: { show: false }, values: (u, at) => at.map((y) => this.told.format(y)) },
      ],
      hooks: { setCursor: [(u) => this.point(u)] },
    };
  }

  set(told) {
    const isOther = told.series.length !== this.told.series.length || told.seconds !== this.told.seconds;
    this.told = told;
    if (isOther || !this.plot) this.remake();
    else this.plot.setData(this.data());
  }

  point(plot) {
    const at = plot.cursor.idx;
    const shown = at !== null && at !== undefined && plot.cursor.left >= 0;
    this.tip.hidden = !shown;
    if (!shown) return;
    const { told } = this;
    const when = told.xs[at] * 1000;
    const rows = told.series.map((s) => `${s.name}  ${told.format(s.values[at])}`);
    this.tip.textContent = [told.seconds ? clockSeconds(when) : clockTime(when), ...rows].join('\n');
    const left = plot.cursor.left;
    const isRight = left > plot.over.clientWidth / 2;
    this.tip.style.setProperty('left', isRight ? 'auto' : `${left + 12}px`);
    this.tip.style.setProperty('right', isRight ? `${plot.over.clientWidth - left + 12}px` : 'auto');
  }

  remove() {
    this.sized.disconnect();
    this.plot?.destroy();
    charts.delete(this);
  }
}

const timeLabel = (x, at) => (at.length > 1 && at[1] - at[0] < 60 ? clockSeconds(x * 1000) : clockTime(x * 1000));

/**
 * A chart with lines over time. Its legend shows the newest figures.
 * @param {{key: string, label: string, xs: number[], series: Series[], format: (n: ?number) => string, seconds?: boolean,
 *   from?: number, to?: number, height?: number, gaps?: boolean}} told `xs` are Unix seconds; with `gaps`, missing values interrupt the line
 */
export function lineChart(told) {
  const full = { height: 190, seconds: true, ...told };
  const last = (values) => values.findLast((v) => v !== null && v !== undefined);
  const figures = full.series.map((s) => `${s.name} ${full.format(last(s.values) ?? null)}`).join(', ');
  return h('figure', { class: 'chart', key: full.key },
    h('figcaption', { class: 'legend' },
      full.series.map((s) => h('span', { class: 'legend-item', key: s.name },
        h('i', { class: `swatch swatch--${s.color}` }), `${s.name} `, h('b', null, full.format(last(s.values) ?? null))))),
    h('div', {
      class: 'chart-plot', role: 'img', 'aria-label': `${full.label}: ${figures}`, style: { 'min-height': `${full.height}px` },
      mount: (el) => { el.dqLines = new Lines(el, full); },
      update: (el) => el.dqLines.set(full),
      unmount: (el) => el.dqLines.remove(),
    }));
}

/**
 * A line without axes, beside a figure.
 * @param {(?number)[]} values
 * @param {string} colorName
 */
export function sparkline(values, colorName) {
  const known = values.filter((v) => v !== null && v !== undefined);
  const max = Math.max(...known, 0);
  const min = Math.min(...known, max);
  const low = max - min < max * 0.02 ? 0 : Math.max(0, min - (max - min) * 0.2);
  const y = (v) => (max === low ? 26 : max === min ? 15 : 26 - ((v - low) / (max - low)) * 23).toFixed(1);
  const step = 120 / Math.max(1, known.length - 1);
  const points = known.map((v, i) => `${(i * step).toFixed(1)},${y(v)}`);
  return h('svg', { class: `spark ink--${colorName}`, viewBox: '0 0 120 28', preserveAspectRatio: 'none', 'aria-hidden': 'true', focusable: 'false' },
    known.length > 1 && [
      h('polygon', { key: 'area', class: 'spark-area', points: `0,28 ${points.join(' ')} 120,28` }),
      h('polyline', { key: 'line', class: 'spark-line', points: points.join(' ') })]);
}

/**
 * A chart with bars. The parts of a bar are stacked.
 * @param {{key: string, label: string, bars: {key: string, title: string, caption?: string, parts: {value: number, color: string}[]}[], height?: number}} told
 */
export function barChart(told) {
  const sum = (bar) => bar.parts.reduce((all, part) => all + part.value, 0);
  const most = Math.max(1, ...told.bars.map(sum));
  return h('div', { class: 'bars', key: told.key, role: 'img', 'aria-label': told.label, style: { '--bars-height': `${told.height ?? 120}px` } },
    told.bars.map((bar) => h('div', { class: 'bar', key: bar.key, title: bar.title },
      h('div', { class: classes('bar-room', sum(bar) === 0 && 'bar-room--none') },
        bar.parts.map((part) => h('i', { class: `bar-part fill--${part.color}`, style: { height: `${part.value === 0 ? 0 : Math.max(1.5, (part.value / most) * 100)}%` } }))),
      h('span', { class: 'bar-caption' }, bar.caption ?? ''))));
}
