// Asks the user before something that cannot be undone. The question says how many jobs are affected, and the user may
// have to type a name. The caller passes the function that does the work.

import { h } from '../dom.js';
import { count } from '../format.js';
import { t } from '../i18n.js';
import { redraw } from '../redraw.js';
import { button } from './button.js';
import { openDialog } from './dialog.js';
import { field, segments } from './field.js';

/**
 * Asks the user before an action that cannot be undone. First counts the jobs that the action affects.
 * @param {{title: string, text: any, action: string, cancel?: string, danger?: boolean, typed?: string, countJobs?: () => Promise<any>, counted?: (found: any) => any, isFit?: (found: any) => boolean, choice?: Choice, act: (found: any, choice: ?string) => Promise<any>}} told
 * @typedef {{label: string, options: [string, any][], isNeeded: (problem: ?any) => boolean}} Choice what has to be chosen, from when it is needed: a refusal may say so
 */
export function confirm(told) {
  const dialog = openDialog({
    title: told.title, isForm: false,
    onsubmit: (it) => isReady(it) && it.run(() => told.act(it.state.jobs ?? null, it.state.choice ?? null)),
    view: (it) => [
      h('div', { class: 'dialog-text' }, typeof told.text === 'function' ? told.text(it.state.jobs ?? null) : told.text),
      told.countJobs && h('div', { class: 'dialog-count', role: 'status' }, it.state.failed ? null : it.state.jobs === undefined ? t('confirm.counting') : told.counted(it.state.jobs)),
      needsChoice(it) && h('div', { class: 'field', key: 'choice' }, h('span', { class: 'field-label' }, told.choice.label),
        segments({ name: 'choice', label: told.choice.label, value: it.state.choice ?? '', options: told.choice.options, onchange: (choice) => { it.state.choice = choice; redraw(); } })),
      told.typed && field({
        name: 'typed', label: t('confirm.type', { name: told.typed }), value: it.state.typed ?? '', mono: true, autofocus: true, onchange: (typed) => { it.state.typed = typed; redraw(); },
      })],
    actions: (it) => [
      button({ label: told.cancel ?? t('cancel'), onclick: it.close, disabled: it.busy }),
      button({ label: told.action, type: 'submit', kind: told.danger === false ? 'primary' : 'danger', busy: it.busy, disabled: !isReady(it) })],
  });
  function needsChoice(it) {
    it.state.mustChoose ||= told.choice?.isNeeded(it.problem) ?? false;
    return it.state.mustChoose;
  }
  const isReady = (it) => (!needsChoice(it) || it.state.choice) && (!told.typed || it.state.typed === told.typed) && (!told.countJobs || (it.state.jobs !== undefined && (told.isFit?.(it.state.jobs) ?? true)));
  if (told.countJobs) ask(dialog, told.countJobs);
}

async function ask(dialog, countJobs) {
  try {
    dialog.state.jobs = await countJobs();
  } catch (problem) {
    Object.assign(dialog, { problem });
    dialog.state.failed = true;
  }
  redraw();
}

/** "3 jobs", as a strong word. @param {number} n */
export function jobCount(n) {
  return h('strong', null, t('n.jobs', { n: count(n) }));
}
