// Dialogs: native ones, so that focus stays in them and Esc closes them. What is confirmed is done by whoever asked.

import { h } from '../dom.js';
import { t } from '../i18n.js';
import { redraw } from '../redraw.js';
import { button } from './button.js';
import { problemNote } from './problem.js';
import { toastRegion } from './toast.js';

let dialogs = [];
let number = 0;

/**
 * Opens a dialog.
 * @param {{title: string, view: (dialog: Dialog) => any, actions?: (dialog: Dialog) => any, onsubmit?: (dialog: Dialog) => any, wide?: boolean}} told
 * @returns {Dialog}
 * @typedef {{id: number, close: () => void, state: any, busy: boolean, problem: ?Error, run: (act: () => Promise<any>) => Promise<void>}} Dialog
 */
export function openDialog(told) {
  const dialog = { id: ++number, told, state: {}, busy: false, problem: null, close, run };

  function close() {
    dialogs = dialogs.filter((one) => one !== dialog);
    redraw();
  }

  // Closes it when it is done; what is refused is shown in it.
  async function run(act) {
    Object.assign(dialog, { busy: true, problem: null });
    redraw();
    try {
      await act();
      close();
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

/** Closes all of them. */
export function closeDialogs() {
  dialogs = [];
}

function one(dialog) {
  const { told } = dialog;
  const id = `dialog-${dialog.id}`;
  const submit = (event) => {
    event.preventDefault();
    if (!dialog.busy) told.onsubmit?.(dialog);
  };
  return h('dialog', {
    key: dialog.id, class: told.wide ? 'dialog dialog--wide' : 'dialog', 'aria-labelledby': id, mount: (el) => el.showModal(), unmount: (el) => el.close(),
    onclose: dialog.close,
    oncancel: (event) => { event.preventDefault(); if (!dialog.busy) dialog.close(); },
    // Who marks a text and lets go outside has not meant to close it.
    onpointerdown: (event) => { dialog.pressedOutside = event.target === event.currentTarget && isOutside(event); },
    onclick: (event) => { if (dialog.pressedOutside && isOutside(event) && !dialog.busy) dialog.close(); },
  }, h('form', { class: 'dialog-form', method: 'dialog', novalidate: true, onsubmit: submit },
    h('h2', { id, class: 'dialog-title' }, told.title),
    h('div', { class: 'dialog-body' }, told.view(dialog), problemNote(dialog.problem)),
    h('div', { class: 'dialog-actions' }, told.actions?.(dialog) ?? button({ label: t('close'), onclick: dialog.close }))),
  // Nothing outside of it is reached while it is open.
  toastRegion(dialog === dialogs.at(-1)));
}

function isOutside(event) {
  const box = event.target.getBoundingClientRect();
  return event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom;
}

/** All that are open, and what is said in short: behind a dialog it would not be heard. */
export function dialogLayer() {
  return [toastRegion(dialogs.length === 0), ...dialogs.map(one)];
}
