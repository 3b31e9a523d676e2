// The nodes of the store: which of them have jobs, whether each answers, what it contains, and the state of its servers
// and its file. This page changes nothing.

import { get } from '../api.js';
import { h } from '../dom.js';
import { bytes, count, percent } from '../format.js';
import { t } from '../i18n.js';
import { live } from '../live.js';
import { alertName } from '../parts/attention.js';
import { badge, tag } from '../parts/badge.js';
import { card, facts, figure, pageHead } from '../parts/card.js';
import { loaded, note } from '../parts/problem.js';
import { table } from '../parts/table.js';
import { when } from '../parts/time.js';
import { stateBar } from '../parts/top_topics.js';
import { alertText } from '../reason.js';

function serverTable(node) {
  const ms = (n) => (n === null || n === undefined ? '–' : `${n < 10 ? n.toFixed(1) : Math.round(n)} ms`);
  return table({
    key: 'servers', label: t('nodes.servers', { node: node.name }), rows: node.servers, rowKey: (server) => server.address,
    columns: [
      { key: 'address', label: t('nodes.address'), main: true, view: (server) => h('span', { class: 'mono' }, server.address) },
      { key: 'role', label: t('nodes.role'), view: (server) => (server.role ? badge(server.role) : tag('bad', t('state.away'))) },
      { key: 'version', label: t('version'), view: (server) => server.version ?? '–' },
      { key: 'memory', label: t('memory'), right: true, view: (server) => h('span', null, bytes(server.memory_bytes), server.maxmemory_bytes > 0 && h('span', { class: 'soft' }, ` / ${bytes(server.maxmemory_bytes)} (${percent(server.memory_bytes / server.maxmemory_bytes)})`)) },
      { key: 'policy', label: t('nodes.policy'), view: (server) => (server.policy && server.policy !== 'noeviction' ? tag('bad', server.policy, t('nodes.policy.bad')) : server.policy ?? '–') },
      { key: 'aof', label: t('nodes.aof'), view: (server) => (server.aof === undefined || server.aof === null ? '–' : server.aof ? tag('good', t('on')) : tag('ready', t('off'), t('nodes.aof.off'))) },
      { key: 'save', label: t('nodes.save'), view: (server) => (server.last_save_ok === undefined || server.last_save_ok === null ? '–' : server.last_save_ok ? t('fine') : tag('bad', t('failed'))) },
      { key: 'latency', label: t('nodes.latency'), right: true, view: (server) => ms(server.latency_ms) },
      { key: 'detail', label: t('detail'), view: (server) => server.detail ?? '' },
    ],
  });
}

function fileFacts(file) {
  return facts([
    [t('nodes.file'), h('span', { class: 'mono break' }, file.path)],
    [t('nodes.file.size'), bytes(file.bytes)],
    [t('nodes.file.log'), bytes(file.log_bytes)],
    [t('nodes.file.free'), bytes(file.disk_free_bytes)],
  ], 'file');
}

/** The card that says which nodes have jobs. @param {{number: number, nodes: string[], goal: ?string[]}} set */
function setCard(set) {
  const names = (list) => list && h('span', { class: 'mono break' }, list.join(', '));
  // The name of a node has no dot. So the card of a node never has the key `.set`.
  return card({ title: t('nodes.set'), key: '.set', help: t('nodes.set.help') },
    facts([[t('nodes.set.names'), names(set.nodes)], [t('nodes.set.goal'), names(set.goal)], [t('nodes.set.number'), String(set.number)]]));
}

/** The card of the spool: the changes that wait on this host's disk. @param {{entries: number, bytes: number, max_bytes: number, oldest_ms: ?number}} spool */
function spoolCard(spool) {
  return card({ title: t('nodes.spool'), key: '.spool', help: t('nodes.spool.help'), tone: spool.entries > 0 ? 'warn' : undefined },
    facts([
      [t('nodes.spool.entries'), count(spool.entries)],
      [t('nodes.spool.room'), `${bytes(spool.bytes)} / ${bytes(spool.max_bytes)}`],
      [t('nodes.spool.oldest'), spool.oldest_ms !== null && when(spool.oldest_ms)],
    ]));
}

function movingNote(goal) {
  return h('div', { key: '.moving' }, note('warn', h('p', null, t('nodes.moving', { nodes: goal.join(', ') })), h('p', null, t('nodes.moving.how'))));
}

/** @param {any} node @param {boolean} hasSet whether it is known which nodes have jobs */
function nodeCard(node, hasSet) {
  const away = !node.answers || live.away.includes(node.name);
  const jobs = (state, tone) => figure({ key: state, label: t(`state.${state}`), tone, value: count(node[state]) });
  return card({ title: h('span', { class: 'line' }, h('span', { class: 'mono' }, node.name), badge(away ? 'away' : node.is_older ? 'older' : 'answers'), hasSet && node.part !== 'home' && badge(node.part, t(`state.${node.part}.why`))), key: node.name, tone: away ? 'bad' : node.is_older ? 'warn' : undefined },
    node.is_older && note('warn', h('p', null, t('state.older.why'))),
    node.detail && note(away ? 'bad' : 'info', h('p', null, node.detail)),
    (live.alerts ?? []).filter((alert) => alert.node === node.name).map((alert) => note(alert.loses_jobs ? 'bad' : 'warn', h('p', null, h('b', null, alertName(alert)), ' ', alertText(alert)))),
    h('div', { class: 'figures-row figures-row--plain', key: 'figures' }, jobs('delayed', 'delayed'), jobs('ready', 'ready'), jobs('leased', 'leased'), jobs('dead', 'bad')),
    node.ready !== null && stateBar(node),
    node.durability && facts([[t('nodes.durability'), t(`nodes.durability.${node.durability}`)], [t('nodes.replicas'), node.replicas === null ? null : String(node.replicas)]], 'durability'),
    node.file && fileFacts(node.file),
    node.servers?.length > 0 && serverTable(node));
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function nodes({ resource }) {
  const it = resource((signal) => get('/v1/nodes', signal), 10000);
  return {
    title: () => t('nav.nodes'),
    view: () => [
      pageHead({ title: t('nav.nodes'), about: t('nodes.about') }),
      loaded(it, (data) => {
        // The events bring new counts each second. The servers come with each request to `/v1/nodes`.
        const now = new Map((live.nodes ?? []).map((node) => [node.name, node]));
        const node = (asked) => ({ ...asked, ...now.get(asked.name), servers: asked.servers ?? now.get(asked.name)?.servers, file: asked.file ?? now.get(asked.name)?.file });
        return h('div', { class: 'stack', key: 'nodes' },
          data.set?.goal && movingNote(data.set.goal), data.set && setCard(data.set), data.spool && spoolCard(data.spool),
          data.nodes.map((asked) => nodeCard(node(asked), Boolean(data.set))));
      })],
  };
}
