// Spans as the API writes them, such as "1h30m". A text that is not a span stays a text. The daemon decides whether it
// is allowed.

import { span } from './format.js';

const SPAN_UNITS = { ms: 1, s: 1000, m: 60000, h: 3600000, d: 86400000 };
const SPAN_WORDS = { sec: 's', min: 'm', hr: 'h', hour: 'h', day: 'd', days: 'd', w: 'w' };

/** A span of the API, such as "1h30m", in milliseconds; null: the text is not a span. @param {string} text @returns {?number} */
export function parseSpan(text) {
  const trimmed = String(text).trim();
  if (/^\d+(\.\d+)?$/.test(trimmed)) return Number(trimmed) * 1000;
  if (!/^(\d+\s*[a-zµ]+\s*)+$/.test(trimmed)) return null;
  let ms = 0;
  for (const [, n, unit] of trimmed.matchAll(/(\d+)\s*([a-zµ]+)/g)) {
    const size = SPAN_UNITS[SPAN_WORDS[unit] ?? unit] ?? OTHER_UNITS[unit];
    if (size === undefined) return null;
    ms += Number(n) * size;
  }
  return ms;
}

const OTHER_UNITS = { us: 0.001, ns: 0.000001, w: 604800000, week: 604800000, weeks: 604800000, month: 2630016000, months: 2630016000, M: 2630016000, year: 31557600000, years: 31557600000, y: 31557600000, seconds: 1000, minutes: 60000, hours: 3600000, mins: 60000, hrs: 3600000, secs: 1000 };

/** A span of the API in the form for people. A text that is not a span stays as it is. @param {string} text @returns {string} */
export function spanText(text) {
  const ms = parseSpan(text);
  return ms === null ? text : span(ms);
}
