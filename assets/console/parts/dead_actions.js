// Redrives or purges dead letters. A dry run counts them first, and the user confirms. Then the request is repeated
// until none is left.

import { path, post } from '../api.js';
import { h } from '../dom.js';
import { count, now } from '../format.js';
import { t } from '../i18n.js';
import { redraw } from '../redraw.js';
import { button } from './button.js';
import { confirm, jobCount } from './confirm.js';
import { openDialog } from './dialog.js';
import { field, segments } from './field.js';
import { note } from './problem.js';
import { say } from './toast.js';

const MOST = 100000;
const NAMED = 8;
const SECONDS = { s: 1, m: 60, h: 3600 };

/**
 * The selected letters of a topic: those with these ids, or those that the filter selects, or all.
 * @typedef {{topic: string, ids?: string[], filter?: ?Object<string, any>}} Meant
 */

function bodyOf(meant, more) {
  return { ...(meant.ids ? { ids: meant.ids } : meant.filter ? { filter: meant.filter } : {}), ...more };
}

/** The same selection without the letters that are made from now on. So only counted letters are changed. @param {Meant} meant @param {number} now_ms @returns {Meant} */
function upTo(meant, now_ms) {
  if (meant.ids) return meant;
  const { died_before: before = now_ms, ...filter } = meant.filter ?? {};
  return { ...meant, chosen: meant.filter?.died_before !== undefined, filter: { ...filter, died_before: Math.min(before, now_ms) } };
}

// If a topic is not registered, and none of its dead letters is selected, the API answers `unknown_topic`. This counts
// as 0.
async function ask(meant, verb, more) {
  try {
    return await post(path('topics', meant.topic, 'dead', verb), bodyOf(meant, { limit: MOST, ...more }));
  } catch (problem) {
    if (problem.code === 'unknown_topic') return { matched: 0, redriven: 0, purged: 0 };
    throw problem;
  }
}

/**
 * Counts the selected letters.
 * @param {Meant[]} all
 * @returns {Promise<{jobs: number, more: boolean, away: string[]}>} `more`: there are more letters, which one request could not check;
 *   `away`: the nodes that could not be asked
 */
async function counted(all, verb) {
  const sum = { jobs: 0, more: false, away: [] };
  for (const meant of all) {
    const told = await ask(meant, verb, { dry_run: true });
    sum.jobs += told.matched;
    sum.more ||= Boolean(told.more);
    sum.away = [...new Set([...sum.away, ...(told.away ?? [])])];
  }
  return sum;
}

const countText = (found, verb) => [found.more ? `${t('dead.at_least')} ` : '', jobCount(found.jobs), ` ${t(`dead.${verb}.count`)}`];

/** Text about the topics of the selected letters, and about what could not be counted. @param {Meant[]} all @param {?{jobs: number, more: boolean, away: string[]}} found */
function ofText(all, found) {
  return [
    h('p', { class: 'soft', key: 'of' }, `${t('dead.of')} `, all.slice(0, NAMED).map((one, i) => [i > 0 ? ', ' : '', h('span', { class: 'mono', key: one.topic }, one.topic)]), all.length > NAMED && ` ${t('dead.of_more', { n: count(all.length - NAMED) })}`, isFiltered(all) && ` · ${t('dead.filtered')}`),
    found?.more && found.jobs === 0 && note('warn', h('p', null, t('dead.too_many'))),
    found?.away.length > 0 && note('warn', h('p', null, t('jobs.away', { nodes: found.away.join(', ') })))];
}

/** Repeats a request until it changes nothing more. */
async function untilDone(meant, verb, word, more, tell) {
  let done = 0;
  for (;;) {
    const told = await ask(meant, verb, more(done));
    done += told[word];
    tell(told[word]);
    if (told[word] === 0 || meant.ids || (told[word] >= told.matched && !told.more)) return done;
  }
}

function perSecond(rate) {
  const found = rate.trim().match(/^(\d+)\/([smh])$/);
  return found ? Number(found[1]) / SECONDS[found[2]] : null;
}

const isFiltered = (all) => all.some((one) => !one.ids && Object.keys(one.filter ?? {}).some((name) => name !== 'died_before' || one.chosen));

/** Purges the selected letters, after the user has typed a name. @param {Meant[]} meant @param {() => void} after */
export function purge(meant, after) {
  const all = meant.map((one) => upTo(one, now()));
  confirm({
    title: t('dead.purge.title'), action: t('dead.purge'), typed: all.length === 1 ? all[0].topic : 'purge',
    text: (found) => [h('p', { key: 'text' }, t('dead.purge.text')), ofText(all, found)],
    countJobs: () => counted(all, 'purge'), counted: (found) => countText(found, 'purge'), isFit: (found) => found.jobs > 0,
    act: async () => {
      let done = 0;
      // If a request fails, the result of the earlier requests is still shown.
      try {
        for (const one of all) await untilDone(one, 'purge', 'purged', () => ({}), (n) => { done += n; });
      } finally {
        if (done > 0) {
          say(t('dead.purged', { n: count(done) }));
          after();
        }
      }
    },
  });
}

/** Redrives the selected letters, all at once or at a rate. @param {Meant[]} meant @param {() => void} after */
export function redrive(meant, after) {
  const all = meant.map((one) => upTo(one, now()));
  const rateOf = (it) => (it.state.way === 'rate' ? it.state.rate.trim() : '');
  const isGood = (it) => it.state.found?.jobs > 0 && (it.state.way === 'now' || perSecond(rateOf(it)) > 0);
  const act = async (it) => {
    const rate = rateOf(it);
    const begun = it.state.done;
    let before = begun;
    try {
      for (const one of all) {
        const more = (done) => (rate ? { rate, delay: Math.floor((before + done) / perSecond(rate)) } : {});
        before += await untilDone(one, 'redrive', 'redriven', more, (n) => { it.state.done += n; redraw(); });
      }
    } finally {
      const done = it.state.done - begun;
      if (done > 0) {
        say(t('dead.redriven', { n: count(done) }));
        after();
      }
    }
  };
  const dialog = openDialog({
    title: t('dead.redrive.title'),
    onsubmit: (it) => isGood(it) && it.run(() => act(it)),
    view: (it) => [
      (it.state.found || !it.problem) && h('p', { class: 'dialog-count', key: 'count', role: 'status' }, it.state.found ? countText(it.state.found, 'redrive') : t('confirm.counting')),
      ofText(all, it.state.found),
      segments({ name: 'way', label: t('dead.redrive.how'), value: it.state.way, options: [['now', t('dead.redrive.now')], ['rate', t('dead.redrive.rate')]], onchange: (way) => { it.state.way = way; redraw(); } }),
      it.state.way === 'rate' && field({ name: 'rate', label: t('dead.rate'), value: it.state.rate, mono: true, help: t('dead.rate.help'), problem: perSecond(it.state.rate) ? null : t('dead.rate.bad'), onchange: (rate) => { it.state.rate = rate; redraw(); } }),
      h('p', { class: 'field-help', key: 'help' }, t('dead.redrive.help')),
      it.state.done > 0 && h('p', { key: 'done', role: 'status' }, t('dead.redrive.done', { n: count(it.state.done) }))],
    actions: (it) => [button({ label: t('cancel'), onclick: it.close, disabled: it.busy }), button({ label: t('redrive'), icon: 'redrive', type: 'submit', kind: 'primary', busy: it.busy, disabled: !isGood(it) })],
  });
  Object.assign(dialog.state, { way: 'now', rate: '50/s', found: null, done: 0 });
  counted(all, 'redrive').then((found) => { dialog.state.found = found; redraw(); }, (problem) => { dialog.problem = problem; redraw(); });
}
