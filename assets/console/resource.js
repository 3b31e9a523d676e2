// Something that a page reads from the API, and reads again while it is shown. If a later reading fails, the earlier
// data stays.

import { redraw } from './redraw.js';

/**
 * @template T
 * @typedef {{data: ?T, problem: ?import('./api.js').Problem, loading: boolean, at_ms: number, reload: () => Promise<void>, stop: () => void}} Resource
 */

/**
 * Reads now, and then every `every` milliseconds.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} read
 * @param {number} [every] 0: reads once
 * @returns {Resource<T>}
 */
export function resource(read, every = 0) {
  const it = { data: null, problem: null, loading: false, at_ms: 0, reload, stop };
  let timer = 0;
  let turn = 0;
  let aborter = null;
  let stopped = false;

  async function reload() {
    if (stopped) return;
    clearTimeout(timer);
    aborter?.abort();
    aborter = new AbortController();
    const mine = ++turn;
    it.loading = true;
    try {
      const data = await read(aborter.signal);
      if (mine !== turn) return;
      Object.assign(it, { data, problem: null, at_ms: Date.now() });
    } catch (problem) {
      if (mine !== turn || problem.name === 'AbortError') return;
      it.problem = problem;
    }
    it.loading = false;
    redraw();
    if (every > 0) timer = setTimeout(again, every);
  }

  // While the page is hidden, nobody looks at it, so nothing is read.
  function again() {
    if (document.hidden) timer = setTimeout(again, every);
    else reload();
  }

  function stop() {
    stopped = true;
    turn++;
    clearTimeout(timer);
    aborter?.abort();
  }

  reload();
  return it;
}
