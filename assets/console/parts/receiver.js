// The health of a topic's receiver over ten minutes, a day or a week: success rate, durations, errors.

import { get, path, query } from '../api.js';
import { barChart } from '../chart.js';
import { h } from '../dom.js';
import { count, micros, moment, number } from '../format.js';
import { t } from '../i18n.js';
import { redraw } from '../redraw.js';
import { card, figure } from './card.js';
import { segments } from './field.js';
import { empty, loaded, skeleton } from './problem.js';
import { table } from './table.js';

const SPANS = ['10m', '1d', '7d'];

/** How many errors are shown. */
const ERRORS = 8;

/** A percentage, rounded down. So 100 % means that nothing has failed. */
function percent(part) {
  return part === null ? '–' : number({ style: 'percent', maximumFractionDigits: 2 }).format(Math.floor(part * 10000) / 10000);
}

/** The text for the upper bound of a range. The last range has no upper bound. */
function bound(us, ranges) {
  return us === null ? t('receiver.longer', { span: micros(ranges.at(-2).up_to_us) }) : t('receiver.up_to', { span: micros(us) });
}

function figures(data) {
  const percentile = (n) => figure({ key: `p${n}`, label: t('receiver.percentile', { n }), value: data[`p${n}_us`] === null ? `> ${micros(data.durations.at(-2).up_to_us)}` : micros(data[`p${n}_us`]) });
  return h('div', { class: 'figures-row figures-row--plain', key: 'figures' },
    figure({ key: 'rate', label: t('receiver.rate'), value: percent(data.success_rate), tone: data.failed > 0 ? 'bad' : 'good' }),
    figure({ key: 'attempts', label: t('receiver.attempts'), value: count(data.attempts) }),
    figure({ key: 'failed', label: t('figure.failed'), value: count(data.failed) }),
    data.later > 0 && figure({ key: 'later', label: t('receiver.later'), value: count(data.later) }),
    percentile(50), percentile(90), percentile(99));
}

function durations({ durations: ranges }) {
  const label = t('receiver.durations');
  const attempts = { key: 'attempts', label: t('receiver.attempts'), right: true, view: (range) => count(range.attempts) };
  return h('div', { key: 'durations' }, h('h3', { class: 'sub' }, label),
    barChart({
      key: 'bars', label, height: 96,
      bars: ranges.map((range, i) => ({
        key: i, title: `${bound(range.up_to_us, ranges)}: ${count(range.attempts)}`, parts: [{ value: range.attempts, color: 'accent' }],
        caption: i % 3 === 0 && range.up_to_us !== null ? micros(range.up_to_us) : '',
      })),
    }),
    h('details', { class: 'more', key: 'table' }, h('summary', null, t('as_table')), table({
      label, rows: ranges, rowKey: (range) => range.up_to_us ?? 'longer',
      columns: [{ key: 'bound', label, main: true, view: (range) => bound(range.up_to_us, ranges) }, attempts],
    })));
}

function why(failure) {
  if (/^\d+$/.test(failure)) return '';
  return t(`receiver.error.${/^\dxx$/.test(failure) ? 'class' : failure}`);
}

function errors(data) {
  return h('div', { key: 'errors' }, h('h3', { class: 'sub' }, t('receiver.errors')),
    data.errors.length === 0 ? h('p', { class: 'soft' }, t('receiver.no_errors')) : table({
      label: t('receiver.errors'), rows: data.errors.slice(0, ERRORS), rowKey: (error) => error.failure,
      columns: [
        { key: 'failure', label: t('receiver.error'), main: true, view: (error) => [h('code', { key: 'code' }, error.failure), ' ', h('span', { class: 'soft', key: 'why' }, why(error.failure))] },
        { key: 'attempts', label: t('receiver.attempts'), right: true, view: (error) => count(error.attempts) }],
    }));
}

/** Reads the health of a topic's receiver. @param {string} name @param {Function} resource @returns {() => any} the card */
export function receiverCard(name, resource) {
  let over = SPANS[0];
  const health = resource((signal) => get(path('topics', name, 'health') + query({ over }), signal), 15000);
  const choose = (chosen) => { over = chosen; health.reload(); redraw(); };
  return () => card({
    title: t('receiver'), key: 'receiver', help: health.data && t('receiver.help', { since: moment(health.data.since_ms) }),
    actions: segments({ name: 'over', label: t('receiver.over'), value: over, options: SPANS.map((span) => [span, t(`receiver.${span}`)]), onchange: choose }),
  }, loaded(health, (data) => {
    if (data.over !== over) return skeleton(3);
    if (data.attempts === 0) return empty({ title: t('receiver.none') });
    return [figures(data), h('div', { class: 'grid grid--2 grid--tight', key: 'halves' }, durations(data), errors(data))];
  }));
}
