// Tables. A click on the head of a column sorts the rows. On a narrow screen, each row is shown as a card. The page
// decides which rows there are, and their order.

import { classes, h } from '../dom.js';
import { t } from '../i18n.js';
import { button } from './button.js';
import { icon } from './icon.js';

/**
 * @template R
 * @typedef {{key: string, label: string, view: (row: R) => any, sort?: (row: R) => any, right?: boolean, main?: boolean, hidden?: boolean, class?: string, head?: any}} Column
 */

/** @typedef {{by: string, down: boolean}} Order */

function heading(column, order, onSort) {
  const props = { key: column.key, scope: 'col', class: classes(column.right && 'right', column.class) };
  if (column.head !== undefined) return h('th', props, column.head);
  if (!column.sort || !onSort) return h('th', props, column.hidden ? h('span', { class: 'sr' }, column.label) : column.label);
  const isBy = order.by === column.key;
  return h('th', { ...props, 'aria-sort': isBy ? (order.down ? 'descending' : 'ascending') : 'none' },
    h('button', { type: 'button', class: classes('sort', isBy && 'sort--on'), onclick: () => onSort({ by: column.key, down: isBy ? !order.down : column.right === true }) },
      column.label, icon(isBy && !order.down ? 'up' : 'down')));
}

/** Sorts the rows. @template R @param {R[]} rows @param {Column<R>[]} columns @param {Order} order @returns {R[]} */
export function sorted(rows, columns, order) {
  const of = columns.find((column) => column.key === order.by)?.sort;
  if (!of) return rows;
  const by = (a, b) => {
    const [x, y] = [of(a), of(b)];
    return typeof x === 'string' ? x.localeCompare(String(y)) : (x ?? -1) - (y ?? -1);
  };
  const rising = [...rows].sort(by);
  return order.down ? rising.reverse() : rising;
}

/** Lets the keyboard reach an element that scrolls. An element that does not scroll gets no tab stop. */
function reachable(el) {
  const wanted = el.scrollWidth > el.clientWidth ? '0' : null;
  if (el.getAttribute('tabindex') === wanted) return;
  if (wanted === null) el.removeAttribute('tabindex');
  else el.setAttribute('tabindex', wanted);
}

/**
 * @template R
 * @param {{label: string, columns: Column<R>[], rows: R[], rowKey: (row: R) => any, order?: Order, onSort?: (order: Order) => void, rowClass?: (row: R) => string, key?: string}} told
 */
export function table({ label, columns, rows, rowKey, order = { by: '', down: false }, onSort, rowClass, key }) {
  return h('div', { class: 'table-room', key, role: 'group', 'aria-label': label, mount: reachable, update: reachable },
    h('table', { class: 'table' },
      h('caption', { class: 'sr' }, label),
      h('thead', null, h('tr', null, columns.map((column) => heading(column, order, onSort)))),
      h('tbody', null, rows.map((row) => h('tr', { key: rowKey(row), class: rowClass?.(row) },
        columns.map((column) => h(column.main ? 'th' : 'td', {
          key: column.key, scope: column.main ? 'row' : undefined, class: classes(column.right && 'right', column.main && 'cell-main', column.class), 'data-label': column.hidden ? undefined : column.label,
        }, column.view(row))))))));
}

/** Buttons for the next page and the first page. @param {{isFirst: boolean, next: ?string, onFirst: () => void, onNext: () => void, shown: string}} told */
export function pager({ isFirst, next, onFirst, onNext, shown }) {
  if (isFirst && !next) return null;
  return h('div', { class: 'pager', key: 'pager' }, h('span', { class: 'soft' }, shown), h('span', { class: 'gap' }),
    button({ label: t('page.first'), icon: 'left', disabled: isFirst, onclick: onFirst, small: true }),
    button({ label: t('page.next'), icon: 'right', disabled: !next, onclick: onNext, small: true }));
}
