// Menus of actions. They do nothing by themselves.

import { classes, h } from '../dom.js';
import { icon } from './icon.js';

let menus = 0;

/**
 * A button that opens a list of actions. Esc, Tab, a click outside and a choice close the list. The arrow keys, Home
 * and End move the focus in it.
 * @param {{label: string, key: string, items: ({label: string, onclick?: () => void, href?: string, icon?: string, danger?: boolean, disabled?: boolean, title?: string} | null)[]}} told
 */
export function menu({ label, key, items }) {
  return h('span', { class: 'menu', key },
    h('button', { type: 'button', class: 'button button--bare button--quiet', 'aria-label': label, title: label, 'aria-haspopup': 'menu', onclick: open, onkeydown: openByKey }, icon('more')),
    h('div', { class: 'menu-list', popover: 'auto', role: 'menu', 'aria-label': label, onkeydown: move, mount: (el) => { el.id = `menu-${++menus}`; } },
      items.filter(Boolean).map((item) => item.href
        ? h('a', { key: item.label, class: 'menu-item', role: 'menuitem', tabindex: '-1', href: item.href, onclick: close }, item.icon && icon(item.icon), item.label)
        : h('button', {
          key: item.label, type: 'button', role: 'menuitem', tabindex: '-1', class: classes('menu-item', item.danger && 'menu-item--danger'), disabled: item.disabled ?? false, title: item.title,
          onclick: (event) => { close(event); item.onclick(); },
        }, item.icon && icon(item.icon), item.label))));
}

const itemsOf = (list) => [...list.querySelectorAll('a, button:not(:disabled)')];

function open(event) {
  const own = event.currentTarget;
  show(own instanceof Element ? own : event.target.closest('button'));
}

/** @param {HTMLElement} target the button of the menu */
function show(target) {
  const list = target.nextElementSibling;
  if (list.matches(':popover-open')) return list.hidePopover();
  list.showPopover();
  const at = target.getBoundingClientRect();
  const below = at.bottom + 4 + list.offsetHeight < window.innerHeight;
  list.style.setProperty('left', `${Math.max(8, Math.min(at.right, window.innerWidth - 8) - list.offsetWidth)}px`);
  list.style.setProperty('top', `${below ? at.bottom + 4 : Math.max(8, at.top - 4 - list.offsetHeight)}px`);
  itemsOf(list)[0]?.focus();
  window.addEventListener('scroll', () => list.matches(':popover-open') && list.hidePopover(), { once: true, capture: true });
}

function openByKey(event) {
  if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return;
  event.preventDefault();
  const target = event.target.closest('button');
  if (!target.nextElementSibling.matches(':popover-open')) show(target);
  if (event.key === 'ArrowUp') itemsOf(target.nextElementSibling).at(-1)?.focus();
}

function move(event) {
  const list = event.target.closest('[popover]');
  const items = itemsOf(list);
  const at = items.indexOf(document.activeElement);
  const to = { ArrowDown: (at + 1) % items.length, ArrowUp: (at <= 0 ? items.length : at) - 1, Home: 0, End: items.length - 1 }[event.key];
  if (event.key === 'Tab') list.hidePopover();
  if (to === undefined) return;
  event.preventDefault();
  items[to]?.focus();
}

function close(event) {
  event.target.closest('[popover]')?.hidePopover();
}
