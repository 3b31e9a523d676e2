// Moments, as text such as "3 min ago", which keeps counting. The title has the full date and time.

import { h } from '../dom.js';
import { age, fullMoment, moment } from '../format.js';

/** How long ago a moment was, or how far ahead it is. @param {?number} at_ms */
export function ago(at_ms) {
  if (at_ms === null || at_ms === undefined) return '–';
  return h('time', { class: 'time', datetime: new Date(at_ms).toISOString(), title: fullMoment(at_ms) }, age(at_ms));
}

/** The date and time of a moment. @param {?number} at_ms */
export function at(at_ms) {
  if (at_ms === null || at_ms === undefined) return '–';
  return h('time', { class: 'time figures', datetime: new Date(at_ms).toISOString(), title: fullMoment(at_ms) }, moment(at_ms));
}

/** The moment, and how long ago it was or how far ahead it is. @param {?number} at_ms */
export function when(at_ms) {
  if (at_ms === null || at_ms === undefined) return '–';
  return h('span', { class: 'when' }, at(at_ms), ' ', h('span', { class: 'soft' }, ago(at_ms)));
}
