// The page for an address that no page has.

import { t } from '../i18n.js';
import { linkButton } from '../parts/button.js';
import { pageHead } from '../parts/card.js';
import { empty } from '../parts/problem.js';

/** @returns {import('../app.js').Page} */
export default function notFound() {
  return {
    title: () => t('not_found'),
    view: () => [pageHead({ title: t('not_found') }), empty({ title: t('not_found.text') }, linkButton({ label: t('nav.overview'), href: '#/' }))],
  };
}
