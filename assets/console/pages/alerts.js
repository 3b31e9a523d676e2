// Alerts: which ones are open, who gets them, and a test message to these recipients. The problems themselves are
// solved on other pages.

import { get, post } from '../api.js';
import { h } from '../dom.js';
import { micros } from '../format.js';
import { parseSpan, spanText } from '../span.js';
import { has, t } from '../i18n.js';
import { live } from '../live.js';
import { alertName } from '../parts/attention.js';
import { tag } from '../parts/badge.js';
import { actionButton } from '../parts/button.js';
import { card, facts, pageHead } from '../parts/card.js';
import { empty, loaded, problemNote } from '../parts/problem.js';
import { topicHref } from '../parts/search.js';
import { table } from '../parts/table.js';
import { when } from '../parts/time.js';
import { alertText } from '../reason.js';
import { redraw } from '../redraw.js';

const RULES = ['gather', 'interval', 'late_after', 'restarts_within'];

function about(alert) {
  if (alert.topic) return h('a', { class: 'mono', href: topicHref(alert.topic) }, alert.topic);
  if (alert.node) return h('a', { class: 'mono', href: '#/nodes' }, alert.node);
  if (alert.process) return h('a', { class: 'mono', href: '#/processes' }, alert.process);
  return h('span', { class: 'soft' }, t('alerts.store'));
}

function openAlerts(alerts) {
  if (alerts.length === 0) return card({ title: t('alerts.open'), key: 'open' }, empty({ title: t('alerts.none'), text: t('alerts.none.text'), icon: 'check', calm: true }));
  return card({ title: t('alerts.open'), key: 'open', flush: true }, table({
    label: t('alerts.open'), rows: alerts, rowKey: (a) => `${a.name} ${a.node} ${a.topic} ${a.process}`,
    columns: [
      { key: 'what', label: t('alerts.what'), main: true, view: (a) => h('span', { class: 'two-lines' }, h('b', null, alertName(a)), alertText(a) && h('span', { class: 'soft alert-detail' }, alertText(a))) },
      { key: 'about', label: t('alerts.about'), view: about },
      { key: 'risk', label: t('alerts.risk'), view: (a) => (a.loses_jobs ? tag('bad', t('alerts.loses')) : tag('plain', t('alerts.keeps'))) },
      { key: 'since', label: t('alerts.since'), view: (a) => when(a.since_ms) },
    ],
  }));
}

function resultOf(state, channel, to) {
  const result = state.results?.find((one) => one.channel === channel && one.to === to);
  if (!result) return h('span', { class: 'zero' }, '–');
  return h('span', { class: 'two-lines' }, h('span', null, tag(result.sent ? 'good' : 'bad', result.sent ? t('alerts.sent') : t('alerts.not_sent')), h('span', { class: 'soft' }, ` ${micros(result.duration_ms * 1000)}`)), result.error && h('span', { class: 'bad-text' }, result.error));
}

function channelTable(data, state, test) {
  const rows = [
    ...(data.mail?.recipients ?? []).map((to) => ({ channel: 'mail', to, where: data.mail.host, from: data.mail.from })),
    ...data.webhooks.map((hook) => ({ channel: 'webhook', to: hook.name, where: hook.host, only: [...(hook.kinds ?? []), ...(hook.topics ?? [])] }))];
  if (rows.length === 0) return empty({ title: t('alerts.nobody'), text: t('alerts.nobody.text'), icon: 'alerts' });
  return table({
    label: t('alerts.channels'), rows, rowKey: (row) => `${row.channel} ${row.to}`,
    columns: [
      { key: 'to', label: t('alerts.to'), main: true, view: (row) => h('span', { class: 'two-lines' }, h('span', null, row.to), row.from && h('span', { class: 'soft' }, t('alerts.from', { from: row.from })), row.only?.length > 0 && h('span', { class: 'soft' }, t('alerts.only', { what: row.only.join(', ') }))) },
      { key: 'channel', label: t('alerts.channel'), view: (row) => t(`alerts.${row.channel}`) },
      { key: 'where', label: t('alerts.host'), view: (row) => h('span', { class: 'mono' }, row.where) },
      { key: 'result', label: t('alerts.result'), view: (row) => resultOf(state, row.channel, row.to) },
      { key: 'test', label: t('actions'), hidden: true, right: true, view: (row) => actionButton({ label: t('alerts.test.one'), small: true, busy: state.busy, onclick: () => test(row.channel === 'mail' ? { to: row.to } : { webhook: row.to }) }) },
    ],
  });
}

function ruleValue(value) {
  if (value === null) return t('settings.never');
  if (parseSpan(value) !== null) return spanText(value);
  return Array.isArray(value) ? value.join(', ') || '–' : typeof value === 'object' && value !== null ? JSON.stringify(value) : String(value ?? '–');
}

function rules(data) {
  const figures = data.rules ?? Object.fromEntries(RULES.filter((name) => name in data).map((name) => [name, data[name]]));
  const list = Object.entries(figures).map(([name, value]) => [has(`rule.${name}`) ? t(`rule.${name}`) : name, ruleValue(value)]);
  return list.length > 0 && card({ title: t('alerts.rules'), key: 'rules', help: t('alerts.rules.help') }, facts(list));
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function alerts({ resource }) {
  const read = resource((signal) => get('/v1/alerts', signal));
  const channels = resource((signal) => get('/v1/alerts/channels', signal));
  const state = { busy: false, results: null, problem: null };

  async function test(whom) {
    Object.assign(state, { busy: true, problem: null });
    redraw();
    try {
      const { results } = await post('/v1/alerts/test', whom);
      const others = (state.results ?? []).filter((old) => !results.some((one) => one.channel === old.channel && one.to === old.to));
      state.results = [...others, ...results];
    } catch (problem) {
      state.problem = problem;
    }
    state.busy = false;
    redraw();
  }

  return {
    title: () => t('nav.alerts'),
    view: () => [
      pageHead({ title: t('nav.alerts'), about: t('alerts.page.about') }),
      live.alerts ? openAlerts(live.alerts) : loaded(read, (data) => openAlerts(data.alerts)),
      card({ title: t('alerts.channels'), key: 'channels', flush: channels.data !== null, actions: actionButton({ label: t('alerts.test'), icon: 'send', small: true, busy: state.busy, onclick: () => test({}) }) },
        state.problem && h('div', { class: 'inset', key: 'problem' }, problemNote(state.problem)), loaded(channels, (data) => channelTable(data, state, test), 3)),
      channels.data && rules(channels.data)],
  };
}
