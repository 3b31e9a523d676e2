// Accounts: who may sign in to the console. Passwords are sent to the daemon, and the console does not keep them.

import { get, path, put, remove } from '../api.js';
import { h } from '../dom.js';
import { t } from '../i18n.js';
import { tag } from '../parts/badge.js';
import { actionButton, button } from '../parts/button.js';
import { card, pageHead } from '../parts/card.js';
import { confirm } from '../parts/confirm.js';
import { openDialog } from '../parts/dialog.js';
import { field, segments } from '../parts/field.js';
import { empty, loaded } from '../parts/problem.js';
import { table } from '../parts/table.js';
import { when } from '../parts/time.js';
import { say } from '../parts/toast.js';
import { redraw } from '../redraw.js';
import { session } from '../session.js';

function edit(account, reload) {
  const fieldProblem = (it, name) => (it.problem?.field === name ? it.problem.detail : null);
  const isGood = (it) => it.state.name.trim() !== '' && it.state.password !== '' && it.state.password === it.state.again;
  const dialog = openDialog({
    title: account ? t('account.edit', { name: account.name }) : t('account.new'),
    onsubmit: (it) => isGood(it) && it.run(async () => {
      await put(path('accounts', it.state.name.trim()), { role: it.state.role, password: it.state.password });
      say(t('account.set', { name: it.state.name.trim() }));
      reload();
    }),
    view: (it) => {
      const set = (name) => (value) => { it.state[name] = value; redraw(); };
      const differs = it.state.again !== '' && it.state.again !== it.state.password;
      return [
        !account && field({ name: 'account-name', label: t('account.name'), value: it.state.name, mono: true, autofocus: true, autocomplete: 'off', problem: fieldProblem(it, 'name'), onchange: set('name') }),
        segments({ name: 'role', label: t('account.role'), value: it.state.role, options: [['admin', t('role.admin')], ['read', t('role.read')]], onchange: set('role') }),
        h('p', { class: 'field-help', key: 'role-help' }, t(`role.${it.state.role}.help`)),
        field({ name: 'password', label: t('account.password'), kind: 'password', value: it.state.password, autocomplete: 'new-password', problem: fieldProblem(it, 'password'), help: account ? t('account.password.help') : undefined, onchange: set('password') }),
        field({ name: 'again', label: t('account.again'), kind: 'password', value: it.state.again, autocomplete: 'new-password', problem: differs ? t('account.differs') : null, onchange: set('again') })];
    },
    actions: (it) => [button({ label: t('cancel'), onclick: it.close }), button({ label: t('save'), type: 'submit', kind: 'primary', busy: it.busy, disabled: !isGood(it) })],
  });
  Object.assign(dialog.state, { name: account?.name ?? '', role: account?.role ?? 'read', password: '', again: '' });
  redraw();
}

function removal(account, reload) {
  confirm({
    title: t('account.remove.title', { name: account.name }), action: t('account.remove'),
    text: h('p', null, account.name === session.name ? t('account.remove.own') : t('account.remove.text')),
    act: async () => {
      await remove(path('accounts', account.name));
      say(t('account.removed', { name: account.name }));
      reload();
    },
  });
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function accounts({ resource }) {
  const it = resource((signal) => get('/v1/accounts', signal), 30000);
  const list = (all) => table({
    label: t('nav.accounts'), rows: all, rowKey: (account) => account.name,
    columns: [
      { key: 'name', label: t('account.name'), main: true, view: (account) => h('span', { class: 'line' }, h('span', { class: 'mono' }, account.name), account.name === session.name && tag('plain', t('account.you'))) },
      { key: 'role', label: t('account.role'), view: (account) => tag(account.role === 'admin' ? 'ready' : 'plain', t(`role.${account.role}`), t(`role.${account.role}.help`)) },
      { key: 'set', label: t('account.set_at'), view: (account) => when(account.set_ms) },
      {
        key: 'do', label: t('actions'), hidden: true, right: true, view: (account) => h('span', { class: 'line line--end' },
          actionButton({ label: t('account.set_password'), small: true, onclick: () => edit(account, it.reload) }), actionButton({ label: t('account.remove'), small: true, onclick: () => removal(account, it.reload) })),
      },
    ],
  });
  return {
    title: () => t('nav.accounts'),
    view: () => [
      pageHead({ title: t('nav.accounts'), about: t('accounts.about'), actions: actionButton({ label: t('account.new'), icon: 'plus', kind: 'primary', onclick: () => edit(null, it.reload) }) }),
      loaded(it, (data) => (data.accounts.length === 0 ? empty({ title: t('accounts.none'), icon: 'accounts' }) : card({ key: 'list', flush: true }, list(data.accounts))))],
  };
}
