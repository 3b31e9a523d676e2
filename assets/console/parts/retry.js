// The timetable of attempts. A line has a dot for each attempt, and a list says the same in words.

import { h } from '../dom.js';
import { span } from '../format.js';
import { t } from '../i18n.js';

const SHOWN = 12;

/**
 * @param {{timetable: {attempt: number, after_ms: number}[], gives_up_after_ms: number}} told
 */
export function timeline({ timetable, gives_up_after_ms }) {
  const all = timetable.at(-1).attempt;
  const last = Math.max(1, gives_up_after_ms ?? 0, ...timetable.map((one) => one.after_ms));
  // The position is a square root. Otherwise the dots of the first attempts would be too close to each other.
  const place = (ms) => `${(Math.sqrt(ms / last) * 100).toFixed(2)}%`;
  const label = t('retry.summary', { n: all, span: span(gives_up_after_ms) });
  return h('div', { class: 'retry', key: 'timeline' },
    h('div', { class: 'retry-line', role: 'img', 'aria-label': label },
      timetable.slice(0, 200).map((one) => h('i', { key: one.attempt, class: 'retry-dot', style: { left: place(one.after_ms) }, title: `${t('retry.attempt', { n: one.attempt })}: ${afterText(one.after_ms)}` })),
      h('i', { key: 'end', class: 'retry-end', style: { left: '100%' } })),
    h('ol', { class: 'retry-steps' },
      timetable.slice(0, SHOWN).map((one) => h('li', { key: one.attempt }, h('b', null, one.attempt), ' ', afterText(one.after_ms))),
      all > SHOWN && h('li', { key: 'more' }, t('retry.more', { n: all - SHOWN })),
      h('li', { key: 'end', class: 'retry-up' }, all > 1 ? t('retry.gives_up', { span: span(gives_up_after_ms) }) : t('retry.once'))));
}

function afterText(ms) {
  return ms === 0 ? t('retry.due') : `+${span(ms)}`;
}
