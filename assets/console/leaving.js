// Says whether the user leaves a page with unsaved entries, and asks first. drafts.js knows these entries. Pages
// without a form work without drafts.js.

let guard = null;

/** Says what knows it. @param {{isLeft: (from: ?string, to: string) => boolean, leave: (act: () => any) => any}} how */
export function onLeaving(how) {
  guard = how;
}

/** Whether something was entered on a page that would be lost if another hash were shown. @param {?string} from @param {string} to */
export function isLeft(from, to) {
  return guard?.isLeft(from, to) ?? false;
}

/** Does something that loses what was entered; asks before. @param {() => Promise<any>} act @returns {Promise<any>} */
export async function leaveDraft(act) {
  return guard ? guard.leave(act) : act();
}
