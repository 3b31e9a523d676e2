// Formats numbers, spans and moments for people, in the language and the time zone of the viewer. Pure, except for the
// clock. It is the daemon's clock, as soon as the daemon has sent its time.

import { locale, t } from './i18n.js';

/** A job's priority: the word of its level, or its number. @param {string | number} priority */
export const priorityText = (priority) => (typeof priority === 'number' ? String(priority) : t(`priority.${priority}`));

const formatters = new Map();
let skew = 0;

/** The viewer's time zone. */
export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** Uses the daemon's clock from now on, if it differs from this clock by 1.5 seconds or more. @param {number} at_ms */
export function setClock(at_ms) {
  const off = at_ms - Date.now();
  skew = Math.abs(off) < 1500 ? 0 : off;
}

/** Now, by the daemon's clock. @returns {number} Unix milliseconds */
export function now() {
  return Date.now() + skew;
}

function formatter(kind, options, make) {
  const key = `${locale()} ${kind} ${JSON.stringify(options)}`;
  if (!formatters.has(key)) formatters.set(key, make(locale(), options));
  return formatters.get(key);
}

export const number = (options) => formatter('number', options, (l, o) => new Intl.NumberFormat(l, o));
const date = (options) => formatter('date', options, (l, o) => new Intl.DateTimeFormat(l, o));
const isMissing = (n) => n === null || n === undefined || Number.isNaN(n);

/** A whole number: 12,345. @param {?number} n @returns {string} */
export function count(n) {
  return isMissing(n) ? '–' : number({ maximumFractionDigits: 0 }).format(n);
}

/** A number in a short form: 99,999, but 100k and 1.2M. @param {?number} n @returns {string} */
export function compact(n) {
  if (isMissing(n)) return '–';
  if (Math.abs(n) < 100000) return count(n);
  const [by, unit] = Math.abs(n) >= 1e9 ? [1e9, 'G'] : Math.abs(n) >= 1e6 ? [1e6, 'M'] : [1e3, 'k'];
  return `${number({ maximumFractionDigits: 1 }).format(n / by)}${unit}`;
}

/** A number per second. @param {?number} n @returns {string} */
export function rate(n) {
  if (isMissing(n)) return '–';
  return n > 0 && n < 10 ? number({ maximumFractionDigits: 1 }).format(n) : compact(Math.round(n));
}

/** A percentage. @param {number} part 0 to 1 @returns {string} */
export function percent(part) {
  return number({ style: 'percent', maximumFractionDigits: 0 }).format(part);
}

/** @param {?number} n @returns {string} */
export function bytes(n) {
  if (isMissing(n)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const at = Math.min(units.length - 1, n < 1024 ? 0 : Math.floor(Math.log2(n) / 10));
  const value = n / 1024 ** at;
  return `${number({ maximumFractionDigits: value < 10 && at > 0 ? 1 : 0 }).format(value)} ${units[at]}`;
}

/** A short span with one fitting unit: 850 µs, 12 ms, 1.2 s, 57 min, 3.5 d. @param {?number} us microseconds @returns {string} */
export function micros(us) {
  if (isMissing(us)) return '–';
  const digits = (n) => number({ maximumFractionDigits: n < 10 ? 1 : 0 }).format(n);
  if (us < 1000) return `${digits(us)} µs`;
  if (us < 1e6) return `${digits(us / 1000)} ms`;
  if (us < 60e6) return `${digits(us / 1e6)} s`;
  const [name, size] = us < 3600e6 ? ['min', 60e6] : us < 86400e6 ? ['h', 3600e6] : ['d', 86400e6];
  return t(`unit.${name}`, { n: digits(us / size) });
}

const UNITS = [['d', 86400000], ['h', 3600000], ['min', 60000], ['s', 1000]];

/** A span by its two largest units: "1 h 30 min". @param {?number} ms @param {number} [parts] @returns {string} */
export function span(ms, parts = 2) {
  if (isMissing(ms)) return '–';
  if (ms < 1000) return ms <= 0 ? t('unit.s', { n: 0 }) : t('unit.ms', { n: Math.round(ms) });
  let rest = Math.round(ms / 1000) * 1000;
  const said = [];
  for (const [name, size] of UNITS) {
    const n = Math.floor(rest / size);
    if (n === 0 && said.length === 0) continue;
    if (said.length < parts && n > 0) said.push(t(`unit.${name}`, { n }));
    else if (said.length > 0) break;
    rest -= n * size;
  }
  return said.join(' ');
}

/** How long ago a moment was, or how far ahead it is. @param {number} at_ms @returns {string} */
export function age(at_ms) {
  const off = at_ms - now();
  if (Math.abs(off) < 1000) return t('time.now');
  const said = span(Math.abs(off), off > 0 && off < 600000 ? 2 : 1);
  return t(off > 0 ? 'time.in' : 'time.ago', { span: said });
}

const CLOCK = { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' };
const DAY = { year: 'numeric', month: '2-digit', day: '2-digit' };

/** A moment in the viewer's zone. The day is left out if it is today. @param {number} at_ms @returns {string} */
export function moment(at_ms) {
  const at = new Date(at_ms);
  const clock = date(CLOCK).format(at);
  return at.toDateString() === new Date(now()).toDateString() ? clock : `${dayOf(at)} ${clock}`;
}

function dayOf(at) {
  const parts = Object.fromEntries(date(DAY).formatToParts(at).map((part) => [part.type, part.value]));
  return `${parts.year}-${parts.month}-${parts.day}`;
}

/** Hours and minutes. @param {number} at_ms @returns {string} */
export function clockTime(at_ms) {
  return date({ hour: '2-digit', minute: '2-digit', hourCycle: 'h23' }).format(new Date(at_ms));
}

/** Hours, minutes and seconds. @param {number} at_ms @returns {string} */
export function clockSeconds(at_ms) {
  return date(CLOCK).format(new Date(at_ms));
}

/** A day such as "Sat 21". @param {string} day `2026-11-21` @returns {string} */
export function weekday(day) {
  return date({ weekday: 'short', day: 'numeric', timeZone: 'UTC' }).format(new Date(`${day}T00:00:00Z`));
}

/** A moment in full, with its offset and zone. @param {number} at_ms @returns {string} */
export function fullMoment(at_ms) {
  const at = new Date(at_ms);
  const off = -at.getTimezoneOffset();
  const two = (n) => String(Math.floor(Math.abs(n))).padStart(2, '0');
  const local = new Date(at_ms + off * 60000).toISOString().replace('Z', '');
  return `${local}${off < 0 ? '-' : '+'}${two(off / 60)}:${two(off % 60)} (${zone})`;
}
