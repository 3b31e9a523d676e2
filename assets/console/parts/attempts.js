// The attempts of a pending or ended job, as a timeline. The page decides what comes before and after them.

import { classes, h } from '../dom.js';
import { count, micros } from '../format.js';
import { t } from '../i18n.js';
import { readable } from '../json.js';
import { detailText } from '../reason.js';
import { tag } from './badge.js';
import { codeBlock } from './snippet.js';
import { when } from './time.js';

function isGood(attempt) {
  return attempt.error === undefined && attempt.status >= 200 && attempt.status < 300;
}

function shown(one) {
  return h('li', { class: classes('attempt', isGood(one) ? 'attempt--good' : 'attempt--bad'), key: `${one.number} ${one.at_ms}` },
    h('div', { class: 'attempt-head' }, h('b', null, t('retry.attempt', { n: one.number })), when(one.at_ms), h('span', { class: 'soft' }, t('attempt.took', { span: micros(one.took_ms * 1000) })),
      one.status !== undefined && tag(one.status < 300 ? 'good' : 'bad', `HTTP ${one.status}`)),
    one.late && h('p', { class: 'soft' }, t('attempt.late', { span: micros(one.late.ms * 1000), why: t(`late.${one.late.reason}`) })),
    one.error && one.error !== `status ${one.status}` && h('p', { class: 'attempt-error' }, detailText(one.error)),
    one.answer && h('div', { class: 'attempt-answer' }, h('span', { class: 'soft' }, t('attempt.answer')), codeBlock(/^\s*[[{]/.test(one.answer) ? readable(one.answer) : one.answer, t('attempt.answer'))));
}

/** A line for the attempts that are not kept. They lie between the first and the last attempts. */
function gap(n, after) {
  return n > 0 && h('li', { class: 'attempt soft', key: `before ${after.number} ${after.at_ms}` }, t('job.attempts.gap', { n: count(n) }));
}

/** A point of the timeline that is not an attempt. @param {string} key @param {string} kind @param {string} label @param {...any} more */
export function point(key, kind, label, ...more) {
  return h('li', { class: classes('attempt', kind && `attempt--${kind}`), key }, h('div', { class: 'attempt-head' }, h('b', null, label), more));
}

/** The points of the attempts. @param {any[]} log */
export function attemptLines(log) {
  return log.map((one, i) => [i > 0 && gap(one.number - log[i - 1].number - 1, one), shown(one)]);
}

/** The result of the last attempt, for a cell of a table. @param {?any[]} log */
export function lastAttempt(log) {
  const last = log?.at(-1);
  if (!last) return h('span', { class: 'soft' }, t('ended.no_attempt'));
  return h('span', { class: 'reason' }, last.status !== undefined && tag(last.status < 300 ? 'good' : 'bad', `HTTP ${last.status}`),
    last.error && last.error !== `status ${last.status}` ? h('span', null, detailText(last.error)) : null);
}
