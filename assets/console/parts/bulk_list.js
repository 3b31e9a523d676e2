// The operations on many jobs of a topic: how far each has come, how it ended, and a button that stops it.

import { path, post } from '../api.js';
import { h } from '../dom.js';
import { count } from '../format.js';
import { t } from '../i18n.js';
import { redraw } from '../redraw.js';
import { tag } from './badge.js';
import { actionButton } from './button.js';
import { card } from './card.js';
import { empty, loaded } from './problem.js';
import { table } from './table.js';
import { ago } from './time.js';
import { say, sayProblem } from './toast.js';

const TONES = { running: 'delayed', stopping: 'ready', done: 'good', stopped: 'plain', failed: 'bad' };
const isRunning = (one) => one.ended_ms === null;
const stopping = new Set();

async function stop(one, reload) {
  stopping.add(one.number);
  redraw();
  try {
    await post(path('jobs', 'bulk', `${one.number}`, 'stop'));
    say(t('bulk.stopping', { n: one.number }));
  } catch (problem) {
    sayProblem(problem);
  }
  stopping.delete(one.number);
  reload();
}

function progress(one) {
  const told = `${t('bulk.changed', { n: count(one.changed) })}${one.skipped > 0 ? `, ${t('bulk.skipped', { n: count(one.skipped) })}` : ''}${one.unclear > 0 ? `, ${t('bulk.unclear', { n: count(one.unclear) })}` : ''}`;
  return h('span', { class: 'two-lines' },
    // The number of jobs is not known before the end. So the bar only shows that the operation is still running.
    isRunning(one) && h('progress', { key: 'bar', 'aria-label': told }),
    told,
    one.error && h('span', { class: 'soft', key: 'why' }, isRunning(one) ? t('bulk.waits', { why: one.error }) : one.error));
}

const columns = (reload) => [
  { key: 'number', label: t('bulk.number'), main: true, view: (one) => `${one.number}` },
  { key: 'operation', label: t('bulk.operation'), view: (one) => h('span', { class: 'two-lines' }, t(`bulk.${one.operation}`), h('span', { class: 'soft mono' }, Object.entries(one.filter).map(([name, value]) => `${name}=${value}`).join(' '))) },
  { key: 'state', label: t('state'), view: (one) => tag(TONES[one.state] ?? 'plain', t(`bulk.state.${one.state}`)) },
  { key: 'progress', label: t('bulk.progress'), view: progress },
  { key: 'when', label: t('bulk.began'), view: (one) => ago(one.started_ms) },
  { key: 'by', label: t('bulk.by_whom'), view: (one) => one.by },
  { key: 'stop', label: t('actions'), hidden: true, view: (one) => isRunning(one) && actionButton({ label: t('bulk.stop'), small: true, busy: stopping.has(one.number), disabled: one.state === 'stopping', onclick: () => stop(one, reload) }) },
];

/** @param {import('../resource.js').Resource<any[]>} it */
export function operations(it) {
  return card({ key: 'operations', title: t('bulk.operations'), flush: true }, loaded(it, (rows) => (rows.length === 0
    ? empty({ title: t('bulk.none'), calm: true })
    : table({ key: 'operations', label: t('bulk.operations'), columns: columns(it.reload), rows, rowKey: (one) => one.number }))));
}
