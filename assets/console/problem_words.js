// Translates what the daemon says in English. It finds the words by the code of the problem, or by a known sentence.

import { moment } from './format.js';
import { has, t } from './i18n.js';

const filled = (text, ...values) => text.replace(/\{(\w+)\}/g, (whole, name) => values.find((of) => of?.[name] !== undefined)?.[name] ?? whole);

/**
 * @param {{sentences: [RegExp, string][], codes: Object<string, string>, alerts: Object<string, string>, waiting: Object<string, string>}} words
 * @returns {{reason: (problem: {code?: string, field?: ?string, detail: string}) => ?string, detail: (text: string) => ?string, alert: (alert: {name: string, detail?: string}) => ?string, waiting: (why: any) => ?string}}
 *   each function returns null if it has no translation
 */
export function problemFinder({ sentences, codes, alerts, waiting: reasons }) {
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

  /** Moments have the form that the page uses, and failures are translated. A value that is unknown is left out. */
  function waiting(why) {
    const values = Object.fromEntries(Object.entries(why).map(([name, value]) => {
      if (name.endsWith('_ms')) return [name, typeof value === 'number' ? moment(value) : ''];
      if (name === 'by') return [name, value ? `（${value}）` : ''];
      return [name, ['error', 'reason', 'why'].includes(name) ? detail(value) ?? value : value ?? ''];
    }));
    const variants = { paused: !why.since_ms && 'paused_unknown', rate: why.next_ms && 'rate_next' };
    const words = reasons[variants[why.code] || why.code];
    return words ? filled(words, values) : null;
  }

  return { reason, detail, alert, waiting };
}
