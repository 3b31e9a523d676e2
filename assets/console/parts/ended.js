// What dq keeps of a job that has ended: its record, as a timeline, and how earlier jobs with the same id ended.

import { remove } from '../api.js';
import { h } from '../dom.js';
import { bytes, count, micros } from '../format.js';
import { t } from '../i18n.js';
import { byteLength, pretty, readable } from '../json.js';
import { mayChange } from '../session.js';
import { attemptLines, lastAttempt, point } from './attempts.js';
import { tag } from './badge.js';
import { actionButton } from './button.js';
import { card, facts } from './card.js';
import { confirm } from './confirm.js';
import { note } from './problem.js';
import { codeBlock } from './snippet.js';
import { table } from './table.js';
import { linkFacts } from './links.js';
import { tagLinks } from './tags.js';
import { ago, at, when } from './time.js';
import { say } from './toast.js';

export const OUTCOMES = ['delivered', 'dead', 'deleted', 'replaced'];
const TONES = { delivered: 'good', dead: 'bad' };

/** The badge for how a job ended. @param {string} outcome */
export function endedBadge(outcome) {
  return tag(TONES[outcome] ?? 'plain', t(`ended.${outcome}`));
}

/** The button that erases the records of an id. It asks the user first. @param {string} url @param {any} record @param {() => void} done */
export function forgetButton(url, record, done) {
  return mayChange() && actionButton({ key: 'forget', label: t('forget'), icon: 'trash', onclick: () => confirm({
    title: t('forget.title'), action: t('forget'), text: h('p', null, t('forget.text', { id: record.id, topic: record.topic })),
    act: async () => {
      const { erased } = await remove(url);
      say(t('forget.done', { n: count(erased) }));
      done();
    },
  }) });
}

function line(record) {
  return card({ title: t('ended.story'), key: 'story' }, h('ol', { class: 'attempts' },
    record.added_ms !== undefined && point('added', '', t('job.added'), when(record.added_ms)),
    attemptLines(record.log),
    point('end', record.outcome === 'delivered' ? 'good' : record.outcome === 'dead' ? 'end' : '', t(`ended.${record.outcome}`), when(record.ended_ms))));
}

function earlier(records) {
  return records.length > 0 && card({ title: t('ended.earlier'), key: 'earlier', flush: true }, table({
    key: 'earlier', label: t('ended.earlier'), rows: records, rowKey: (record) => `${record.ended_ms} ${record.added_ms}`,
    columns: [
      { key: 'outcome', label: t('ended.outcome'), main: true, view: (record) => endedBadge(record.outcome) },
      { key: 'ended', label: t('ended.at'), view: (record) => h('span', { class: 'two-lines' }, ago(record.ended_ms), h('span', { class: 'soft' }, at(record.ended_ms))) },
      { key: 'attempts', label: t('job.attempts'), right: true, view: (record) => count(record.attempts) },
      { key: 'last', label: t('ended.last'), class: 'cell-reason', view: (record) => lastAttempt(record.log) },
    ],
  }));
}

/** @param {any[]} records the records of one id, the latest first */
export function endedDetail(records) {
  const [record, ...before] = records;
  const body = record.body === undefined ? null : JSON.stringify(record.body);
  return [
    note('info', h('p', null, t('ended.note'))),
    h('div', { class: 'grid grid--job', key: 'ended' },
      h('div', { class: 'stack', key: 'left' }, line(record), earlier(before)),
      h('div', { class: 'stack', key: 'right' },
        card({ title: t('job.facts'), key: 'facts' }, facts([
          [t('ended.outcome'), endedBadge(record.outcome)],
          [t('ended.at'), when(record.ended_ms)],
          [t('job.due'), when(record.due_ms)],
          record.added_ms !== undefined && [t('job.added'), when(record.added_ms)],
          record.late_ms !== undefined && [t('ended.late'), micros(record.late_ms * 1000)],
          [t('job.attempts'), count(record.attempts)],
          record.ttr_ms !== undefined && [t('job.ttr'), micros(record.ttr_ms * 1000)],
          record.tags && [t('job.tags'), tagLinks(record.tags)],
          ...linkFacts(record),
        ].filter(Boolean))),
        body !== null && card({ title: t('job.body'), key: 'body', help: bytes(byteLength(body)) }, codeBlock(readable(pretty(body)), t('job.body')))))];
}
