// Says whether the user leaves a page with unsaved entries, and asks the user first. drafts.js knows these entries.
// Pages without a form work without drafts.js.

let guard = null;

/** Sets the functions that know the unsaved entries. @param {{isLeft: (from: ?string, to: string) => boolean, leave: (act: () => any) => any}} how */
export function onLeaving(how) {
  guard = how;
}

/** Whether unsaved entries would be lost if the page with the hash `to` were shown. @param {?string} from @param {string} to */
export function isLeft(from, to) {
  return guard?.isLeft(from, to) ?? false;
}

/** Does something that loses unsaved entries. Asks the user first. @param {() => Promise<any>} act @returns {Promise<any>} */
export async function leaveDraft(act) {
  return guard ? guard.leave(act) : act();
}
