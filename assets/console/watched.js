// The last ten minutes of one topic. The first points come when its page is opened, and one more comes each second.

import { get, query } from './api.js';
import { difference, filled, keep, live, onTold, toldPoints } from './live.js';
import { redraw } from './redraw.js';

/** The topic whose page is open, and its points. */
export const watched = {
  topic: '',
  /** @type {import('./live.js').Point[]} */ points: [],
};

onTold(hear);

/** Keeps the points of this topic from now on; '': keeps no points. @param {string} topic */
export function watch(topic) {
  if (watched.topic === topic) return;
  Object.assign(watched, { topic, points: [] });
}

/** Reads the points from before the page was opened, or from while the page was hidden. @returns {Promise<void>} */
export async function loadWatched() {
  const { topic } = watched;
  const told = await get(`/v1/history${query({ topic })}`);
  if (watched.topic !== topic) return;
  watched.points = filled(watched.points, toldPoints(told.seconds), (p) => p.written !== undefined);
  redraw();
}

function meanLateness(now, was) {
  const attempts = (now?.attempts ?? 0) - (was?.attempts ?? 0);
  return attempts > 0 ? Math.max(0, now.late_us - was.late_us) / attempts : null;
}

function hear(at_ms, before, changed, seconds, isStale) {
  if (!watched.topic || isStale) return;
  const [now, was] = [live.topics.get(watched.topic), before.get(watched.topic)];
  if (seconds === 0) {
    // A point without values makes a gap in the lines.
    if (watched.points.length > 0) keep(watched.points, { at_ms });
  } else if (now && was) {
    const isNew = changed.has(watched.topic);
    const point = difference(now.sums, isNew ? was.sums : now.sums, seconds);
    const late_us = isNew ? meanLateness(now.sums, was.sums) : null;
    keep(watched.points, { at_ms, ...point, p50_us: null, p99_us: null, late_us, ready: now.ready, waiting: now.delayed });
  }
}
