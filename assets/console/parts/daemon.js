// Processes and nodes in short, for the overview. Their own pages show more.

import { h } from '../dom.js';
import { bytes, count } from '../format.js';
import { t } from '../i18n.js';
import { badge } from './badge.js';
import { card } from './card.js';
import { empty } from './problem.js';
import { ago } from './time.js';

/** @param {any} status the answer of `GET /v1/processes` */
export function processesInShort(status) {
  const more = h('a', { href: '#/processes' }, t('all'));
  if (!status) return card({ title: t('nav.processes'), key: 'processes', actions: more }, empty({ title: t('processes.unknown') }));
  const memory = status.processes.reduce((sum, p) => sum + (p.memory_bytes ?? 0), 0);
  // Two generations both report all restarts of a slot. So the larger number is taken.
  const bySlot = new Map();
  for (const p of status.processes) bySlot.set(p.name, Math.max(bySlot.get(p.name) ?? 0, p.restarts));
  const restarts = [...bySlot.values()].reduce((sum, n) => sum + n, 0);
  return card({ title: t('nav.processes'), key: 'processes', actions: more },
    h('p', { class: 'line' }, badge(status.phase), h('span', { class: 'soft' }, t('processes.short', { generation: status.generation, memory: bytes(memory), restarts: count(restarts) }), ' · ', t('processes.since'), ' ', ago(status.started_ms))),
    h('ul', { class: 'chips' }, status.processes.map((p) => h('li', { key: `${p.generation} ${p.name}`, class: 'chip', title: `${t(`state.${p.state}`)}, ${bytes(p.memory_bytes)}` },
      h('i', { class: `chip-dot chip-dot--${p.state === 'up' ? 'good' : p.state === 'gone' || p.state === 'killed' ? 'bad' : 'warn'}` }), p.name, p.state !== 'up' && h('span', { class: 'soft' }, ` ${t(`state.${p.state}`)}`)))));
}

/** @param {?any[]} nodes @param {string[]} away */
export function nodesInShort(nodes, away) {
  const more = h('a', { href: '#/nodes' }, t('all'));
  if (!nodes) return card({ title: t('nav.nodes'), key: 'nodes', actions: more }, empty({ title: t('nodes.unknown') }));
  return card({ title: t('nav.nodes'), key: 'nodes', actions: more }, h('ul', { class: 'rows' }, nodes.map((node) => h('li', { key: node.name, class: 'row' },
    h('span', { class: 'mono' }, node.name), !node.answers || away.includes(node.name) ? badge('away', node.detail ?? '') : [badge(node.is_older ? 'older' : 'answers'), node.part !== 'home' && badge(node.part)], h('span', { class: 'gap' }),
    h('span', { class: 'soft figures' }, node.ready === null ? '–' : t('nodes.jobs', { n: count(node.delayed + node.ready + node.leased) }))))));
}
