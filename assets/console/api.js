// Requests to the daemon's HTTP API, with the session's cookie. This file does not decide what is shown. It tells
// app.js when the session is over.

import { t } from './i18n.js';
import { reasonText } from './reason.js';

/** Why a request was refused. */
export class Problem extends Error {
  /** @param {number} status the HTTP status; 0: no answer came @param {{code?: string, detail?: string, title?: string, field?: string}} told */
  constructor(status, told) {
    super(told.detail ?? told.title ?? `${status}`);
    this.status = status;
    this.code = told.code ?? 'unknown';
    this.field = told.field ?? null;
  }

  /** The reason, in the language that is shown. */
  get detail() {
    return reasonText({ code: this.code, field: this.field, detail: this.message });
  }
}

let csrf = '';
let signedOut = () => {};
let stale = async () => false;

/** Sets the function that is called when an answer says that nobody is signed in. @param {() => void} handler */
export function onSignedOut(handler) {
  signedOut = handler;
}

/** Sets the function that is called when another tab has signed in again. It returns whether the person is still the same. @param {() => Promise<boolean>} handler */
export function onStale(handler) {
  stale = handler;
}

/** Sets the CSRF value that is sent with each request that changes something. @param {string} value */
export function setCsrf(value) {
  csrf = value;
}

/** A path of the API. Its parts are percent-encoded. @param {...string} parts @returns {string} */
export function path(...parts) {
  return `/v1/${parts.map(encodeURIComponent).join('/')}`;
}

/** A query string with the values that are not empty. @param {Object<string, any>} values @returns {string} */
export function query(values) {
  const said = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== '');
  return said.length === 0 ? '' : `?${new URLSearchParams(said.map(([name, value]) => [name, String(value)]))}`;
}

function refusal(status, text) {
  try {
    return new Problem(status, JSON.parse(text));
  } catch {
    return new Problem(status, { code: `status_${status}`, detail: t('error.status', { status }) });
  }
}

async function send(method, url, body, headers, signal) {
  const all = { accept: 'application/json', ...headers };
  if (body !== undefined) all['content-type'] = 'application/json';
  if (method !== 'GET' && csrf) all['dq-csrf'] = csrf;
  const text = body === undefined || typeof body === 'string' ? body : JSON.stringify(body);
  try {
    const answer = await fetch(url, { method, body: text, headers: all, signal, credentials: 'same-origin', cache: 'no-store' });
    return { answer, text: await answer.text() };
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    throw new Problem(0, { code: 'no_answer', detail: t('error.no_answer') });
  }
}

/**
 * Makes one request. A body that is a string is sent as it is.
 * @param {string} method
 * @param {string} url
 * @param {any} [body]
 * @param {{headers?: Object<string, string>, signal?: AbortSignal}} [more]
 * @returns {Promise<{status: number, headers: Headers, text: string, json: any}>} the answer, if its status is 2xx
 * @throws {Problem}
 */
export async function request(method, url, body, more = {}) {
  const go = () => send(method, url, body, more.headers ?? {}, more.signal);
  let { answer, text } = await go();
  if (answer.status === 403 && refusal(answer.status, text).code === 'no_csrf' && await stale()) {
    ({ answer, text } = await go());
  }
  if (!answer.ok) {
    if (answer.status === 401) signedOut();
    throw refusal(answer.status, text);
  }
  return { status: answer.status, headers: answer.headers, text, json: parsed(text) };
}

function parsed(text) {
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    throw new Problem(0, { code: 'bad_answer', detail: t('error.bad_answer') });
  }
}

/** @param {string} url @param {AbortSignal} [signal] @returns {Promise<any>} */
export const get = async (url, signal) => (await request('GET', url, undefined, { signal })).json;
/** @param {string} url @param {any} [body] @returns {Promise<any>} */
export const post = async (url, body) => (await request('POST', url, body)).json;
/** @param {string} url @param {any} body @param {Object<string, string>} [headers] @returns {Promise<any>} */
export const put = async (url, body, headers) => (await request('PUT', url, body, { headers })).json;
/** @param {string} url @param {any} body @param {Object<string, string>} [headers] @returns {Promise<any>} */
export const change = async (url, body, headers) => (await request('PATCH', url, body, { headers })).json;
/** @param {string} url @param {Object<string, string>} [headers] @returns {Promise<any>} */
export const remove = async (url, headers) => (await request('DELETE', url, undefined, { headers })).json;
