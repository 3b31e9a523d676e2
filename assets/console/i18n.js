// The language of the console, and its texts by their keys. This file must never contain a text. The texts are in
// words/.

const LANGUAGES = ['en', 'zh'];
let words = {};
let language = 'en';

/** The language that was chosen, or the first of the browser's that there is. @returns {string} */
function preferred() {
  const chosen = remembered('dq.language');
  if (LANGUAGES.includes(chosen)) return chosen;
  const wanted = (navigator.languages ?? []).map((tag) => tag.toLowerCase().split('-')[0]);
  return wanted.find((tag) => LANGUAGES.includes(tag)) ?? 'en';
}

/** What was kept in this browser under a name; null: nothing. @param {string} name @returns {?string} */
export function remembered(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

/** Keeps a text in this browser, where that is allowed; null: forgets it. @param {string} name @param {?string} value */
export function remember(name, value) {
  try {
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, value);
  } catch {
    // The browser does not store the value, so it lasts only until the page is closed.
  }
}

/** The texts of the frame and the overview, and those of all other pages, which the first page does without. */
const FIRST = { en: () => import('./words/en.js'), zh: () => import('./words/zh.js') };
const REST = { en: () => import('./words/en_pages.js'), zh: () => import('./words/zh_pages.js') };
/** What the daemon says in English. Its own words need no others in English. */
const PROBLEMS = {
  en: () => null,
  zh: async () => {
    const [finder, told] = await Promise.all([import('./problem_words.js'), import('./words/zh_problems.js')]);
    return finder.problemFinder(told.default);
  },
};
let isWhole = false;
let problems = null;

async function load(wanted) {
  const [first, rest, told] = await Promise.all([FIRST[wanted](), isWhole ? REST[wanted]() : { default: {} }, PROBLEMS[wanted]()]);
  words = { ...first.default, ...rest.default };
  problems = told;
  language = wanted;
  document.documentElement.lang = wanted === 'zh' ? 'zh-CN' : 'en';
}

/** Loads the texts of all pages. @returns {Promise<void>} */
export async function loadAllWords() {
  if (isWhole) return;
  isWhole = true;
  try {
    await load(language);
  } catch (e) {
    isWhole = false;
    throw e;
  }
}

/** Loads the texts that the first page needs. @returns {Promise<void>} */
export function loadLanguage() {
  return load(preferred());
}

/** Goes over to another language, and keeps it. @param {string} wanted @returns {Promise<void>} */
export function chooseLanguage(wanted) {
  remember('dq.language', wanted);
  return load(wanted);
}

/** The language that is shown: `en` or `zh`. @returns {string} */
export function shownLanguage() {
  return language;
}

/** The locale for Intl. @returns {string} */
export function locale() {
  return language === 'zh' ? 'zh-CN' : 'en-GB';
}

/** The words for what the daemon says in English; null: it is shown as it is. */
export function problemWords() {
  return problems;
}

/** Whether there is a text. @param {string} key @returns {boolean} */
export function has(key) {
  return key in words;
}

/**
 * A text. `{name}` in it is replaced; "one|many" is chosen by `values.n`.
 * @param {string} key
 * @param {Object<string, any>} [values]
 * @returns {string}
 */
export function t(key, values) {
  let text = words[key] ?? key;
  if (!values) return text;
  if (text.includes('|')) {
    const [one, many] = text.split('|');
    text = String(values.n) === '1' ? one : many;
  }
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}
