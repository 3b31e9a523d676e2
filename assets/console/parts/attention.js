// What needs an operator: gathered from alerts, dead letters, topics, processes and nodes, the worst first. Each entry
// only links to another page.

import { h } from '../dom.js';
import { count } from '../format.js';
import { has, t } from '../i18n.js';
import { live } from '../live.js';
import { alertText } from '../reason.js';
import { card } from './card.js';
import { icon } from './icon.js';
import { topicHref } from './search.js';
import { ago } from './time.js';

const SHOWN = 8;

/** The name of an alert for people. @param {{name: string, what?: string}} alert */
export function alertName(alert) {
  const key = `alert.${alert.name}`;
  return has(key) ? t(key) : alert.what || alert.name;
}

function ofAlerts() {
  return (live.alerts ?? []).map((alert) => ({
    key: `alert-${alert.name}-${alert.node}-${alert.topic}-${alert.process}`, tone: alert.loses_jobs ? 'bad' : 'warn',
    text: [alertName(alert), alert.topic ?? alert.node ?? alert.process].filter(Boolean).join(': '), detail: alertText(alert), since: alert.since_ms, href: alert.topic ? topicHref(alert.topic) : '#/alerts',
  }));
}

function ofTopics(today) {
  const all = [];
  const diedToday = new Map((today?.topics ?? []).map((topic) => [topic.topic, (topic.days ?? []).reduce((sum, day) => sum + day.dead, 0)]));
  for (const topic of live.topics.values()) {
    const { topic: name } = topic;
    const died = diedToday.get(name) ?? 0;
    if (topic.circuit === 'open') all.push({ key: `circuit-${name}`, tone: 'bad', text: t('attention.circuit', { topic: name }), detail: t('attention.waiting', { n: count(topic.ready) }), href: topicHref(name) });
    if (died > 0 && topic.dead > 0) all.push({ key: `dead-${name}`, tone: 'warn', text: t('attention.dead', { topic: name, n: count(died) }), detail: t('attention.dead.all', { n: count(topic.dead) }), href: topicHref(name, 'dead') });
    if (topic.paused) all.push({ key: `paused-${name}`, tone: 'warn', text: t('attention.paused', { topic: name }), detail: t('attention.waiting', { n: count(topic.ready) }), href: topicHref(name) });
    if (topic.registered === false && topic.ready + topic.delayed > 0) all.push({ key: `unregistered-${name}`, tone: 'warn', text: t('attention.unregistered', { topic: name }), detail: t('attention.waiting', { n: count(topic.ready + topic.delayed) }), href: topicHref(name) });
  }
  return all;
}

function ofDaemon() {
  const { processes, nodes, away } = live;
  const down = (processes?.processes ?? []).filter((p) => p.generation === processes.generation && p.state !== 'up');
  const notAnswering = (nodes ?? []).filter((node) => !node.answers).map((node) => node.name);
  const all = [...new Set([...notAnswering, ...away])];
  return [
    ...(live.told && !processes ? [{ key: 'master', tone: 'bad', text: t('attention.master'), href: '#/processes' }] : []),
    ...all.map((name) => ({ key: `node-${name}`, tone: 'bad', text: t('attention.node', { node: name }), detail: nodes?.find((node) => node.name === name)?.detail, href: '#/nodes' })),
    ...down.map((p) => ({ key: `process-${p.name}`, tone: 'warn', text: t('attention.process', { process: p.name }), detail: t(`state.${p.state}`), href: '#/processes' }))];
}

/** The alerts that report the same problem as an entry of this page, each with the key of that entry. */
const SAME = { circuit_open: (a) => `circuit-${a.topic}`, jobs_stranded: (a) => `unregistered-${a.topic}`, node_down: (a) => `node-${a.node}` };

function withoutRepeats(items) {
  const told = new Set((live.alerts ?? []).map((alert) => SAME[alert.name]?.(alert)));
  return items.filter((item) => !told.has(item.key));
}

/**
 * The first card of the overview.
 * @param {?{topics: any[]}} today the answer of `GET /v1/stats?days=1`
 */
export function attentionCard(today) {
  const items = withoutRepeats([...ofAlerts(), ...ofDaemon(), ...ofTopics(today)]);
  items.sort((a, b) => Number(b.tone === 'bad') - Number(a.tone === 'bad'));
  if (items.length === 0) {
    return h('p', { class: 'calm', key: 'attention' }, icon('check'), h('span', null, t('attention.none')));
  }
  const shown = items.slice(0, SHOWN);
  return card({ title: t('attention'), key: 'attention', flush: true, tone: items[0].tone === 'bad' ? 'bad' : 'warn' },
    h('ul', { class: 'attention' }, shown.map((item) => h('li', { key: item.key },
      h('a', { class: `attention-item attention-item--${item.tone}`, href: item.href },
        icon('warn'), h('span', { class: 'attention-text' }, h('b', null, item.text), item.detail && h('span', { class: 'soft' }, item.detail)),
        item.since && h('span', { class: 'soft attention-since' }, ago(item.since)), icon('right'))))),
    items.length > SHOWN && h('p', { class: 'card-more' }, h('a', { href: '#/alerts' }, t('attention.more', { n: items.length - SHOWN }))));
}
