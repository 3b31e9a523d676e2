// Badges show states in the same way on all pages: with a shape, a colour, and always the word.

import { h } from '../dom.js';
import { has, t } from '../i18n.js';

const TONES = {
  delayed: 'delayed', ready: 'ready', leased: 'leased', delivered: 'good', dead: 'bad',
  up: 'good', starting: 'ready', waiting: 'ready', draining: 'delayed', killed: 'bad', gone: 'bad',
  steady: 'good', checking: 'delayed', rolling: 'delayed', stopping: 'ready',
  online: 'good', offline: 'plain', paused: 'ready', open: 'bad', half_open: 'ready', unregistered: 'plain',
  answers: 'good', away: 'bad', older: 'ready', joining: 'delayed', leaving: 'delayed', master: 'good', slave: 'plain',
  accepted: 'good', failed: 'ready', refused: 'bad', file: 'plain', pull: 'plain',
};

/** A badge with the tone that the caller chooses. @param {string} tone @param {string} text @param {string} [title] */
export function tag(tone, text, title) {
  return h('span', { class: `badge badge--${tone}`, title }, h('i', { class: 'badge-dot' }), text);
}

/** The badge of a state. @param {string} state @param {string} [title] */
export function badge(state, title) {
  const key = `state.${state}`;
  return tag(TONES[state] ?? 'plain', has(key) ? t(key) : state, title);
}

/**
 * The badges of everything that holds a topic's jobs back, the most important one first. If nothing
 * does, the badge `online`, or `unknown`.
 * @param {{registered?: boolean, problem?: ?string, paused?: ?boolean, circuit?: ?string, status?: ?string}} topic
 */
export function topicBadges(topic) {
  const all = [
    topic.registered === false && badge('unregistered', t('state.unregistered.why')),
    topic.problem && tag('bad', t('state.problem'), topic.problem),
    topic.paused && badge('paused', t('state.paused.why')),
    topic.circuit === 'open' && tag('bad', t('state.open'), t('state.open.why')),
    topic.circuit === 'half_open' && tag('ready', t('state.half_open'), t('state.half_open.why')),
    topic.status === 'offline' && badge('offline', t('state.offline.why')),
  ].filter(Boolean);
  const isKnown = topic.paused !== null && topic.circuit !== null;
  const else_ = isKnown ? badge('online', t('state.online.why')) : badge('unknown', t('state.unknown.why'));
  return h('span', { class: 'badges' }, all.length > 0 ? all : else_);
}
