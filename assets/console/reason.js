// What the daemon says about a problem, in the language of the console. If this language has no words for it, the
// daemon's own text is shown.

import { problemWords } from './i18n.js';

/** Why a request was refused. @param {{code?: string, field?: ?string, detail: string}} problem @returns {string} */
export const reasonText = (problem) => problemWords()?.reason(problem) ?? problem.detail;

/** Why an attempt failed, or what dq cannot do. @param {?string} [detail] @returns {string} */
export const detailText = (detail) => (detail ? problemWords()?.detail(detail) ?? detail : '');

/** Why a job waits. @param {{code: string, text: string}} why @returns {string} */
export const waitingText = (why) => problemWords()?.waiting(why) ?? why.text;

/** What an alert is about. @param {{name: string, detail?: string}} alert @returns {string} */
export const alertText = (alert) => problemWords()?.alert(alert) ?? alert.detail ?? '';
