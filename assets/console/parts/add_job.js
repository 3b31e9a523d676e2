// Adds a job by hand. The body is sent exactly as it was typed.

import { path, request } from '../api.js';
import { h } from '../dom.js';
import { t } from '../i18n.js';
import { flaw } from '../json.js';
import { redraw } from '../redraw.js';
import { button } from './button.js';
import { openDialog } from './dialog.js';
import { field, segments } from './field.js';
import { isTag } from './tags.js';
import { say } from './toast.js';

/** The due time as the API takes it. With `topic`, the delay of the topic applies. */
function timeOf({ way, delay, at }) {
  if (way === 'in') return { delay: delay.trim() };
  return way === 'at' ? { run_at: new Date(at).getTime() } : {};
}

const isTimed = ({ way, delay, at }) => way === 'topic' || (way === 'in' ? delay.trim() !== '' : at !== '');

const tagsOf = ({ tags }) => tags.split(/[\s,]+/).filter(Boolean);

/** The optional fields that are not empty. */
function others({ tags, path: own, url, ttr, expire_after }) {
  const given = { path: own.trim(), url: url.trim(), tags: tagsOf({ tags }), ttr: ttr.trim(), expire_after: expire_after.trim() };
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value.length > 0));
}

/** @param {string} topic @param {() => void} after */
export function addJob(topic, after) {
  const isGood = (it) => it.state.id.trim() !== '' && isTimed(it.state) && flaw(it.state.body) === null && tagsOf(it.state).every(isTag);
  const problemOf = (it, name) => (it.problem?.field === name ? it.problem.detail : null);
  const dialog = openDialog({
    title: t('job.add.title', { topic }), wide: true,
    onsubmit: (it) => isGood(it) && it.run(async () => {
      const job = { id: it.state.id.trim(), on_conflict: 'reject', ...timeOf(it.state), ...others(it.state) };
      // The body is put in as text, because a browser would round some numbers.
      await request('POST', path('topics', topic, 'jobs'), `${JSON.stringify(job).slice(0, -1)},"body":${it.state.body}}`);
      say(t('job.added_as', { id: job.id }));
      after();
    }),
    view: (it) => {
      const set = (name) => (value) => { it.state[name] = value; redraw(); };
      const why = flaw(it.state.body);
      return [
        field({ name: 'job-id', label: t('job.id'), value: it.state.id, mono: true, required: true, autofocus: true, problem: problemOf(it, 'id'), help: t('job.add.id.help'), onchange: set('id') }),
        segments({ name: 'way', label: t('job.when'), value: it.state.way, options: [['topic', t('job.add.delay')], ['in', t('job.in')], ['at', t('job.at')]], onchange: set('way') }),
        it.state.way === 'in' && field({ name: 'delay', label: t('job.in.label'), value: it.state.delay, mono: true, problem: problemOf(it, 'delay'), help: t('span.help'), onchange: set('delay') }),
        it.state.way === 'at' && field({ name: 'at', label: t('job.at.label'), kind: 'datetime-local', value: it.state.at, problem: problemOf(it, 'run_at'), help: t('zone.help', { zone: Intl.DateTimeFormat().resolvedOptions().timeZone }), onchange: set('at') }),
        field({ name: 'job-body', label: t('job.body'), kind: 'area', rows: 8, mono: true, wide: true, value: it.state.body, problem: why && t('json.flaw', { why }), help: t('job.add.body.help'), onchange: set('body') }),
        h('details', { class: 'more', key: 'more' }, h('summary', null, t('job.add.more')),
          field({ name: 'job-tags', label: t('job.tags'), value: it.state.tags, mono: true, problem: tagsOf(it.state).every(isTag) ? problemOf(it, 'tags') : t('tag.bad'), help: t('job.add.tags.help'), onchange: set('tags') }),
          field({ name: 'job-path', label: t('job.path'), value: it.state.path, mono: true, problem: problemOf(it, 'path'), help: t('job.add.path.help'), onchange: set('path') }),
          field({ name: 'job-url', label: t('job.url'), value: it.state.url, mono: true, problem: problemOf(it, 'url'), help: t('job.add.url.help'), onchange: set('url') }),
          field({ name: 'job-ttr', label: t('job.ttr'), value: it.state.ttr, mono: true, problem: problemOf(it, 'ttr'), help: t('job.ttr.help'), onchange: set('ttr') }),
          field({ name: 'job-expire-after', label: t('job.add.expire_after'), value: it.state.expire_after, mono: true, problem: problemOf(it, 'expire_after'), help: t('job.add.expire_after.help'), onchange: set('expire_after') }))];
    },
    actions: (it) => [button({ label: t('cancel'), onclick: it.close }), button({ label: t('job.add'), type: 'submit', kind: 'primary', busy: it.busy, disabled: !isGood(it) })],
  });
  Object.assign(dialog.state, { id: '', way: 'topic', delay: '10m', at: '', body: '{}', tags: '', path: '', url: '', ttr: '', expire_after: '' });
  redraw();
}
