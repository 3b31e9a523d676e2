// Finds the words for what the daemon says in English: by its code, or by a sentence that is known.

import { has, t } from './i18n.js';

const filled = (text, ...values) => text.replace(/\{(\w+)\}/g, (whole, name) => values.find((of) => of?.[name] !== undefined)?.[name] ?? whole);

/**
 * @param {{sentences: [RegExp, string][], codes: Object<string, string>, alerts: Object<string, string>}} words
 * @returns {{reason: (problem: {code?: string, field?: ?string, detail: string}) => ?string, detail: (text: string) => ?string, alert: (alert: {name: string, detail?: string}) => ?string}}
 *   each is null for what is not known
 */
export function problemFinder({ sentences, codes, alerts }) {
  function detail(text, values = {}) {
    for (const [pattern, words] of sentences) {
      const found = pattern.exec(text);
      if (found) return filled(words, found.groups, values);
    }
    return null;
  }

  function reason({ code = '', field, detail: text }) {
    const values = { field: field ? (has(`field.${field}`) ? t(`field.${field}`) : field) : '', detail: text };
    const words = codes[code] ?? (code.startsWith('store_') ? codes.store : null);
    return detail(text, values) ?? (words && filled(words, values));
  }

  function alert({ name, detail: text = '' }) {
    const meaning = alerts[name] ?? null;
    return (text && detail(text)) || (meaning && text ? `${meaning}（${text}）` : meaning);
  }

  return { reason, detail, alert };
}
