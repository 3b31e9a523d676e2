// The audit log: who changed what, and how many jobs each change affected. This page only reads it.

import { get, query } from '../api.js';
import { h } from '../dom.js';
import { count } from '../format.js';
import { has, t } from '../i18n.js';
import { card, pageHead } from '../parts/card.js';
import { empty, loaded } from '../parts/problem.js';
import { pager, table } from '../parts/table.js';
import { ago, at } from '../parts/time.js';

const PAGE = 100;

function actionText(action) {
  const key = `audit.${action}`;
  return has(key) ? t(key) : action;
}

function list(entries) {
  return table({
    label: t('nav.audit'), rows: entries, rowKey: (entry) => `${entry.at_ms} ${entry.who} ${entry.action} ${entry.target} ${entry.detail}`,
    columns: [
      { key: 'at', label: t('audit.at'), view: (entry) => h('span', { class: 'two-lines' }, ago(entry.at_ms), h('span', { class: 'soft' }, at(entry.at_ms))) },
      { key: 'who', label: t('audit.who'), view: (entry) => entry.who || h('span', { class: 'soft' }, t('audit.nobody')) },
      { key: 'action', label: t('audit.action'), main: true, view: (entry) => h('span', { title: entry.action }, actionText(entry.action)) },
      { key: 'target', label: t('audit.target'), view: (entry) => h('span', { class: 'mono break' }, entry.target) },
      { key: 'detail', label: t('detail'), class: 'cell-reason', view: (entry) => h('span', { class: 'soft' }, entry.detail ?? '') },
      { key: 'jobs', label: t('audit.jobs'), right: true, view: (entry) => h('span', { class: entry.jobs ? '' : 'zero' }, count(entry.jobs)) },
    ],
  });
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function audit({ resource }) {
  const turn = { cursor: null, page: 1 };
  const it = resource((signal) => get(`/v1/audit${query({ limit: PAGE, cursor: turn.cursor })}`, signal), 15000);
  const go = (cursor, page) => { Object.assign(turn, { cursor, page }); it.reload(); };
  return {
    title: () => t('nav.audit'),
    view: () => [
      pageHead({ title: t('nav.audit'), about: t('audit.about') }),
      loaded(it, (data) => (data.entries.length === 0 && turn.page === 1
        ? empty({ title: t('audit.none'), text: t('audit.none.text'), icon: 'audit', calm: true })
        : card({ key: 'list', flush: true }, list(data.entries),
          pager({ isFirst: turn.page === 1, next: data.next, onFirst: () => go(null, 1), onNext: () => go(data.next, turn.page + 1), shown: t('page.at', { page: turn.page, n: count(data.entries.length) }) }))))],
  };
}
