// The daemon's processes, by generation: the state of each, how often it was restarted and why, its memory and
// processor time. This page changes nothing, because the master controls the processes.

import { get } from '../api.js';
import { h } from '../dom.js';
import { bytes, count, percent, span } from '../format.js';
import { t } from '../i18n.js';
import { live } from '../live.js';
import { badge, tag } from '../parts/badge.js';
import { card, facts, pageHead } from '../parts/card.js';
import { loaded, note } from '../parts/problem.js';
import { table } from '../parts/table.js';
import { ago, when } from '../parts/time.js';

/** The share of a processor that each process took between two readings. */
const cpu = { at_ms: 0, was: new Map(), share: new Map() };

function measure(status) {
  const at_ms = Date.now();
  if (at_ms - cpu.at_ms < 900) return;
  for (const p of status.processes) {
    const was = cpu.was.get(p.pid);
    if (was !== undefined && p.cpu_ms !== null) cpu.share.set(p.pid, Math.max(0, (p.cpu_ms - was) / (at_ms - cpu.at_ms)));
  }
  Object.assign(cpu, { at_ms, was: new Map(status.processes.map((p) => [p.pid, p.cpu_ms])) });
}

function processTable(processes, label) {
  return table({
    key: 'table', label, rows: processes, rowKey: (p) => p.name,
    columns: [
      { key: 'name', label: t('processes.name'), main: true, view: (p) => h('span', { class: 'mono' }, p.name) },
      { key: 'state', label: t('state'), view: (p) => h('span', { class: 'badges' }, badge(p.state, t(`process.${p.state}.why`)), p.overdue_ms > 0 && tag('bad', t('processes.overdue', { span: span(p.overdue_ms) }))) },
      { key: 'pid', label: 'pid', right: true, view: (p) => h('span', { class: 'figures' }, p.pid ?? '–') },
      { key: 'started', label: t('processes.started'), view: (p) => ago(p.started_ms) },
      { key: 'memory', label: t('memory'), right: true, view: (p) => bytes(p.memory_bytes) },
      { key: 'cpu', label: t('processes.cpu'), right: true, view: (p) => h('span', { title: p.cpu_ms === null ? undefined : t('processes.cpu.all', { span: span(p.cpu_ms) }) }, cpu.share.has(p.pid) ? percent(cpu.share.get(p.pid)) : '–') },
      { key: 'restarts', label: t('processes.restarts'), right: true, view: (p) => h('span', { class: p.restarts === 0 ? 'zero' : 'warn-text' }, count(p.restarts)) },
      { key: 'end', label: t('processes.last_end'), view: (p) => (p.last_end ? h('span', { class: 'two-lines' }, h('span', null, p.last_end.reason), h('span', { class: 'soft' }, ago(p.last_end.at_ms))) : h('span', { class: 'zero' }, '–')) },
    ],
  });
}

function master(status) {
  const { renewal } = status;
  return card({ title: 'dq-master', key: 'master' },
    renewal?.refused && note('warn', h('p', null, t(`processes.renewal.${renewal.kind}`), ' ', t('processes.refused', { why: renewal.refused }))),
    h('div', { class: 'grid grid--2 grid--tight', key: 'facts' },
      facts([
        [t('processes.phase'), badge(status.phase, t(`phase.${status.phase}.why`))],
        [t('version'), status.version],
        [t('processes.instance'), status.instance],
        ['pid', String(status.pid)],
      ], 'left'),
      facts([
        [t('processes.started'), when(status.started_ms)],
        [t('processes.generation'), count(status.generation)],
        [t('processes.renewal'), renewal ? h('span', null, `${t(`processes.renewal.${renewal.kind}`)} `, ago(renewal.at_ms), renewal.refused ? '' : ` · ${t('fine')}`) : t('processes.renewal.none')],
        [t('processes.listening'), h('span', { class: 'mono break' }, status.listening.map(([what, where]) => `${what} ${where}`).join(', '))],
      ], 'right')));
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function processes({ resource }) {
  const it = resource(async (signal) => {
    const status = await get('/v1/processes', signal);
    measure(status);
    return status;
  }, 3000);
  return {
    title: () => t('nav.processes'),
    view: () => [
      pageHead({ title: t('nav.processes'), about: t('processes.about') }),
      loaded(it, (read) => {
        const status = live.processes && live.connected ? { ...live.processes, processes: read.processes } : read;
        const generations = [...new Set(status.processes.map((p) => p.generation))].sort((a, b) => b - a);
        return h('div', { class: 'stack', key: 'all' }, master(status), generations.map((generation) => {
          const title = generation === status.generation ? t('processes.generation.now', { n: generation }) : t('processes.generation.other', { n: generation });
          return card({ title, key: `generation-${generation}`, flush: true }, processTable(status.processes.filter((p) => p.generation === generation), title));
        }));
      })],
  };
}
