// Buttons, and links that look like them. They do nothing by themselves.

import { classes, h } from '../dom.js';
import { mayChange } from '../session.js';
import { t } from '../i18n.js';
import { icon } from './icon.js';

/**
 * @typedef {{label: string, onclick?: (event: Event) => void, icon?: string, kind?: 'primary' | 'danger' | 'quiet', disabled?: boolean,
 *   title?: string, busy?: boolean, type?: string, small?: boolean, key?: string, bare?: boolean}} Button
 */

/** A button. With `bare`, only its icon is shown. @param {Button} told */
export function button({ label, onclick, icon: name, kind, disabled = false, title, busy = false, type = 'button', small, key, bare = false }) {
  return h('button', {
    type, key, onclick: busy ? undefined : onclick, disabled, 'aria-disabled': busy ? 'true' : undefined, title: title ?? (bare ? label : undefined), 'aria-label': bare ? label : undefined,
    'aria-busy': busy ? 'true' : undefined, class: classes('button', kind && `button--${kind}`, small && 'button--small', bare && 'button--bare'),
  }, name && icon(name), bare ? null : label);
}

/** A button for an action that changes something. An account that may only read cannot press it, and sees why. @param {Button} told */
export function actionButton(told) {
  return mayChange() ? button(told) : button({ ...told, disabled: true, title: t('read_only.reason') });
}

/** A link that looks like a button. @param {{label: string, href: string, icon?: string, kind?: string, small?: boolean}} told */
export function linkButton({ label, href, icon: name, kind, small }) {
  return h('a', { href, class: classes('button', kind && `button--${kind}`, small && 'button--small') }, name && icon(name), label);
}
