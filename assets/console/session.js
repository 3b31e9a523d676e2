// Who is signed in, and what they may do. This file never keeps a password. Scripts cannot see the cookie, so it does
// not keep the cookie either.

import { onSignedOut, request, setCsrf } from './api.js';
import { remember, remembered } from './i18n.js';
import { redraw } from './redraw.js';

/** @type {{known: boolean, signed_in: boolean, has_accounts: boolean, name: string, role: string, version: string, instance: string}} */
export const session = { known: false, signed_in: false, has_accounts: true, name: '', role: '', version: '', instance: '' };

let changed = () => {};

/** Called when somebody has signed in or out. @param {() => void} handler */
export function onSessionChange(handler) {
  changed = handler;
}

const who = () => (session.signed_in ? `${session.role} ${session.name}` : '');

function take(told) {
  const was = who();
  Object.assign(session, { name: '', role: '' }, told, { known: true });
  setCsrf(told.csrf ?? '');
  remember('dq.signed_in', told.signed_in ? 'yes' : null);
  if (was !== who()) changed();
  redraw();
}

/** Whether somebody was signed in when this browser was here last, so that the frame can be shown before the answer. @returns {boolean} */
export function wasSignedIn() {
  return remembered('dq.signed_in') === 'yes';
}

/** Asks who is signed in. @returns {Promise<void>} */
export async function loadSession() {
  take((await request('GET', '/console/session')).json);
}

/** Asks again. @returns {Promise<boolean>} whether it is still the same person who is signed in */
export async function renewSession() {
  const was = who();
  await loadSession();
  return was !== '' && was === who();
}

/** @param {string} name @param {string} password @returns {Promise<void>} */
export async function signIn(name, password) {
  take((await request('POST', '/console/session', { name, password })).json);
}

/** @returns {Promise<void>} */
export async function signOut() {
  await request('DELETE', '/console/session');
  window.dispatchEvent(new Event('dq-signed-out'));
  take({ signed_in: false });
}

/** Whether whoever is signed in may change something. @returns {boolean} */
export function mayChange() {
  return session.role === 'admin';
}

onSignedOut(() => {
  if (session.signed_in) take({ signed_in: false });
});
