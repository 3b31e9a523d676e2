// Who is signed in, and what they may do. This file never keeps a password. Scripts cannot see the cookie, so this file
// does not keep the cookie either.

import { onSignedOut, request, setCsrf } from './api.js';
import { remember, remembered } from './i18n.js';
import { redraw } from './redraw.js';

/** @type {{known: boolean, signed_in: boolean, has_accounts: boolean, name: string, role: string, version: string, instance: string}} */
export const session = { known: false, signed_in: false, has_accounts: true, name: '', role: '', version: '', instance: '' };

let changed = () => {};

/** Sets the function that is called when somebody has signed in or out. @param {() => void} handler */
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

/** Whether somebody was signed in at the last visit of this browser. If so, the frame is shown before the daemon answers. @returns {boolean} */
export function wasSignedIn() {
  return remembered('dq.signed_in') === 'yes';
}

/** Asks the daemon who is signed in. @returns {Promise<void>} */
export async function loadSession() {
  take((await request('GET', '/console/session')).json);
}

/** Asks the daemon again who is signed in. @returns {Promise<boolean>} whether the same person is still signed in */
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

/** Whether the person who is signed in may change something. @returns {boolean} */
export function mayChange() {
  return session.role === 'admin';
}

onSignedOut(() => {
  if (session.signed_in) take({ signed_in: false });
});
