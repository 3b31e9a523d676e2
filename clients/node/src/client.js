import http from 'node:http';
import https from 'node:https';
import { setTimeout as sleep } from 'node:timers/promises';

import { DqError } from './errors.js';
import { uuid7 } from './uuid.js';

// The pause before the second try, and the longest one. Each pause is twice as long as the one before it.
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 2000;
// The codes of errors about a certificate that is not trusted. Waiting does not help against such an error.
const UNTRUSTED = /CERT|UNABLE_TO_VERIFY|SELF_SIGNED/;

// index.d.ts describes the methods.
export class Client {
  #base;
  #timeoutMs;
  #retryForMs;
  #headers;
  #agent;
  #send;

  constructor({ url, token, timeoutMs = 5000, retryForMs = 10000, tls = {} } = {}) {
    this.#base = new URL(url || process.env.DQ_URL || 'http://127.0.0.1:8088');
    const kind = { 'http:': http, 'https:': https }[this.#base.protocol];
    if (!kind) throw new TypeError(`the URL of dq must be http://… or https://…, not ${this.#base}`);
    this.#send = kind.request;
    this.#agent = new kind.Agent({ keepAlive: true, ...tls });
    this.#timeoutMs = timeoutMs;
    this.#retryForMs = retryForMs;
    this.#headers = { accept: 'application/json', 'user-agent': 'dq-node/0.1' };
    const proof = token || process.env.DQ_TOKEN;
    if (proof) this.#headers.authorization = `Bearer ${proof}`;
  }

  add(topic, body, options = {}) {
    return this.request('POST', jobsPath(topic), { body: written({ ...options, body }), key: uuid7() });
  }

  async addMany(topic, jobs) {
    const body = { jobs: jobs.map(written) };
    const { results } = await this.request('POST', `${jobsPath(topic)}/batch`, { body, key: uuid7() });
    return results.map((result) => (result.status >= 400 ? DqError.fromAnswer(result.status, result) : result));
  }

  get(topic, id) {
    return this.#unlessMissing('GET', jobPath(topic, id));
  }

  change(topic, id, fields) {
    return this.request('PATCH', jobPath(topic, id), { body: fields });
  }

  async delete(topic, id) {
    return (await this.#unlessMissing('DELETE', jobPath(topic, id))) !== null;
  }

  async run(topic, id) {
    await this.request('POST', `${jobPath(topic, id)}/run`, { key: uuid7() });
  }

  async reserve(topics, { max = 1, waitMs = 0, lease, signal } = {}) {
    // The request has no Idempotency-Key. With a key, the reserve would continue after the client has gone away, and
    // take a job.
    const { jobs } = await this.request('POST', '/v1/reserve', {
      body: { topics: [topics].flat(), max, wait: `${waitMs}ms`, lease },
      timeoutMs: waitMs + this.#timeoutMs,
      signal,
    });
    return jobs;
  }

  async ack(job, answer) {
    await this.#report(job, 'ack', { answer });
  }

  async nack(job, { reason, delay } = {}) {
    await this.#report(job, 'nack', { reason, delay });
  }

  async extend(job, lease) {
    return (await this.#report(job, 'extend', { lease })).until_ms;
  }

  async request(method, path, { body, key, timeoutMs = this.#timeoutMs, signal } = {}) {
    const text = body === undefined ? undefined : Buffer.from(JSON.stringify(body));
    const headers = { ...this.#headers };
    if (text) Object.assign(headers, { 'content-type': 'application/json', 'content-length': text.length });
    if (key) headers['idempotency-key'] = key;
    const started = Date.now();
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(pause * 2, LONGEST_PAUSE_MS)) {
      const { answer, error, retryAfterMs } = await this.#try(method, path, text, headers, timeoutMs, signal);
      if (!error) return answer;
      const wait = Math.max(pause * (0.5 + Math.random() / 2), retryAfterMs);
      if (!error.isTransient || Date.now() + wait > started + this.#retryForMs) throw error;
      await sleep(wait, undefined, { signal });
    }
  }

  close() {
    this.#agent.destroy();
  }

  /** Makes one try. Throws only if the signal aborts. */
  async #try(method, path, text, headers, timeoutMs, signal) {
    let received;
    try {
      received = await this.#exchange(method, path, text, headers, timeoutMs, signal);
    } catch (e) {
      // dq closes idle connections, and the connections of a process that ends. So the request is sent once more on a
      // new connection.
      if (e.wasKept) return this.#try(method, path, text, headers, timeoutMs, signal);
      if (signal?.aborted) throw e;
      const code = UNTRUSTED.test(e.code) ? 'untrusted' : 'no_answer';
      const error = new DqError(code, `${method} ${path}: ${e.message || e.code}`, 0, undefined, { cause: e });
      return { error, retryAfterMs: 0 };
    }
    const { status, retryAfter } = received;
    let answer;
    try {
      answer = received.text === '' ? {} : JSON.parse(received.text);
    } catch {
      answer = undefined;
    }
    if (status < 300 && answer !== undefined) return { answer };
    return { error: DqError.fromAnswer(status, answer), retryAfterMs: /^\d+$/.test(retryAfter) ? retryAfter * 1000 : 0 };
  }

  // `fetch` would change a path with an id such as "..". So this function sends the path as it is.
  #exchange(method, path, text, headers, timeoutMs, signal) {
    let timer;
    const exchange = new Promise((resolve, reject) => {
      const { hostname, port, pathname } = this.#base;
      const request = this.#send({
        method, headers, signal, port, agent: this.#agent, path: pathname.replace(/\/$/, '') + path,
        hostname: hostname.replace(/^\[|\]$/g, ''),
      });
      request.on('error', (e) => {
        if (request.reusedSocket && (e.code === 'ECONNRESET' || e.code === 'EPIPE')) e.wasKept = true;
        reject(e);
      });
      request.on('response', (response) => {
        const parts = [];
        response.on('data', (part) => parts.push(part));
        response.on('error', reject);
        response.on('end', () => resolve({
          status: response.statusCode, retryAfter: response.headers['retry-after'],
          text: Buffer.concat(parts).toString(),
        }));
      });
      timer = setTimeout(() => request.destroy(new Error(`no answer within ${timeoutMs} ms`)), timeoutMs);
      request.end(text);
    });
    return exchange.finally(() => clearTimeout(timer));
  }

  async #unlessMissing(method, path) {
    try {
      return await this.request(method, path);
    } catch (e) {
      if (e.code === 'not_found') return null;
      throw e;
    }
  }

  #report(job, report, fields) {
    if (!job.token) return { until_ms: 0 };
    const path = `${jobPath(job.topic, job.id)}/${report}`;
    return this.request('POST', path, { body: { token: job.token, ...fields } });
  }
}

function jobsPath(topic) {
  return `/v1/topics/${encodeURIComponent(topic)}/jobs`;
}

function jobPath(topic, id) {
  return `${jobsPath(topic)}/${encodeURIComponent(id)}`;
}

/** Returns a job as the API takes it, with an id. */
function written(job) {
  // Nobody else has an id that is made here. So a job with this id was added by an earlier try.
  return job.id === undefined ? { on_conflict: 'keep', ...job, id: uuid7() } : job;
}
