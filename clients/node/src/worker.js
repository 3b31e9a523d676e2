import { setTimeout as sleep } from 'node:timers/promises';

import { DqError } from './errors.js';

// index.d.ts describes it.
export async function work(client, topics, handler, options = {}) {
  const { signal, waitMs = 30000, leaseMs = 60000, log = console.error } = options;
  while (!signal?.aborted) {
    let jobs = [];
    try {
      jobs = await client.reserve(topics, { waitMs, lease: `${leaseMs}ms`, signal });
    } catch (e) {
      if (signal?.aborted) return;
      if (!(e instanceof DqError && e.isTransient)) throw e;
      log('no jobs are reserved', e);
      // An abort ends the pause, and then the loop.
      await sleep(1000, undefined, { signal }).catch(() => {});
    }
    for (const job of jobs) await workOn(client, job, handler, leaseMs, log);
  }
}

async function workOn(client, job, handler, leaseMs, log) {
  const place = `job ${job.id} of ${job.topic}`;
  const timer = setInterval(() => {
    client.extend(job, `${leaseMs}ms`).catch((e) => {
      log(`the lease of ${place} was not extended`, e);
      if (!e.isTransient) clearInterval(timer);
    });
  }, leaseMs / 3);
  try {
    let answer;
    try {
      answer = await handler(job);
    } catch (e) {
      log(`${place} failed`, e);
      await client.nack(job, { reason: [...String(e)].slice(0, 200).join('') });
      return;
    } finally {
      clearInterval(timer);
    }
    await client.ack(job, typeof answer === 'string' ? answer : undefined);
  } catch (e) {
    // The lease ends by itself, and the job comes again.
    log(`the outcome of ${place} was not reported`, e);
  }
}
