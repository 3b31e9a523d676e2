// Tests against a daemon. clients/run starts it and sets the environment.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { after, beforeEach, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { Client, DqError, Webhook, WebhookError, work } from 'dq-client';

const HERE = path.dirname(fileURLToPath(import.meta.url));
const EXAMPLES = path.join(HERE, '../examples');
const [NEW, OLD] = ['whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=', 'the-old-secret'];
const HOUR = 3600e3;

const client = new Client();
after(() => client.close());
// Tests share the daemon. Each has topics and tags of its own.
let topic;
beforeEach(async () => {
  topic = await register(`node.${randomBytes(6).toString('hex')}`, { callback: 'http://127.0.0.1:9/hook' });
});

async function register(name, settings) {
  await client.request('PUT', `/v1/topics/${name}`, { body: settings });
  return name;
}

async function control(pathAndQuery) {
  const { status } = await fetch(process.env.DQ_CONTROL_URL + pathAndQuery, { method: 'POST' });
  assert.equal(status, 204);
}

/** Ends a wait that takes too long. */
async function within20s(promise, what) {
  const stop = new AbortController();
  const late = sleep(20000, undefined, { signal: stop.signal }).then(() => assert.fail(`not in time: ${what}`), () => {});
  try {
    return await Promise.race([promise, late]);
  } finally {
    stop.abort();
  }
}

async function eventually(condition) {
  for (const deadline = Date.now() + 20000; !(await condition()); await sleep(20)) assert.ok(Date.now() < deadline);
}

/** A receiver. It refuses the first callbacks. */
async function sink(t, refusals = 0) {
  const callbacks = [];
  const arrival = new EventEmitter();
  const server = http.createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    callbacks.push({ headers: request.headers, body: Buffer.concat(parts) });
    response.writeHead(refusals-- > 0 ? 503 : 204).end();
    arrival.emit('callback');
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.closeAllConnections() ?? server.close());
  return {
    url: `http://127.0.0.1:${server.address().port}/hook`,
    async next() {
      if (callbacks.length === 0) await within20s(once(arrival, 'callback'), 'a callback');
      return callbacks.shift();
    },
  };
}

/** A proxy before dq that answers the first requests as the rules say: scripted() of clients/run. */
async function script(...rules) {
  const place = `${process.env.DQ_SCRIPTED_URL}/scripts/${randomBytes(8).toString('hex')}`;
  assert.equal((await fetch(place, { method: 'POST', body: JSON.stringify(rules) })).status, 204);
  return {
    url: place.replace('/scripts', ''),
    /** Returns the requests to paths with this end. */
    async requests(end) {
      return (await (await fetch(place)).json()).filter((request) => request.path.endsWith(end));
    },
  };
}

/** Returns a rule that answers a reserve with a job. */
function reserved(id) {
  const times = { due_ms: 1, added_ms: 1, lease_until_ms: Date.now() + 60000 };
  const job = { topic: 't', id, body: id, headers: {}, tags: [], attempt: 1, token: 'AQ', ...times };
  return { path: '/reserve$', status: 200, body: { jobs: [job] } };
}

// A worker whose jobs are all done gets this.
const NO_JOBS = { path: '/reserve$', times: 1000, status: 200, body: { jobs: [] } };
const DONE = { path: '/ack$', status: 200, body: { outcome: 'done' } };
const problem = (status, code) => ({ status, body: { status, code, detail: 'as the test says' } });

/** Runs a worker until the condition holds, and returns the lines of its log. */
async function whileWorking(from, topics, handler, options, condition) {
  const [stop, logged] = [new AbortController(), []];
  const log = (message, e) => logged.push(`${message}: ${e?.message}`);
  const working = work(from, topics, handler, { waitMs: 200, signal: stop.signal, log, ...options });
  try {
    await Promise.race([eventually(() => condition(logged)), working]);
  } finally {
    stop.abort();
    await within20s(working, 'the end of the worker');
  }
  return logged;
}

/** Starts a program of the examples, and returns its process and its next line. */
function program(t, args, environment = {}) {
  const child = spawn(process.execPath, args, { env: { ...process.env, ...environment }, stdio: ['ignore', 'pipe', 'inherit'] });
  t.after(() => child.kill('SIGKILL'));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return { child, line: async () => (await within20s(lines.next(), 'a line')).value };
}

/** Puts the receiver of the examples where Express is, with this package as if it was installed. */
function express() {
  const folder = path.join(process.env.DQ_TOOLS, 'node');
  fs.rmSync(path.join(folder, 'node_modules/dq-client'), { force: true });
  fs.symlinkSync(path.join(HERE, '..'), path.join(folder, 'node_modules/dq-client'));
  fs.copyFileSync(path.join(EXAMPLES, 'express.mjs'), path.join(folder, 'express.mjs'));
  return path.join(folder, 'express.mjs');
}

const refusal = (promise) => promise.then(() => assert.fail('nothing is thrown'), (e) => {
  assert.ok(e instanceof DqError, e);
  return e;
});

test('a job is added, shown, changed and deleted', async () => {
  for (const id of ['7', 'p/ü 1', '..', 'a?b#c%25', 'batch']) {
    const before = Date.now();
    const added = await client.add(topic, { n: [1, '超时'] }, { id, delay: '1h', tags: ['shop:7'], priority: 5 });
    assert.deepEqual([added.topic, added.id, added.outcome], [topic, id, 'new']);
    assert.ok(Math.abs(added.due_ms - before - HOUR) < 5000);
    let job = await client.get(topic, id);
    assert.deepEqual([job.state, job.body, job.tags], ['delayed', { n: [1, '超时'] }, ['shop:7']]);
    assert.equal((await client.add(topic, 2, { id, delay: 60 })).outcome, 'replaced');
    await client.change(topic, id, { body: 3, delay: '2h' });
    job = await client.get(topic, id);
    assert.equal(job.body, 3);
    assert.ok(job.due_ms >= before + 2 * HOUR);
    assert.deepEqual([await client.delete(topic, id), await client.delete(topic, id)], [true, false]);
    assert.equal(await client.get(topic, id), null);
  }
});

test('times are what the caller means', async () => {
  const at = new Date(Date.now() + 3 * HOUR);
  for (const run_at of [at, at.getTime(), at.toISOString()]) {
    assert.equal((await client.add(topic, 1, { run_at })).due_ms, at.getTime());
  }
  for (const delay of [90, '90s']) {
    assert.ok(Math.abs((await client.add(topic, 1, { delay })).due_ms - Date.now() - 90000) < 5000);
  }
});

test('each job of a batch has its result', async () => {
  await client.add(topic, 1, { id: 'there', delay: '1h' });
  const results = await client.addMany(topic, [
    { body: 1, delay: '1h' }, { body: 2, id: 'two', delay: '1h' }, { body: 3, id: 'there', on_conflict: 'reject' },
    { body: 4, id: 'there', on_conflict: 'keep' }, { body: 5, delay: 'soon' },
  ]);
  const shown = results.map((result) => (result instanceof DqError ? `${result.code} ${result.status}` : result.outcome));
  assert.deepEqual(shown, ['new', 'new', 'exists 409', 'kept', 'bad_field 422']);
  assert.match(results[0].id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  assert.equal(results[4].field, 'delay');
});

test('a refusal has a code', async () => {
  let e = await refusal(client.add('no-such-topic', 1));
  assert.deepEqual([e.code, e.status], ['unknown_topic', 404]);
  e = await refusal(client.add(topic, 1, { delay: 'soon' }));
  assert.deepEqual([e.code, e.field], ['bad_field', 'delay']);
  e = await refusal(client.add(topic, 1, { dealy: 3 }));
  assert.equal(e.code, 'unknown_field');
  e = await refusal(client.reserve(topic));
  assert.deepEqual([e.code, e.isTransient], ['not_pull', false]);
  e = await refusal(new Client({ token: 'dq_wrong' }).get(topic, '1'));
  assert.equal(e.code, 'unauthorized');
  assert.throws(() => new Client({ url: 'unix:/run/dq/http.sock' }), TypeError);
});

test('a server that does not answer is an error in time', async (t) => {
  const listener = net.createServer().listen(0, '127.0.0.1');    // it accepts, and never answers
  await once(listener, 'listening');
  const silent = new Client({ url: `http://127.0.0.1:${listener.address().port}`, timeoutMs: 200, retryForMs: 500 });
  t.after(() => listener.close());
  const started = Date.now();
  const e = await refusal(silent.add(topic, 1));
  assert.deepEqual([e.code, e.isTransient], ['no_answer', true]);
  assert.ok(Date.now() - started >= 200 && Date.now() - started < 2000);
  silent.close();
});

test('an answer counts only if it is complete', async (t) => {
  const answer = JSON.stringify({ topic: 't', id: '1', outcome: 'new' });
  const head = `HTTP/1.1 201 Created\r\nconnection: close\r\ncontent-length: ${answer.length}\r\n\r\n`;
  const cut = [head.slice(0, 20), head, head + answer.slice(0, 9), `${head.replace('201', '502')}${'x'.repeat(answer.length)}`];
  const answers = [...cut, head + answer];
  const listener = net.createServer((socket) => socket.on('error', () => {}).once('data', () => socket.end(answers.shift())));
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  t.after(() => listener.close());
  const url = `http://127.0.0.1:${listener.address().port}`;
  const impatient = new Client({ url, retryForMs: 0 });
  for (const code of ['no_answer', 'no_answer', 'no_answer', 'bad_answer']) {
    assert.equal((await refusal(impatient.add('t', 1))).code, code);
  }
  assert.equal((await impatient.add('t', 1)).outcome, 'new');
  answers.push(...cut, head + answer);
  assert.equal((await new Client({ url }).add('t', 1)).outcome, 'new');
  assert.equal(answers.length, 0);
});

test('a server must be trusted', async () => {
  const url = process.env.DQ_TLS_URL;
  const e = await refusal(new Client({ url }).get(topic, '1'));
  assert.deepEqual([e.code, e.isTransient], ['untrusted', false]);
  // A connection that ends during the handshake says nothing about the certificate.
  const listener = net.createServer((socket) => socket.destroy()).listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const closed = `https://127.0.0.1:${listener.address().port}`;
  const cut = await refusal(new Client({ url: closed, retryForMs: 0 }).get('t', '1'));
  assert.deepEqual([cut.code, cut.isTransient], ['no_answer', true]);
  listener.close();
  const trusting = new Client({ url, tls: { ca: fs.readFileSync(process.env.DQ_CA_FILE) } });
  for (const outcome of ['new', 'replaced']) {
    assert.equal((await trusting.add(topic, 1, { id: '1', delay: '1h' })).outcome, outcome);
  }
  trusting.close();
});

test('a retry after a lost answer adds no second job', async () => {
  const lossy = new Client({ url: process.env.DQ_LOSSY_URL });
  const options = { delay: '1h', tags: [topic] };
  const added = await lossy.add(topic, 1, options);
  assert.equal(added.outcome, 'kept');
  const results = await lossy.addMany(topic, [1, 2, 3].map((body) => ({ body, ...options })));
  assert.deepEqual(results.map((result) => result.outcome), ['kept', 'kept', 'kept']);
  assert.equal((await client.request('GET', `/v1/jobs?tag=${topic}`)).jobs.length, 4);
  // The first try has deleted it, which the second try cannot know.
  assert.equal(await lossy.delete(topic, added.id), false);
  assert.equal(await client.get(topic, added.id), null);
  lossy.close();
});

test('an add waits for a restart of dq', async () => {
  await client.add(topic, 1, { id: 'before', delay: '1h' });    // makes a connection, which is lost
  await control('/stop');
  assert.equal((await refusal(new Client({ retryForMs: 0 }).add(topic, 1))).code, 'no_answer');
  await control('/start?after_ms=500');
  const patient = new Client({ retryForMs: 60000 });
  assert.equal((await patient.add(topic, 1, { delay: '1h' })).outcome, 'new');
  assert.equal((await client.get(topic, 'before')).state, 'delayed');
  patient.close();
});

test('a callback after a delay has a valid signature', async (t) => {
  const { url, next } = await sink(t);
  for (const secrets of [[NEW], [NEW, OLD]]) {
    await register(topic, { callback: url, secrets });
    const { due_ms: dueMs } = await client.add(topic, { a: 1, zh: '超时' }, { delay: 1 });
    const { headers, body } = await next();
    assert.ok(Date.now() >= dueMs);
    assert.deepEqual(JSON.parse(body), { a: 1, zh: '超时' });
    assert.equal(new Webhook(NEW).verify(headers, body), headers['webhook-id']);
    new Webhook(['another-secret', NEW]).verify(new Headers(headers), body.toString());
    if (secrets.includes(OLD)) new Webhook(OLD).verify(headers, body);
    assert.throws(() => new Webhook('another-secret').verify(headers, body), WebhookError);
    assert.throws(() => new Webhook([NEW, OLD]).verify(headers, `${body} `), WebhookError);
  }
});

test('a failed callback comes again with the same webhook-id', async (t) => {
  const { url, next } = await sink(t, 1);
  await register(topic, { callback: url, secrets: [NEW], retry: ['1ms'] });
  await client.add(topic, 1);
  const [first, second] = [await next(), await next()];
  const webhook = new Webhook(NEW);
  assert.equal(webhook.verify(first.headers, first.body), webhook.verify(second.headers, second.body));
});

test('the table of signatures', () => {
  const cases = JSON.parse(fs.readFileSync(path.join(HERE, '../../signatures.json')));
  assert.ok(cases.length > 30);
  for (const { name, valid, secrets, headers, body, now } of cases) {
    const verify = () => new Webhook(secrets).verify(headers, body, { nowS: now });
    if (valid) assert.doesNotThrow(verify, name);
    else assert.throws(verify, WebhookError, name);
  }
});

test('a secret that dq refuses is refused', async (t) => {
  for (const { secrets, error } of JSON.parse(fs.readFileSync(path.join(HERE, '../../secrets.json')))) {
    let message = null;
    try {
      new Webhook(secrets);
    } catch (e) {
      assert.ok(e instanceof TypeError);
      message = e.message;
    }
    assert.equal(message, error, String(secrets));
  }
  const environment = { ...process.env, DQ_WEBHOOK_SECRETS: '' };
  const child = spawn(process.execPath, [express(), '0'], { env: environment, stdio: ['ignore', 'ignore', 'pipe'] });
  t.after(() => child.kill('SIGKILL'));
  const parts = await within20s(child.stderr.toArray(), 'the end of the receiver');
  assert.match(Buffer.concat(parts).toString(), /DQ_WEBHOOK_SECRETS is not set/);
});

test('a job that was removed at its reserve needs no report', async () => {
  const pulled = await register(`${topic}.removed`, { mode: 'pull', on_reserve: 'remove' });
  await client.add(pulled, 1, { id: '1' });
  const [job] = await client.reserve(pulled, { waitMs: 10000 });
  assert.equal(job.token, undefined);
  await client.nack(job, { reason: 'too late' });
  await client.ack(job);
});

test('a job is reserved and reported', async () => {
  const pulled = await register(`${topic}.pull`, { mode: 'pull' });
  assert.deepEqual(await client.reserve(pulled), []);
  await client.add(pulled, { a: 1 }, { id: '1', delay: '1h', headers: { 'x-shop': '7' }, tags: ['t'] });
  await client.run(pulled, '1');
  let [job] = await client.reserve([pulled], { waitMs: 10000, lease: '1m' });
  assert.deepEqual([job.id, job.body, job.headers, job.tags, job.attempt], ['1', { a: 1 }, { 'x-shop': '7' }, ['t'], 1]);
  assert.ok((await client.extend(job, '5m')) > job.lease_until_ms);
  await client.nack(job, { reason: 'not yet', delay: 0 });
  [job] = await client.reserve(pulled, { waitMs: 10000 });
  assert.equal(job.attempt, 2);
  await client.ack(job, 'done');
  await client.ack(job, 'done');    // a repeat gets the same answer
  assert.equal((await refusal(client.nack(job))).code, 'gone');
});

test('a worker survives errors and an outage', async (t) => {
  const pulled = await register(`${topic}.pull`, { mode: 'pull', retry: ['1ms'] });
  const [seen, arrival, stop, logged] = [[], new EventEmitter(), new AbortController(), []];
  const handler = async (job) => {
    seen.push([job.body, job.attempt]);
    arrival.emit('job');
    if (job.body === 'once more' && job.attempt === 1) throw new Error(`not now ${'😀'.repeat(200)}`);
    if (job.body === 'long') await sleep(2000);    // longer than its lease, which is extended
  };
  const arrived = async (count) => {
    while (seen.length < count) await within20s(once(arrival, 'job'), 'a job');
    return seen.at(-1);
  };
  // The worker tries again to extend the lease.
  const { url } = await script({ path: '/extend$', status: 500, body: '<h1>Error</h1>' });
  const impatient = new Client({ url, retryForMs: 200 });
  const options = { signal: stop.signal, leaseMs: 1000, log: (message) => logged.push(message) && arrival.emit(message) };
  const working = work(impatient, pulled, handler, options);
  await client.add(pulled, 'once more');
  assert.deepEqual(await arrived(2), ['once more', 2]);
  await client.add(pulled, 'long', { id: 'long' });
  assert.deepEqual(await arrived(3), ['long', 1]);
  await eventually(async () => !(await client.get(pulled, 'long')));
  await control('/stop');
  await within20s(once(arrival, 'no jobs are reserved'), 'the outage');
  await control('/start');
  await client.add(pulled, 'last');
  assert.deepEqual(await arrived(4), ['last', 1]);
  stop.abort();
  await within20s(working, 'the end of the worker');
  assert.equal(seen.length, 4);
  assert.ok(logged.some((line) => line.endsWith(' failed')), String(logged));
  impatient.close();
});

test('a worker goes on after refusals that pass', async () => {
  const { url, requests } = await script(
    { path: '/reserve$', status: 403, body: '<h1>Forbidden</h1>' },
    { path: '/reserve$', ...problem(429, 'too_many_failures') },
    { path: '/reserve$', status: 200, body: '{"jobs": [' },
    { path: '/reserve$', status: 200, body: { it: 'works' } },
    reserved('2'), DONE, NO_JOBS,
  );
  const worked = [];
  const handler = (job) => { worked.push(job.id); };
  const logged = await whileWorking(
    new Client({ url, retryForMs: 0 }), 't', handler, {}, async () => (await requests('/ack')).length);
  assert.deepEqual(worked, ['2']);
  assert.equal(logged.filter((line) => line.startsWith('no jobs are reserved')).length, 4, String(logged));

  // Somebody may change the mode of the topic back. An abort ends this pause, which is longer.
  await whileWorking(client, topic, handler, {}, (lines) => lines.some((line) => line.includes('not_pull')));
  for (const [refused, code] of [[new Client({ token: 'dq_wrong' }), 'unauthorized'], [client, 'unknown_topic']]) {
    assert.equal((await refusal(work(refused, 'no-such-topic', handler))).code, code);
  }
});

test('a worker reports until the lease ends', async () => {
  // An error that passes does not end the reports.
  let { url, requests } = await script(
    reserved('1'), { path: '/ack$', status: 0 }, { path: '/ack$', status: 500, body: '<h1>Error</h1>' }, DONE, NO_JOBS,
  );
  let logged = await whileWorking(
    new Client({ url, retryForMs: 0 }), 't', () => 'done', {}, async () => (await requests('/ack')).length === 3);
  assert.ok(!logged.some((line) => line.includes('was not reported')), String(logged));

  // While jobs are moved between nodes, no lease ends. Afterwards it does.
  ({ url, requests } = await script(
    reserved('1'), { path: '/ack$', times: 2, ...problem(503, 'nodes_moving') }, DONE,
    reserved('2'), { path: '/ack$', times: 1000, status: 0 }, NO_JOBS,
  ));
  const isGivenUp = (id) => (lines) => lines.some((line) => line.includes(`job ${id} of t was not reported`));
  logged = await whileWorking(new Client({ url, retryForMs: 0 }), 't', () => 'done', { leaseMs: 1000 }, isGivenUp('2'));
  assert.equal((await requests('/1/ack')).length, 3);
  assert.ok(!isGivenUp('1')(logged), String(logged));

  // An abort ends the repeats.
  ({ url, requests } = await script(reserved('1'), { path: '/ack$', times: 1000, status: 0 }, NO_JOBS));
  await whileWorking(
    new Client({ url, retryForMs: 0 }), 't', () => 'done', {}, async () => (await requests('/ack')).length);
});

test('no answer of a handler prevents its report', async () => {
  const pulled = await register(`${topic}.pull`, { mode: 'pull', max_attempts: 1 });
  for (const id of ['huge', 'mute', 'generator']) await client.add(pulled, 1, { id });
  const handler = (job) => {
    if (job.id === 'mute') throw Object.create(null);
    return job.id === 'huge' ? '\ud83d😀'.repeat(3e6) : (function* none() { yield 1; })();
  };
  const isDead = async (id) => (await client.get(pulled, id))?.state === 'dead';
  await whileWorking(client, pulled, handler, {}, async () => (
    (await client.get(pulled, 'huge')) === null && (await isDead('mute')) && isDead('generator')));
});

test('a POST has a key, and one try is one try', async () => {
  const lossy = new Client({ url: process.env.DQ_LOSSY_URL });
  const body = { id: '1', body: 1, delay: '1h' };
  assert.equal((await lossy.request('POST', `/v1/topics/${topic}/jobs`, { body })).outcome, 'replaced');
  lossy.close();

  // A kept connection that breaks does not count as a try, unless there is only one.
  for (const [retryForMs, tries] of [[10000, 2], [0, 1]]) {
    const { url, requests } = await script({ path: '/run$', status: 0 });
    const other = new Client({ url, retryForMs });
    assert.notEqual(await other.get(topic, '1'), null);
    await other.request('POST', `/v1/topics/${topic}/jobs/1/run`).catch((e) => assert.equal(e.code, 'no_answer'));
    const keys = (await requests('/run')).map((request) => request.key);
    assert.deepEqual([keys.length, new Set(keys).size, keys.includes(null)], [tries, 1, false]);
    other.close();
  }
});

test('a library of the caller reads and writes JSON exactly', async () => {
  // It writes texts of digits as numbers, and reads large integers as texts.
  const parse = (text) => JSON.parse(text.replace(/([:[,]\s*)(\d{16,})(?=[,}\]])/g, '$1"$2"'));
  const stringify = (value) => JSON.stringify(value).replace(/"(\d{16,})"/g, '$1');
  const exact = new Client({ json: { parse, stringify } });
  await exact.add(topic, { n: '12345678901234567891' }, { id: '1', delay: '1h' });
  assert.equal((await exact.get(topic, '1')).body.n, '12345678901234567891');
  assert.equal((await client.get(topic, '1')).body.n, 12345678901234567000);
  exact.close();
});

test('the examples work', async (t) => {
  await register('orders', { callback: 'http://127.0.0.1:9/hook' });
  const add = program(t, [path.join(EXAMPLES, 'add.mjs')]);
  const lines = [await add.line(), await add.line(), await add.line(), await add.line()];
  assert.deepEqual([lines[0], lines[3]], ['delayed', 'unknown_topic 404']);

  await register('shipping', { mode: 'pull' });
  await client.add('shipping', { order: 7 }, { id: '7' });
  const worker = program(t, [path.join(EXAMPLES, 'worker.mjs')]);
  assert.equal(await worker.line(), 'shipping 7 { order: 7 }');
  await eventually(async () => !(await client.get('shipping', '7')));
  worker.child.kill('SIGTERM');
  assert.deepEqual(await within20s(once(worker.child, 'exit'), 'the end of the worker'), [0, null]);
});

test('the receiver of the example refuses what is not signed', async (t) => {
  const hook = program(t, [express(), '0'], { DQ_WEBHOOK_SECRETS: `${NEW},${OLD}` });
  const port = (await hook.line()).split(' ').at(-1);
  const settings = { callback: `http://127.0.0.1:${port}/hook`, secrets: [OLD], retry: ['1h'] };
  await register(topic, settings);
  await client.add(topic, { order: 42 }, { id: '42' });
  assert.equal(await hook.line(), 'job 42 { order: 42 }');
  await register(topic, { ...settings, secrets: ['another-secret'] });
  await client.add(topic, 1, { id: '43' });
  await eventually(async () => (await client.get(topic, '43')).log[0]?.status === 401);
});
