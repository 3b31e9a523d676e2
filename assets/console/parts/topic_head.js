// The head of all pages of one topic: its name and state, the actions on it, and the links to its other pages.

import { h } from '../dom.js';
import { count } from '../format.js';
import { t } from '../i18n.js';
import { live } from '../live.js';
import { mayChange } from '../session.js';
import { tag, topicBadges } from './badge.js';
import { addJob } from './add_job.js';
import { button, linkButton } from './button.js';
import { pageHead } from './card.js';
import { topicHref } from './search.js';
import { pauseButton, topicMenu } from './topic_actions.js';

/** The present state of a topic: its settings, if they could be read, and its counts. @param {string} name @param {?any} set */
export function merged(name, set) {
  return { topic: name, delayed: 0, ready: 0, leased: 0, dead: 0, oldest_ready_ms: null, ...set, name, ...live.topics.get(name) };
}

/**
 * @param {{name: string, set: ?any, missing?: boolean, tab: string, reload: () => void}} told
 */
export function topicHead({ name, set, missing = false, tab, reload }) {
  const topic = { ...merged(name, set), ...(missing && { registered: false }) };
  const tabs = [
    ['', t('tab.overview')],
    ['jobs', t('tab.jobs'), topic.delayed + topic.ready + topic.leased],
    ['dead', t('tab.dead'), topic.dead],
    ['records', t('tab.records')],
    !missing && mayChange() && ['test', t('tab.test')],
    !missing && ['edit', t('tab.settings')],
  ].filter(Boolean);
  return [
    pageHead({
      title: name, mono: true, back: { href: '#/topics', label: t('nav.topics') }, about: set?.title || undefined,
      badges: h('span', { class: 'badges' }, topicBadges(topic), set?.mode === 'pull' && tag('plain', t('state.pull'))),
      actions: [
        !missing && mayChange() && button({ key: 'add', label: t('job.add'), icon: 'plus', kind: 'primary', onclick: () => addJob(name, reload) }),
        pauseButton(topic, reload),
        !missing && mayChange() && linkButton({ label: t('tab.test'), href: topicHref(name, 'test'), icon: 'send' }),
        topicMenu(topic, reload, () => { location.hash = '#/topics'; })],
    }),
    h('nav', { class: 'tabs', 'aria-label': t('tab'), key: 'tabs' }, tabs.map(([path, label, n]) => h('a', {
      key: path, class: 'tab', href: path === '' ? topicHref(name) : topicHref(name, path), 'aria-current': tab === path ? 'page' : undefined,
    }, label, n > 0 && h('span', { class: 'tab-count' }, count(n)))))];
}
