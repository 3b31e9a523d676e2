// The actions on a whole topic, for all pages that show a topic. Each action says whether it has succeeded.

import { h } from '../dom.js';
import { change, path, post, query, remove } from '../api.js';
import { count } from '../format.js';
import { t } from '../i18n.js';
import { live } from '../live.js';
import { mayChange } from '../session.js';
import { actionButton } from './button.js';
import { confirm } from './confirm.js';
import { menu } from './menu.js';
import { topicHref } from './search.js';
import { say, sayProblem } from './toast.js';

async function done(act, text, after) {
  try {
    await act();
    say(text);
    after?.();
  } catch (problem) {
    sayProblem(problem);
  }
}

/** Pauses a topic. @param {string} topic @param {() => void} [after] */
export function pause(topic, after) {
  return done(() => post(path('topics', topic, 'pause')), t('topic.paused', { topic }), after);
}

/** Resumes a topic. @param {string} topic @param {() => void} [after] */
export function resume(topic, after) {
  return done(() => post(path('topics', topic, 'resume')), t('topic.resumed', { topic }), after);
}

/** Makes a topic accept jobs (`online`) or refuse them (`offline`). @param {string} topic @param {'online' | 'offline'} status @param {() => void} [after] */
function setStatus(topic, status, after) {
  return done(() => change(path('topics', topic), { status }), t(`topic.is_${status}`, { topic }), after);
}

/** Removes a topic. If it has very many jobs, each request removes a part of them, so the request is repeated. @param {string} topic @param {?string} jobs */
async function removeTopic(topic, jobs) {
  for (;;) {
    try {
      return await remove(path('topics', topic) + query({ jobs }));
    } catch (problem) {
      if (problem.code !== 'purge_unfinished') throw problem;
    }
  }
}

function jobsOf(topic) {
  const now = live.topics.get(topic);
  return { pending: now ? now.delayed + now.ready + now.leased : 0, dead: now?.dead ?? 0 };
}

/** Removes a topic, after the user has typed its name and chosen what happens to its jobs. @param {string} topic @param {() => void} after */
function deleteTopic(topic, after) {
  const { pending, dead } = jobsOf(topic);
  confirm({
    title: t('topic.delete.title', { topic }), action: t('topic.delete'), typed: topic,
    text: [h('p', { key: 'what' }, t('topic.delete.text')), pending + dead > 0 && h('p', { key: 'jobs' }, h('strong', null, t('topic.delete.jobs', { pending: count(pending), dead: count(dead) })))],
    choice: {
      label: t('topic.delete.choice'), options: [['keep', t('topic.delete.keep')], ['purge', t('topic.delete.purge')]],
      isNeeded: (problem) => pending + dead > 0 || problem?.code === 'topic_has_jobs',
    },
    act: async (_, jobs) => {
      await removeTopic(topic, jobs);
      say(t('topic.deleted', { topic }));
      after();
    },
  });
}

/** Removes the jobs of a topic that is not registered. @param {string} topic @param {() => void} after */
function purgeTopic(topic, after) {
  const { pending, dead } = jobsOf(topic);
  confirm({
    title: t('topic.purge.title', { topic }), action: t('topic.purge'), typed: topic,
    text: h('p', null, h('strong', null, t('topic.delete.jobs', { pending: count(pending), dead: count(dead) })), ' ', t('topic.purge.text')),
    act: async () => {
      await removeTopic(topic, 'purge');
      say(t('topic.purged', { topic }));
      after();
    },
  });
}

const isHeld = (topic) => Boolean(topic.paused) || (topic.circuit && topic.circuit !== 'closed');

/** The button that pauses or resumes. @param {any} topic @param {() => void} [after] */
export function pauseButton(topic, after) {
  const name = topic.topic ?? topic.name;
  return isHeld(topic)
    ? actionButton({ key: 'hold', label: t('topic.resume'), icon: 'play', onclick: () => resume(name, after) })
    : actionButton({ key: 'hold', label: t('topic.pause'), icon: 'pause', onclick: () => pause(name, after) });
}

/** The menu of a topic. @param {any} topic with its settings, if they are known @param {() => void} after @param {() => void} [gone] */
export function topicMenu(topic, after, gone) {
  const name = topic.topic ?? topic.name;
  const may = mayChange();
  const isFile = topic.source === 'file';
  const why = isFile ? t('topic.from_file') : undefined;
  const registered = topic.registered !== false;
  return menu({
    label: t('topic.menu', { topic: name }), key: `menu-${name}`,
    items: [
      { label: t('tab.jobs'), href: topicHref(name, 'jobs'), icon: 'topics' },
      { label: t('tab.dead'), href: topicHref(name, 'dead'), icon: 'dead' },
      registered && may && { label: t('tab.test'), href: topicHref(name, 'test'), icon: 'send' },
      may && (isHeld(topic)
        ? { label: t('topic.resume'), icon: 'play', onclick: () => resume(name, after) }
        : registered && { label: t('topic.pause'), icon: 'pause', onclick: () => pause(name, after) }),
      registered && may && (topic.status === 'offline'
        ? { label: t('topic.online'), icon: 'check', disabled: isFile, title: why, onclick: () => setStatus(name, 'online', after) }
        : { label: t('topic.offline'), icon: 'close', disabled: isFile, title: why, onclick: () => setStatus(name, 'offline', after) }),
      registered && { label: may && !isFile ? t('topic.edit') : t('topic.settings'), href: topicHref(name, 'edit'), icon: 'edit' },
      registered && may && { label: t('topic.delete'), icon: 'trash', danger: true, disabled: isFile, title: why, onclick: () => deleteTopic(name, gone ?? after) },
      !registered && may && { label: t('topic.purge'), icon: 'trash', danger: true, onclick: () => purgeTopic(name, gone ?? after) },
    ],
  });
}
