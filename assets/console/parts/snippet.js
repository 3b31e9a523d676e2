// Text that is there to be copied: code, tokens, addresses.

import { h } from '../dom.js';
import { t } from '../i18n.js';
import { button } from './button.js';
import { say } from './toast.js';

async function copy(text, from) {
  try {
    await navigator.clipboard.writeText(text);
    say(t('copied'));
  } catch {
    // Without a secure context there is no clipboard. So the text is selected, and the user can copy it.
    const range = document.createRange();
    range.selectNodeContents(from.querySelector('code'));
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    say(t('copy.by_hand'));
  }
}

/** A block of text with a button that copies it. @param {{text: string, label: string, key?: string}} told */
export function snippet({ text, label, key }) {
  return h('div', { class: 'snippet', key },
    h('div', { class: 'snippet-head' }, h('span', null, label),
      button({ label: t('copy'), icon: 'copy', small: true, kind: 'quiet', onclick: (event) => copy(text, event.target.closest('.snippet')) })),
    h('pre', { class: 'code', tabindex: '0', role: 'group', 'aria-label': label }, h('code', null, text)));
}

/** A text in its own box, which can be scrolled. @param {string} text @param {string} label */
export function codeBlock(text, label) {
  return h('pre', { class: 'code', tabindex: '0', role: 'group', 'aria-label': label }, h('code', null, text));
}
