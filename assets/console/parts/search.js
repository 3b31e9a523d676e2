// The search box. For a topic, or a topic and a job's id, it opens the page of the topic or job. It suggests known
// topics, and does not search itself. Another page searches all topics for an id, the beginning of an id, or a tag.

import { classes, h } from '../dom.js';
import { t } from '../i18n.js';
import { live } from '../live.js';
import { redraw } from '../redraw.js';
import { icon } from './icon.js';

const MOST = 8;
const box = { text: '', open: false, at: 0 };

/** The address of a topic's page. @param {string} topic @param {...string} more */
export function topicHref(topic, ...more) {
  return `#/topics/${[topic, ...more].map(encodeURIComponent).join('/')}`;
}

/** The address of a job's page. @param {string} topic @param {string} id */
export function jobHref(topic, id) {
  return topicHref(topic, 'jobs', id);
}

function suggestions() {
  const text = box.text.trim();
  const found = (name, more) => ({ key: `/${name}`, href: `#/find?${name}=${encodeURIComponent(text)}`, text, more: t(more) });
  return text === '' ? [] : [...known(text), found('id', 'search.find'), found('id_prefix', 'search.prefix'), found('tag', 'search.tag')];
}

function known(text) {
  const cut = text.indexOf('/');
  const names = [...live.topics.keys()].sort();
  if (cut > 0 && cut < text.length - 1) {
    const [topic, id] = [text.slice(0, cut), text.slice(cut + 1)];
    const topics = names.includes(topic) ? [topic] : names.filter((name) => name.includes(topic)).slice(0, MOST);
    return topics.map((name) => ({ key: name, href: jobHref(name, id), text: name, more: t('search.job', { id }) }));
  }
  const wanted = text.replace(/\/$/, '').toLowerCase();
  const found = names.filter((name) => name.toLowerCase().includes(wanted));
  found.sort((a, b) => Number(b.toLowerCase().startsWith(wanted)) - Number(a.toLowerCase().startsWith(wanted)));
  return found.slice(0, MOST).map((name) => ({ key: name, href: topicHref(name), text: name, more: t('search.topic') }));
}

function go(suggestion) {
  Object.assign(box, { text: '', open: false, at: 0 });
  document.getElementById('search')?.blur();
  location.hash = suggestion.href;
  redraw();
}

function pressed(event, found) {
  if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
    event.preventDefault();
    if (found.length > 0) box.at = (box.at + (event.key === 'ArrowDown' ? 1 : found.length - 1)) % found.length;
  } else if (event.key === 'Enter' && found.length > 0) {
    event.preventDefault();
    return go(found[Math.min(box.at, found.length - 1)]);
  } else if (event.key === 'Escape') {
    if (box.text === '') event.target.blur();
    Object.assign(box, { text: '', open: false });
  }
  redraw();
}

/** The box and its suggestions. */
export function searchBox() {
  const found = box.open ? suggestions() : [];
  const at = Math.min(box.at, found.length - 1);
  const isOpen = found.length > 0;
  return h('div', { class: 'search', role: 'search', key: 'search' }, icon('search'),
    h('label', { class: 'sr', for: 'search' }, t('search')),
    h('input', {
      id: 'search', class: 'search-input', type: 'text', role: 'combobox', autocomplete: 'off', spellcheck: 'false', placeholder: t('search.hint'), value: box.text,
      'aria-expanded': isOpen ? 'true' : 'false', 'aria-controls': 'search-list', 'aria-autocomplete': 'list', 'aria-activedescendant': isOpen ? `search-${at}` : undefined,
      oninput: (event) => { Object.assign(box, { text: event.target.value, open: true, at: 0 }); redraw(); },
      onkeydown: (event) => pressed(event, found),
      onfocus: () => { box.open = true; redraw(); }, onblur: () => { box.open = false; redraw(); },
    }),
    h('kbd', { class: 'search-key', 'aria-hidden': 'true' }, '/'),
    h('ul', { id: 'search-list', class: 'search-list', role: 'listbox', 'aria-label': t('search'), hidden: !isOpen },
      found.map((one, i) => h('li', {
        key: one.key, id: `search-${i}`, role: 'option', class: classes('search-option', i === at && 'search-option--on'), 'aria-selected': i === at ? 'true' : 'false',
        onmousedown: (event) => { event.preventDefault(); go(one); },
      }, h('span', { class: 'mono' }, one.text), h('span', { class: 'soft' }, one.more)))));
}
