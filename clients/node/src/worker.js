import { setTimeout as sleep } from 'node:timers/promises';
import { types } from 'node:util';

import { DqError } from './errors.js';

// How long the worker waits before it tries again, and how long if somebody must change the topic first.
const PAUSE_MS = 1000;
const LONG_PAUSE_MS = 10000;
// How long after a move of jobs between nodes no lease ends (docs/PULL.md).
const MOVE_GRACE_MS = 10000;

// index.d.ts describes it.
export async function work(client, topics, handler, options = {}) {
  const { signal, waitMs = 30000, leaseMs = 60000, log = console.error } = options;
  while (!signal?.aborted) {
    let jobs = [];
    try {
      jobs = await client.reserve(topics, { waitMs, lease: `${leaseMs}ms`, signal });
    } catch (e) {
      if (signal?.aborted) return;
      const pauseMs = pauseAfter(e);
      if (pauseMs === 0) throw e;
      log('no jobs are reserved', e);
      await pause(pauseMs, signal);
    }
    for (const job of jobs) await workOn(client, job, handler, new Lease(leaseMs), { signal, log });
  }
}

/** Returns how long to wait before the next reserve. 0: waiting does not help. */
function pauseAfter(error) {
  // The topic is held, or somebody has changed its mode.
  if (error.code === 'not_pull') return LONG_PAUSE_MS;
  return isPassing(error) ? PAUSE_MS : 0;
}

/** Whether the same request may succeed later. Errors that a proxy before dq can cause are passing. */
function isPassing(error) {
  return error instanceof DqError
    && (error.isTransient || error.code === 'bad_answer' || error.status === 429 || error.status >= 500);
}

/** An abort ends the pause. */
function pause(ms, signal) {
  return sleep(ms, undefined, { signal }).catch(() => {});
}

/** The lease of a job, as far as this process knows it. */
class Lease {
  #endMs;

  constructor(lengthMs) {
    this.lengthMs = lengthMs;
    this.renew();
  }

  renew() {
    this.#endMs = performance.now() + this.lengthMs;
  }

  /** Whether a request about the job that failed with this error should be repeated. */
  canHold(error) {
    const now = performance.now();
    if (error.code === 'nodes_moving') this.#endMs = Math.max(this.#endMs, now + MOVE_GRACE_MS);
    return isPassing(error) && now < this.#endMs;
  }
}

async function workOn(client, job, handler, lease, { signal, log }) {
  const place = `job ${job.id} of ${job.topic}`;
  const timer = setInterval(() => {
    client.extend(job, `${lease.lengthMs}ms`).then(() => lease.renew(), (e) => {
      log(`the lease of ${place} was not extended`, e);
      if (!isPassing(e)) clearInterval(timer);
    });
  }, lease.lengthMs / 3);
  let report;
  try {
    const answer = await handler(job);
    if (types.isGeneratorObject(answer)) {
      throw new TypeError('the handler returned a generator, so its code has not run');
    }
    report = () => client.ack(job, typeof answer === 'string' ? answer : undefined);
  } catch (e) {
    log(`${place} failed`, e);
    report = () => client.nack(job, { reason: reasonOf(e) });
  } finally {
    clearInterval(timer);
  }
  await reportOutcome(report, place, lease, { signal, log });
}

function reasonOf(error) {
  try {
    return String(error);
  } catch {
    return 'an error without a text';
  }
}

/** Reports an outcome. It repeats the report while that may help, unless the worker is told to stop. */
async function reportOutcome(report, place, lease, { signal, log }) {
  for (;;) {
    try {
      await report();
      return;
    } catch (e) {
      if (signal?.aborted || !lease.canHold(e)) {
        // The lease ends by itself, and the job comes again.
        log(`the outcome of ${place} was not reported`, e);
        return;
      }
      log(`the outcome of ${place} is reported again`, e);
      await pause(PAUSE_MS, signal);
    }
  }
}
