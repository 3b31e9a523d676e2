import http from 'node:http';
import https from 'node:https';
import { setTimeout as sleep } from 'node:timers/promises';

import { DqError } from './errors.js';
import { uuid7 } from './uuid.js';

// The pause before the second try, and the longest one. Each pause is twice as long as the one before it.
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 2000;
// How many characters of an answer or a reason dq keeps.
const TEXT_MAX = 200;
// The codes of errors about a certificate that is not trusted. Waiting does not help against such an error.
const UNTRUSTED = /CERT|UNABLE_TO_VERIFY|SELF_SIGNED/;

// index.d.ts describes the methods.
export class Client {
  #base;
  #timeoutMs;
  #retryForMs;
  #headers;
  #agent;
  #json;
  #open;

  constructor({ url, token, timeoutMs = 5000, retryForMs = 10000, tls = {}, json = JSON } = {}) {
    this.#base = new URL(url || process.env.DQ_URL || 'http://127.0.0.1:8088');
    const kind = { 'http:': http, 'https:': https }[this.#base.protocol];
    if (!kind) throw new TypeError(`the URL of dq must be http://… or https://…, not ${this.#base}`);
    this.#open = kind.request;
    // A client that may try only once keeps no connection, so it never sends a request twice.
    this.#agent = new kind.Agent({ keepAlive: retryForMs > 0, ...tls });
    this.#json = json;
    this.#timeoutMs = timeoutMs;
    this.#retryForMs = retryForMs;
    this.#headers = { accept: 'application/json', 'user-agent': 'dq-node/0.1' };
    const proof = token || process.env.DQ_TOKEN;
    if (proof) this.#headers.authorization = `Bearer ${proof}`;
  }

  async add(topic, body, options = {}) {
    return withField('outcome', await this.request('POST', jobsPath(topic), { body: written({ ...options, body }) }));
  }

  async addMany(topic, jobs) {
    const body = { jobs: jobs.map(written) };
    const { results } = withField('results', await this.request('POST', `${jobsPath(topic)}/batch`, { body }));
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
    await this.request('POST', `${jobPath(topic, id)}/run`);
  }

  async reserve(topics, { max = 1, waitMs = 0, lease, signal } = {}) {
    // The request has no Idempotency-Key. With a key, the reserve would continue after the client has gone away, and
    // take a job.
    const answer = await this.#send('POST', '/v1/reserve', {
      body: { topics: [topics].flat(), max, wait: `${waitMs}ms`, lease },
      timeoutMs: waitMs + this.#timeoutMs,
      signal,
    });
    return withField('jobs', answer).jobs;
  }

  async ack(job, answer) {
    await this.#report(job, 'ack', { answer: cut(answer) });
  }

  async nack(job, { reason, delay } = {}) {
    await this.#report(job, 'nack', { reason: cut(reason), delay });
  }

  async extend(job, lease) {
    return (await this.#report(job, 'extend', { lease })).until_ms;
  }

  async request(method, path, options = {}) {
    const needsKey = method.toUpperCase() === 'POST' && !options.key;
    return this.#send(method, path, needsKey ? { ...options, key: uuid7() } : options);
  }

  /** Makes a request, and adds no key. A reserve needs none, and dq knows a repeated report by its token. */
  async #send(method, path, { body, key, timeoutMs = this.#timeoutMs, signal }) {
    const text = body === undefined ? undefined : Buffer.from(this.#json.stringify(body));
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
      answer = received.text === '' ? {} : this.#json.parse(received.text);
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
      const request = this.#open({
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

  async #report(job, report, fields) {
    if (!job.token) return { until_ms: 0 };
    const path = `${jobPath(job.topic, job.id)}/${report}`;
    return withField('outcome', await this.#send('POST', path, { body: { token: job.token, ...fields } }));
  }
}

/** Returns an answer that has this field. An answer without it is not one of dq. */
function withField(name, answer) {
  if (answer?.[name] === undefined) throw new DqError('bad_answer', `the answer has no field ${name}`, 200);
  return answer;
}

/** Returns the part of a text that dq keeps. Characters that UTF-8 cannot write are replaced. */
function cut(text) {
  if (text === undefined || text === null) return undefined;
  // A character has at most two units.
  return [...Buffer.from(String(text).slice(0, 2 * TEXT_MAX)).toString()].slice(0, TEXT_MAX).join('');
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
