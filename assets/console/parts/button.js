// Buttons, links that look like them, and menus of actions. They do nothing by themselves.

import { classes, h } from '../dom.js';
import { mayChange } from '../session.js';
import { t } from '../i18n.js';
import { icon } from './icon.js';

/**
 * @typedef {{label: string, onclick?: (event: Event) => void, icon?: string, kind?: 'primary' | 'danger' | 'quiet', disabled?: boolean,
 *   title?: string, busy?: boolean, type?: string, small?: boolean, key?: string, bare?: boolean}} Button
 */

/** A button; `bare` shows its icon alone. @param {Button} told */
export function button({ label, onclick, icon: name, kind, disabled = false, title, busy = false, type = 'button', small, key, bare = false }) {
  return h('button', {
    type, key, onclick: busy ? undefined : onclick, disabled, 'aria-disabled': busy ? 'true' : undefined, title: title ?? (bare ? label : undefined), 'aria-label': bare ? label : undefined,
    'aria-busy': busy ? 'true' : undefined, class: classes('button', kind && `button--${kind}`, small && 'button--small', bare && 'button--bare'),
  }, name && icon(name), bare ? null : label);
}

/** A button for what changes something: whoever may only read cannot press it, and is told why. @param {Button} told */
export function actionButton(told) {
  return mayChange() ? button(told) : button({ ...told, disabled: true, title: t('read_only.reason') });
}

/** A link that looks like a button. @param {{label: string, href: string, icon?: string, kind?: string, small?: boolean}} told */
export function linkButton({ label, href, icon: name, kind, small }) {
  return h('a', { href, class: classes('button', kind && `button--${kind}`, small && 'button--small') }, name && icon(name), label);
}

let menus = 0;

/**
 * A button that opens a list of actions; it closes by Esc, by a click elsewhere and by a choice.
 * @param {{label: string, key: string, items: ({label: string, onclick?: () => void, href?: string, icon?: string, danger?: boolean, disabled?: boolean, title?: string} | null)[]}} told
 */
export function menu({ label, key, items }) {
  return h('span', { class: 'menu', key },
    h('button', { type: 'button', class: 'button button--bare button--quiet', 'aria-label': label, title: label, 'aria-haspopup': 'true', onclick: open }, icon('more')),
    h('div', { class: 'menu-list', popover: 'auto', mount: (el) => { el.id = `menu-${++menus}`; } },
      items.filter(Boolean).map((item) => item.href
        ? h('a', { key: item.label, class: 'menu-item', href: item.href, onclick: close }, item.icon && icon(item.icon), item.label)
        : h('button', {
          key: item.label, type: 'button', class: classes('menu-item', item.danger && 'menu-item--danger'), disabled: item.disabled ?? false, title: item.title,
          onclick: (event) => { close(event); item.onclick(); },
        }, item.icon && icon(item.icon), item.label))));
}

function open(event) {
  const own = event.currentTarget;
  const target = own instanceof Element ? own : event.target.closest('button');
  const list = target.nextElementSibling;
  if (list.matches(':popover-open')) return list.hidePopover();
  list.showPopover();
  const at = target.getBoundingClientRect();
  const below = at.bottom + 4 + list.offsetHeight < window.innerHeight;
  list.style.setProperty('left', `${Math.max(8, Math.min(at.right, window.innerWidth - 8) - list.offsetWidth)}px`);
  list.style.setProperty('top', `${below ? at.bottom + 4 : Math.max(8, at.top - 4 - list.offsetHeight)}px`);
  list.querySelector('a, button:not(:disabled)')?.focus();
  window.addEventListener('scroll', () => list.matches(':popover-open') && list.hidePopover(), { once: true, capture: true });
}

function close(event) {
  event.target.closest('[popover]')?.hidePopover();
}
