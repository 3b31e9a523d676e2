// What is shown above the page: short messages and dialogs. Dialogs are shown once parts/dialog.js is loaded. The first
// page does not need this module.

import { toastRegion } from './parts/toast.js';

let shown = () => [toastRegion(true)];

/** Says how dialogs and messages are shown. @param {() => any[]} how */
export function onLayer(how) {
  shown = how;
}

/** All that is above the page. @returns {any[]} */
export function layer() {
  return shown();
}
