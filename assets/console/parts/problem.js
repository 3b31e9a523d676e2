// Shows that a request was refused, that a list is empty, or that data is still being read.

import { classes, h } from '../dom.js';
import { t } from '../i18n.js';
import { button } from './button.js';
import { icon } from './icon.js';

/** A note; `kind` is `info`, `warn` or `bad`. @param {string} kind @param {...any} children */
export function note(kind, ...children) {
  return h('div', { class: `note note--${kind}`, role: kind === 'bad' ? 'alert' : undefined }, icon(kind === 'info' ? 'info' : 'warn'), h('div', { class: 'note-text' }, children));
}

/** Shows why something could not be read or done; null: shows nothing. @param {?Error & {detail?: string}} problem @param {() => void} [again] */
export function problemNote(problem, again) {
  if (!problem || problem.status === 401) return null;
  return note('bad', h('p', null, problem.detail ?? problem.message), again && button({ label: t('again'), small: true, onclick: again }));
}

/** Shows that a list is empty, and what the user can do next. @param {{title: string, text?: string, icon?: string, key?: string, calm?: boolean}} told @param {...any} children */
export function empty({ title, text, icon: name = 'info', key = 'empty', calm = false }, ...children) {
  return h('div', { class: classes('empty', calm && 'empty--calm'), key }, icon(name), h('p', { class: 'empty-title' }, title), text && h('p', { class: 'empty-text' }, text), children);
}

/** Grey lines that are shown while data is being read. @param {number} [lines] */
export function skeleton(lines = 4) {
  return h('div', { class: 'skeleton', key: 'skeleton', 'aria-busy': 'true', role: 'status' }, h('span', { class: 'sr' }, t('loading')),
    Array.from({ length: lines }, (_, i) => h('div', { class: 'skeleton-line', key: i, style: { width: `${[92, 78, 85, 64, 88, 70][i % 6]}%` } })));
}

/**
 * Shows the data of a resource. Adds a note if the data could not be read again.
 * @param {import('../resource.js').Resource<any>} it
 * @param {(data: any) => any} view
 * @param {number} [lines]
 */
export function loaded(it, view, lines) {
  if (it.data === null) return it.problem ? problemNote(it.problem, it.reload) : skeleton(lines);
  return [it.problem && h('div', { key: 'stale' }, problemNote(it.problem, it.reload)), view(it.data)];
}
