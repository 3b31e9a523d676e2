// The topics with the most ready and leased jobs, for the overview.

import { h } from '../dom.js';
import { count, now, rate, span } from '../format.js';
import { t } from '../i18n.js';
import { live } from '../live.js';
import { topicBadges } from './badge.js';
import { card } from './card.js';
import { topicHref } from './search.js';
import { table } from './table.js';

const MOST = 8;

/** For how long the oldest ready job of a topic has been due, in milliseconds. @param {any} topic @returns {?number} */
export function oldest(topic) {
  return topic.ready > 0 && topic.oldest_ready_ms ? Math.max(0, now() - topic.oldest_ready_ms) : null;
}

/** A bar that shows how many jobs of a topic are in each state. @param {any} topic */
export function stateBar(topic) {
  const states = ['delayed', 'ready', 'leased', 'dead'];
  const all = states.reduce((sum, state) => sum + topic[state], 0);
  const label = states.map((state) => `${t(`state.${state}`)} ${count(topic[state])}`).join(', ');
  return h('span', { class: 'state-bar', role: 'img', 'aria-label': label, title: label },
    all > 0 && states.filter((state) => topic[state] > 0).map((state) => h('i', { key: state, class: `fill--${state === 'dead' ? 'bad' : state}`, style: { width: `${(topic[state] / all) * 100}%` } })));
}

/** The card of the busiest topics. */
export function topTopics() {
  const busy = [...live.topics.values()].sort((a, b) => (b.ready + b.leased - a.ready - a.leased) || (b.delayed - a.delayed) || a.topic.localeCompare(b.topic)).slice(0, MOST);
  const number = (state) => ({ key: state, label: t(`state.${state}`), right: true, view: (topic) => h('span', { class: topic[state] === 0 ? 'zero' : '' }, count(topic[state])) });
  return card({ title: t('overview.topics'), key: 'topics', flush: true, actions: h('a', { href: '#/topics' }, t('all')) }, table({
    label: t('overview.topics'), rows: busy, rowKey: (topic) => topic.topic,
    columns: [
      { key: 'topic', label: t('topic'), main: true, view: (topic) => h('a', { class: 'mono name', href: topicHref(topic.topic) }, topic.topic) },
      { key: 'state', label: t('state'), view: topicBadges },
      number('delayed'), number('ready'), number('leased'), number('dead'),
      { key: 'oldest', label: t('topics.oldest'), right: true, view: (topic) => h('span', { class: oldest(topic) ? '' : 'zero' }, span(oldest(topic))) },
      { key: 'in', label: t('figure.in'), right: true, view: (topic) => h('span', { class: topic.inn ? '' : 'zero' }, `${rate(topic.inn)}${t('unit.per_s')}`) },
      { key: 'out', label: t('figure.out'), right: true, view: (topic) => h('span', { class: topic.out ? '' : 'zero' }, `${rate(topic.out)}${t('unit.per_s')}`) },
      { key: 'bar', label: t('topics.spread'), hidden: true, view: stateBar },
    ],
  }));
}
