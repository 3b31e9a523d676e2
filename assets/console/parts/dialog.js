// Dialogs. They are the browser's own dialogs, so that the focus stays in them, and Esc closes them. The caller does
// what the user has confirmed.

import { h } from '../dom.js';
import { t } from '../i18n.js';
import { onLayer } from '../layer.js';
import { redraw } from '../redraw.js';
import { session } from '../session.js';
import { button } from './button.js';
import { problemNote } from './problem.js';
import { toastRegion } from './toast.js';

let dialogs = [];
/** The dialogs with entries when the session ended, and the person who made these entries. */
let suspended = { who: '', dialogs: [] };
let number = 0;

/**
 * Opens a dialog.
 * @param {{title: string, view: (dialog: Dialog) => any, actions?: (dialog: Dialog) => any, onsubmit?: (dialog: Dialog) => any, wide?: boolean, isForm?: boolean}} told
 *   `isForm`: asks the user before entries are lost (the default)
 * @returns {Dialog}
 * @typedef {{id: number, close: () => void, state: any, busy: boolean, problem: ?Error, run: (act: () => Promise<any>) => Promise<void>}} Dialog
 */
export function openDialog(told) {
  const dialog = { id: ++number, told, state: {}, busy: false, problem: null, isTouched: false, asksToLeave: false, close, run };

  function close() {
    // The browser also reports the end of a dialog that was already removed here.
    if (!dialogs.includes(dialog)) return;
    if (dialog.isTouched && !dialog.asksToLeave && told.isForm !== false) dialog.asksToLeave = true;
    else end();
    redraw();
  }

  function end() {
    dialogs = dialogs.filter((one) => one !== dialog);
  }

  // Runs `act`, and then closes the dialog. If `act` fails, the dialog stays open and shows the reason.
  async function run(act) {
    Object.assign(dialog, { busy: true, problem: null });
    redraw();
    try {
      await act();
      end();
      // The page that opened this dialog was left when the session ended. So the present page is opened again, to show
      // the change.
      if (dialog.isResumed) window.dispatchEvent(new Event('hashchange'));
    } catch (problem) {
      dialog.problem = problem;
    }
    dialog.busy = false;
    redraw();
  }

  dialogs = [...dialogs, dialog];
  redraw();
  return dialog;
}

const isEntered = (dialog) => dialog.isTouched && dialog.told.isForm !== false;

// The session is over. Entries are kept for the person who made them, and are shown again when this person signs in.
window.addEventListener('dq-left', ({ detail: who }) => {
  const entered = dialogs.filter(isEntered);
  if (who !== '' && entered.length > 0) suspended = { who, dialogs: entered };
  dialogs = [];
});

window.addEventListener('dq-back', () => {
  if (suspended.who === session.name) dialogs = suspended.dialogs.map((one) => Object.assign(one, { busy: false, problem: null, isResumed: true }));
  suspended = { who: '', dialogs: [] };
  redraw();
});

window.addEventListener('dq-signed-out', () => {
  suspended = { who: '', dialogs: [] };
  dialogs = [];
});

window.addEventListener('beforeunload', (event) => {
  if ([...dialogs, ...suspended.dialogs].some(isEntered)) event.preventDefault();
});

function actionsOf(dialog) {
  if (!dialog.asksToLeave) return dialog.told.actions?.(dialog) ?? button({ label: t('close'), onclick: dialog.close });
  const stay = () => { dialog.asksToLeave = false; redraw(); };
  return [
    h('p', { class: 'dialog-leave', key: 'leave', role: 'alert' }, t('form.leave.text')),
    button({ key: 'stay', label: t('form.stay'), onclick: stay }),
    button({ key: 'go', label: t('form.leave'), kind: 'danger', onclick: dialog.close })];
}

function one(dialog) {
  const { told } = dialog;
  const id = `dialog-${dialog.id}`;
  const submit = (event) => {
    event.preventDefault();
    if (!dialog.busy && !dialog.asksToLeave) told.onsubmit?.(dialog);
  };
  return h('dialog', {
    key: dialog.id, class: told.wide ? 'dialog dialog--wide' : 'dialog', 'aria-labelledby': id, mount: (el) => el.showModal(), update: (el) => { if (!el.open) el.showModal(); }, unmount: (el) => el.close(),
    onclose: dialog.close,
    oncancel: (event) => { event.preventDefault(); if (!dialog.busy) dialog.close(); },
    // A user may select text, and release the button outside the dialog. This must not close the dialog.
    onpointerdown: (event) => { dialog.pressedOutside = event.target === event.currentTarget && isOutside(event); },
    onclick: (event) => { if (dialog.pressedOutside && isOutside(event) && !dialog.busy) dialog.close(); },
  }, h('form', { class: 'dialog-form', method: 'dialog', novalidate: true, onsubmit: submit, oninput: () => { dialog.isTouched = true; } },
    h('h2', { id, class: 'dialog-title' }, told.title),
    h('div', { class: 'dialog-body' }, told.view(dialog), problemNote(dialog.problem)),
    h('div', { class: 'dialog-actions' }, actionsOf(dialog))),
  // While a dialog is open, nothing outside it can be reached. So the short messages are inside the dialog.
  toastRegion(dialog === dialogs.at(-1)));
}

function isOutside(event) {
  const box = event.target.getBoundingClientRect();
  return event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom;
}

// Shows all open dialogs and the short messages. A screen reader does not read a message behind a dialog, so the top
// dialog has the messages.
onLayer(() => [toastRegion(dialogs.length === 0), ...dialogs.map(one)]);
