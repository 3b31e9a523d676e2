// What the daemon reports each second over server-sent events, with the reports of the last ten minutes. This file only
// listens. Requests that change something go through api.js.

import { get } from './api.js';
import { setClock } from './format.js';
import { redraw } from './redraw.js';

const KEPT_MS = 600000;
const SILENCE_MS = 6000;
const HIDDEN_MS = 20000;
const GAP_MS = 12000;
const COUNTED = ['written', 'delivered', 'failed', 'dead', 'attempts'];

/**
 * @typedef {{at_ms: number, written: number, delivered: number, failed: number, dead: number, attempts: number,
 *   p50_us: ?number, p99_us: ?number, waiting?: number, ready?: number, letters?: number, late_us?: ?number}} Point rates a second
 */

/** As it is now. Topics lie under their names. */
export const live = {
  connected: false, told: false, lost: false, at_ms: 0, counted_at_ms: 0, instance: '', version: '',
  /** @type {Map<string, any>} */ topics: new Map(),
  /** @type {string[]} */ away: [],
  processes: null, nodes: null, alerts: null, sums: null,
  /** @type {Point[]} */ points: [],
  /** @type {Point[]} */ minutes: [],
};

let source = null;
let heard_ms = 0;
let begun = false;
let hiding = 0;
let reopening = 0;
let check = async () => {};
let follow = (..._told) => {};

/** Asked when a connection opens, or is tried again: who is signed in. @param {() => Promise<void>} handler */
export function onConnection(handler) {
  check = handler;
}

/** Begins to listen. */
export function startLive() {
  if (begun) return;
  begun = true;
  open();
}

/** Listens no more, and forgets. */
export function stopLive() {
  begun = false;
  clearTimeout(reopening);
  source?.close();
  Object.assign(live, { connected: false, told: false, lost: false, topics: new Map(), points: [], processes: null, nodes: null, alerts: null, sums: null });
}

/** Has a handler told of each event: when it was, the topics before it, the names of those that changed, over how many seconds that was
 * counted (0: not known), and whether nothing was counted anew. @param {(at_ms: number, before: Map<string, any>, changed: Set<string>, seconds: number, isStale: boolean) => void} handler */
export function onTold(handler) {
  follow = handler;
}

function open() {
  source?.close();
  heard_ms = Date.now();
  source = new EventSource('/v1/events');
  // Each new connection checks who is signed in. Another tab may have signed out, or signed in as somebody else, or the
  // session may have ended.
  source.addEventListener('open', () => check().catch(() => {}));
  source.addEventListener('now', (event) => hear(JSON.parse(event.data)));
  source.addEventListener('error', () => {
    lose();
    if (source.readyState === EventSource.CLOSED) reopen();
  });
}

// A hidden page keeps no connection, because a browser opens only six connections to a host, for all its tabs together.
document.addEventListener('visibilitychange', () => {
  clearTimeout(hiding);
  if (!begun) return;
  if (document.hidden) hiding = setTimeout(() => { source?.close(); source = null; }, HIDDEN_MS);
  else if (!source) open();
});

function lose() {
  if (live.connected || !live.lost) {
    live.connected = false;
    live.lost = true;
    redraw();
  }
}

function reopen() {
  clearTimeout(reopening);
  source?.close();
  reopening = setTimeout(async () => {
    try {
      await check();
    } catch {
      // The daemon does not answer. The next try shows whether it answers again.
    }
    if (begun) open();
  }, 2000);
}

setInterval(() => {
  if (!begun || !source || Date.now() - heard_ms < SILENCE_MS) return;
  heard_ms = Date.now();
  lose();
  reopen();
}, 1000);

/** What was done between two sums, a second. */
export function difference(now, was, seconds) {
  const point = {};
  for (const name of COUNTED) point[name] = Math.max(0, (now?.[name] ?? 0) - (was?.[name] ?? 0)) / seconds;
  return point;
}

/** Adds a point, and lets go of those of ten minutes before. */
export function keep(points, point) {
  points.push(point);
  while (points.length > 0 && points[0].at_ms < point.at_ms - KEPT_MS) points.shift();
}

function hear(event) {
  heard_ms = Date.now();
  setClock(event.at_ms);
  const was = { counted_at_ms: live.counted_at_ms, sums: live.sums, topics: live.topics, connected: live.told && live.connected };
  // An event may have the same counters as the event before it. Then it does not show what was done since.
  const seconds = (event.counted_at_ms - was.counted_at_ms) / 1000;
  const { before, changed } = takeTopics(event);
  for (const name of ['processes', 'nodes', 'alerts', 'instance', 'version']) if (event[name] !== undefined) live[name] = event[name];
  const isStale = was.connected && seconds === 0;
  const isNext = was.connected && was.sums && event.sums && seconds >= 0.2 && seconds < 30;
  if (isNext) takePoint(event, was.sums, seconds);
  rates(before, changed, isNext ? seconds : 0, isStale);
  follow(event.at_ms, before, changed, isNext ? seconds : 0, isStale);
  Object.assign(live, { at_ms: event.at_ms, counted_at_ms: event.counted_at_ms ?? 0, sums: event.sums, away: event.away ?? [], connected: true, told: true, lost: false });
  redraw();
}

/** Takes the topics over; tells those that were there before, and the names of those that changed. */
function takeTopics(event) {
  const before = live.topics;
  const topics = event.full ? new Map() : new Map(before);
  const changed = new Set();
  for (const topic of event.topics ?? []) {
    topics.set(topic.topic, topic);
    changed.add(topic.topic);
  }
  for (const name of event.gone ?? []) topics.delete(name);
  live.topics = topics;
  return { before, changed };
}

/** How many jobs are in a state, of all topics. @param {string} state @returns {number} */
export function total(state) {
  let sum = 0;
  for (const topic of live.topics.values()) sum += topic[state] ?? 0;
  return sum;
}

function takePoint(event, was, seconds) {
  keep(live.points, {
    at_ms: event.at_ms, ...difference(event.sums, was, seconds), p50_us: event.late_p50_us ?? null, p99_us: event.late_p99_us ?? null,
    waiting: total('delayed'), ready: total('ready'), leased: total('leased'), letters: total('dead'),
  });
}

/** Smooths what topics do over some seconds; what did not change has done nothing, unless nothing was counted anew. */
function rates(before, changed, seconds, isStale) {
  for (const [name, topic] of live.topics) {
    const was = before.get(name);
    if (isStale) {
      Object.assign(topic, { inn: was?.inn ?? 0, out: was?.out ?? 0 });
      continue;
    }
    const now = seconds > 0 && was && changed.has(name) ? difference(topic.sums, was.sums, seconds) : { written: 0, delivered: 0 };
    const smooth = (last, new_) => (last === undefined ? new_ : last * 0.7 + new_ * 0.3);
    const [inn, out] = [smooth(was?.inn, now.written), smooth(was?.out, now.delivered)];
    Object.assign(topic, { inn: inn < 0.01 ? 0 : inn, out: out < 0.01 ? 0 : out });
  }
}

/** Reads what was before this page was opened: seconds that are missing, and the minutes. @returns {Promise<void>} */
export async function loadHistory() {
  const told = await get('/v1/history');
  live.points = filled(live.points, toldPoints(told.seconds), (p) => p.waiting !== undefined);
  live.minutes = toldPoints(told.minutes);
  redraw();
}

/** Points of a history as rates a second. */
export function toldPoints(list) {
  return (list ?? []).map((p) => {
    const point = { at_ms: p.at_ms, p50_us: p.late_p50_us ?? null, p99_us: p.late_p99_us ?? null, late_us: p.late_mean_us ?? null };
    for (const name of COUNTED) point[name] = ((p[name] ?? 0) * 1000) / (p.span_ms || 1000);
    return point;
  });
}

/** What this page has heard itself is finer; what it was told fills the gaps, also those in which it was hidden. */
export function filled(points, told, isOwn) {
  const own = points.filter(isOwn);
  const isHeard = (point) => own.some((p) => Math.abs(p.at_ms - point.at_ms) < 5000);
  const all = [...told.filter((p) => !isHeard(p)), ...own].sort((a, b) => a.at_ms - b.at_ms);
  // If nothing was counted for some time, a point without values interrupts the line there.
  return all.flatMap((p, i) => (i > 0 && p.at_ms - all[i - 1].at_ms > GAP_MS ? [{ at_ms: p.at_ms - 1 }, p] : [p]));
}
