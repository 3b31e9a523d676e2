// The filter of dead letters: its fields, and what the API takes for it. The daemon decides which dead letters the
// filter selects.

import { h } from '../dom.js';
import { t } from '../i18n.js';
import { button } from './button.js';
import { field } from './field.js';

const AGES = ['1h', '24h', '7d'];

/** A filter that selects all letters. */
export function noFilter() {
  return { id: '', reason: '', status: '', age: '', after: '', before: '' };
}

/** The filter as the API takes it; null: the filter selects all letters. @param {Object<string, string>} filter @returns {?Object<string, any>} */
export function filterGiven(filter) {
  const said = {};
  if (filter.id.trim()) said.id_contains = filter.id.trim();
  if (filter.reason.trim()) said.reason = filter.reason.trim();
  if (/^\d{3}$/.test(filter.status.trim())) said.status = Number(filter.status.trim());
  if (AGES.includes(filter.age)) said.died_after = filter.age;
  if (filter.age === 'between' && filter.after) said.died_after = new Date(filter.after).getTime();
  if (filter.age === 'between' && filter.before) said.died_before = new Date(filter.before).getTime();
  return Object.keys(said).length > 0 ? said : null;
}

const isStatus = (text) => text.trim() === '' || /^\d{3}$/.test(text.trim());

/** Whether the filter has an invalid value. If so, it is not clear which letters the user means. @param {Object<string, string>} filter */
export function isFlawed(filter) {
  return !isStatus(filter.status);
}

/** @param {Object<string, string>} filter @param {(change: Object<string, string>) => void} set */
export function filterFields(filter, set) {
  const text = (name, label, more) => field({ name: `filter-${name}`, label, value: filter[name], onchange: (value) => set({ [name]: value }), ...more });
  return h('div', { class: 'filter', role: 'group', 'aria-label': t('filter'), key: 'filter' },
    text('id', t('dead.id'), { kind: 'search', mono: true }),
    text('reason', t('dead.reason'), { kind: 'search', placeholder: t('dead.reason.hint') }),
    text('status', t('dead.status'), { mono: true, placeholder: '503', problem: isStatus(filter.status) ? null : t('dead.status.bad') }),
    field({ name: 'filter-age', label: t('dead.age'), kind: 'select', value: filter.age, options: [['', t('dead.age.any')], ...AGES.map((age) => [age, t(`dead.age.${age}`)]), ['between', t('dead.age.between')]], onchange: (age) => set({ age }) }),
    filter.age === 'between' && text('after', t('dead.after'), { kind: 'datetime-local' }),
    filter.age === 'between' && text('before', t('dead.before'), { kind: 'datetime-local' }),
    filterGiven(filter) && h('div', { class: 'filter-clear', key: 'clear' }, button({ label: t('filter.clear'), kind: 'quiet', onclick: () => set(noFilter()) })));
}
