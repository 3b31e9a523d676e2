// The form to sign in. The password is sent to the daemon, and is not kept.

import { h } from '../dom.js';
import { t } from '../i18n.js';
import { redraw } from '../redraw.js';
import { session, signIn } from '../session.js';
import { button } from './button.js';
import { field } from './field.js';
import { note } from './problem.js';

const form = { name: 'admin', password: '', busy: false, problem: null };

async function submit(event) {
  event.preventDefault();
  if (form.busy) return;
  // A password manager may have filled in the fields without an event. So the values are read from the fields.
  const [name, password] = ['name', 'password'].map((id) => document.getElementById(`f-${id}`).value);
  Object.assign(form, { name, password, busy: true, problem: null });
  redraw();
  try {
    await signIn(name, password);
    form.password = '';
  } catch (problem) {
    form.problem = problem;
  }
  form.busy = false;
  redraw();
}

function told(problem) {
  if (problem.code === 'wrong_password') return t('sign_in.wrong');
  if (problem.code === 'too_many_failures') return t('sign_in.too_many');
  return problem.detail;
}

/** The fields of the form, or the reason why nobody can sign in. */
function fields() {
  if (!session.has_accounts) return note('warn', h('p', null, t('sign_in.no_accounts')), h('p', { class: 'soft' }, t('sign_in.no_accounts.help')));
  return [
    form.problem && note('bad', h('p', null, told(form.problem))),
    field({ name: 'name', label: t('sign_in.name'), value: form.name, autocomplete: 'username', onchange: (name) => { form.name = name; } }),
    field({ name: 'password', kind: 'password', label: t('sign_in.password'), value: form.password, autocomplete: 'current-password', autofocus: true, onchange: (password) => { form.password = password; } }),
    button({ label: t('sign_in'), type: 'submit', kind: 'primary', busy: form.busy }),
    h('p', { class: 'field-help' }, t('sign_in.help'), ' ', h('code', null, 'dq console password'))];
}

/** @param {any} switches the buttons for language and theme */
export function signInView(switches) {
  return [
    h('header', { class: 'outside-top' }, switches),
    h('main', { class: 'sign-in', id: 'main' },
      h('form', { class: 'sign-in-card', novalidate: true, onsubmit: submit },
        h('svg', { class: 'brand-mark brand-mark--big', viewBox: '0 0 32 32', 'aria-hidden': 'true' },
          h('rect', { class: 'brand-ground', width: 32, height: 32, rx: 8 }), h('circle', { class: 'brand-line', cx: 14, cy: 16, r: 7 }), h('path', { class: 'brand-line', d: 'M14 12v4l3 2M21 7v18' })),
        h('h1', null, t('sign_in.title')),
        h('p', { class: 'soft sign-in-where' }, [session.instance, session.version && `dq ${session.version}`].filter(Boolean).join(' · ')),
        fields()))];
}
