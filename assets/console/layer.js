// What is shown above the page: short messages, and dialogs, once the module that shows them is loaded. The first page does without it.

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
