// What is shown above the page: short messages and dialogs. Dialogs are shown once parts/dialog.js is loaded. The first
// page does not need parts/dialog.js.

import { toastRegion } from './parts/toast.js';

let shown = () => [toastRegion(true)];

/** Sets the function that shows dialogs and messages. @param {() => any[]} how */
export function onLayer(how) {
  shown = how;
}

/** Everything that is shown above the page. @returns {any[]} */
export function layer() {
  return shown();
}
