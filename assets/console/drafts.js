// The entries on a page that are not saved yet. They are kept only in the memory of this page, and only for the person
// who made them. If this person signs in again after the end of the session, the entries are still there. They must
// never be stored in the browser, because they may contain secrets.

import { t } from './i18n.js';
import { onLeaving } from './leaving.js';
import { session } from './session.js';

/** @type {?{place: string, who: string, values: any}} */
let draft = null;

const placeOf = (hash) => hash.split('?')[0];

/** Keeps the entries of the page that is shown. @param {any} values */
export function keepDraft(values) {
  draft = { place: placeOf(location.hash), who: session.name, values };
}

/** The kept entries of the page that is shown; null: there are none, or somebody else made them. */
export function keptDraft() {
  return draft?.place === placeOf(location.hash) && draft.who === session.name ? draft.values : null;
}

/** Forgets the kept entries. */
export function dropDraft() {
  draft = null;
}

function isLeft(from, to) {
  return draft !== null && from !== null && placeOf(from) === draft.place && placeOf(to) !== draft.place;
}

async function leave(act) {
  if (draft === null) return act();
  const { confirm } = await import('./parts/confirm.js');
  confirm({
    title: t('form.leave.title'), text: t('form.leave.text'), action: t('form.leave'), cancel: t('form.stay'),
    act: async () => {
      dropDraft();
      await act();
    },
  });
}

onLeaving({ isLeft, leave });
window.addEventListener('dq-signed-out', dropDraft);
window.addEventListener('beforeunload', (event) => {
  if (draft !== null) event.preventDefault();
});
