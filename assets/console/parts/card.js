// The pieces that pages are laid out with: heads, cards, lists of facts. They hold no state.

import { classes, h } from '../dom.js';

/** The head of a page: its only h1, a text about the page, and its actions. @param {{title: any, about?: any, actions?: any, back?: {href: string, label: string}, badges?: any, mono?: boolean}} told */
export function pageHead({ title, about, actions, back, badges, mono }) {
  return h('div', { class: 'page-head', key: 'head' },
    h('div', { class: 'page-head-text' },
      back && h('a', { class: 'back', href: back.href }, `← ${back.label}`),
      h('div', { class: 'page-title' }, h('h1', { tabindex: '-1', class: mono ? 'mono' : '' }, title), badges),
      about && h('p', { class: 'page-about' }, about)),
    actions && h('div', { class: 'page-actions' }, actions));
}

/** A card. @param {{title?: any, key: string, actions?: any, help?: any, flush?: boolean, tone?: string}} told @param {...any} children */
export function card({ title, key, actions, help, flush = false, tone }, ...children) {
  return h('section', { class: classes('card', flush && 'card--flush', tone && `card--${tone}`), key, 'aria-labelledby': title ? `card-${key}` : undefined },
    title && h('div', { class: 'card-head' }, h('div', null, h('h2', { id: `card-${key}`, class: 'card-title' }, title), help && h('p', { class: 'card-help' }, help)), actions && h('div', { class: 'card-actions' }, actions)),
    h('div', { class: 'card-body' }, children));
}

/** A list of names with their values. @param {[string, any, string?][]} list name, value, class; entries without a value are left out @param {string} [key] */
export function facts(list, key = 'facts') {
  return h('dl', { class: 'facts', key }, list.filter((fact) => fact && fact[1] !== null && fact[1] !== undefined && fact[1] !== '' && fact[1] !== false).map(([name, value, more]) =>
    h('div', { class: classes('fact', more), key: name }, h('dt', null, name), h('dd', null, value))));
}

/** A figure with its name. @param {{key: string, label: string, value: any, tone?: string, more?: any, href?: string}} told */
export function figure({ key, label, value, tone, more, href }) {
  return h(href ? 'a' : 'div', { class: classes('figure', href && 'figure--link'), key, href }, h('span', { class: 'figure-label' }, tone && h('i', { class: `swatch swatch--${tone}` }), label), h('span', { class: 'figure-value' }, value), more && h('span', { class: 'figure-more soft' }, more));
}
