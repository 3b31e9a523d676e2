// Shows an id in all topics: the job or dead letter with this id, and how earlier jobs with this id ended. Without an
// id in the address, shows the search by filters.

import { get, path, query } from '../api.js';
import { h } from '../dom.js';
import { count } from '../format.js';
import { t } from '../i18n.js';
import { lastAttempt } from '../parts/attempts.js';
import { badge } from '../parts/badge.js';
import { card, pageHead } from '../parts/card.js';
import { endedBadge } from '../parts/ended.js';
import { jobSearch } from '../parts/job_search.js';
import { empty, loaded, note } from '../parts/problem.js';
import { jobHref } from '../parts/search.js';
import { table } from '../parts/table.js';
import { ago, at } from '../parts/time.js';

// Each request asks up to a thousand topics.
const LOOKS = 50;

async function read(id, signal) {
  const all = { found: [], next: null, away: [] };
  for (let i = 0; i < LOOKS; i++) {
    const some = await get(`${path('find')}${query({ id, cursor: all.next })}`, signal);
    all.found.push(...some.found);
    all.away.push(...(some.away ?? []));
    all.next = some.next;
    if (!all.next) break;
  }
  return all;
}

/** A row for each job, dead letter and record. */
function rows(found) {
  return found.flatMap(({ topic, job, records }) => [
    ...(job ? [{ topic, key: `${topic} job`, what: badge(job.state), at_ms: job.until_ms ?? job.due_ms, job }] : []),
    ...records.map((record) => ({ topic, key: `${topic} ${record.ended_ms} ${record.added_ms}`, what: endedBadge(record.outcome), at_ms: record.ended_ms, job: record })),
  ]);
}

function list(id, data) {
  if (data.found.length === 0 && data.away.length === 0) return empty({ title: t('find.none'), text: t('find.none.text') }, beginning(id));
  return [
    data.away.length > 0 && note('warn', h('p', null, t('find.away', { topics: data.away.join(', ') }))),
    table({
      key: 'found', label: t('find'), rows: rows(data.found), rowKey: (row) => row.key,
      columns: [
        { key: 'topic', label: t('topic'), main: true, view: (row) => h('a', { class: 'mono name', href: jobHref(row.topic, id) }, row.topic) },
        { key: 'what', label: t('state'), view: (row) => row.what },
        { key: 'at', label: t('find.at'), view: (row) => h('span', { class: 'two-lines' }, ago(row.at_ms), h('span', { class: 'soft' }, at(row.at_ms))) },
        { key: 'attempts', label: t('job.attempts'), right: true, view: (row) => count(row.job.attempts) },
        { key: 'last', label: t('ended.last'), class: 'cell-reason', view: (row) => lastAttempt(row.job.log) },
      ],
    })];
}

const beginning = (id) => h('a', { key: 'prefix', href: `#/find${query({ id_prefix: id })}` }, t('find.prefix'));

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function find(context) {
  const { query: asked, resource } = context;
  const id = asked.get('id') ?? '';
  if (id === '') return jobSearch(context);
  const it = resource((signal) => read(id, signal));
  return {
    title: () => `${id} · ${t('find')}`,
    view: () => [pageHead({ title: id, mono: true, about: t('find.about'), actions: beginning(id) }), card({ key: 'found', flush: true }, loaded(it, (data) => list(id, data)))],
  };
}
