// Short messages that disappear by themselves. Screen readers read them. Failures stay until they are closed.

import { classes, h } from '../dom.js';
import { t } from '../i18n.js';
import { redraw } from '../redraw.js';
import { button } from './button.js';
import { icon } from './icon.js';

const SHOWN_MS = 6000;
let toasts = [];
let number = 0;

function put(kind, text) {
  const id = ++number;
  toasts = [...toasts.slice(-3), { id, kind, text }];
  if (kind === 'done') setTimeout(() => drop(id), SHOWN_MS);
  redraw();
}

function drop(id) {
  toasts = toasts.filter((toast) => toast.id !== id);
  redraw();
}

/** Shows that something was done. @param {string} text */
export function say(text) {
  put('done', text);
}

/** Shows why something was not done. @param {Error & {detail?: string}} problem */
export function sayProblem(problem) {
  if (problem.status !== 401) put('problem', problem.detail ?? problem.message);
}

/** The region of the messages. It always exists, because a screen reader reads only what is added to an existing region. @param {boolean} isShown whether the messages are shown in this region */
export function toastRegion(isShown) {
  return h('div', { class: 'toasts', key: 'toasts', role: 'status', 'aria-live': 'polite' },
    isShown && toasts.map((toast) => h('div', { key: toast.id, class: classes('toast', `toast--${toast.kind}`) },
      icon(toast.kind === 'done' ? 'check' : 'warn'), h('span', { class: 'toast-text' }, toast.text),
      button({ label: t('close'), icon: 'close', bare: true, kind: 'quiet', onclick: () => drop(toast.id) }))));
}
