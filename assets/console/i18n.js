// The language of the console, and its texts by their keys. This file must never contain a text. The texts are in
// words/.

const LANGUAGES = ['en', 'zh'];
let words = {};
let language = 'en';

/** The language that the user chose, or else the first language of the browser for which there are texts. @returns {string} */
function preferred() {
  const chosen = remembered('dq.language');
  if (LANGUAGES.includes(chosen)) return chosen;
  const wanted = (navigator.languages ?? []).map((tag) => tag.toLowerCase().split('-')[0]);
  return wanted.find((tag) => LANGUAGES.includes(tag)) ?? 'en';
}

/** The text that this browser stores under a name; null: there is none. @param {string} name @returns {?string} */
export function remembered(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

/** Stores a text in this browser, if the browser allows it; null: removes the stored text. @param {string} name @param {?string} value */
export function remember(name, value) {
  try {
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, value);
  } catch {
    // The browser does not store the value, so it lasts only until the page is closed.
  }
}

/** `FIRST`: the texts of the frame and the overview. `REST`: the texts of all other pages, which are loaded later. */
const FIRST = { en: () => import('./words/en.js'), zh: () => import('./words/zh.js') };
const REST = { en: () => import('./words/en_pages.js'), zh: () => import('./words/zh_pages.js') };
/** Translations of what the daemon says in English. In English, the daemon's own words are shown. */
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

/** Shows another language from now on, and remembers this choice. @param {string} wanted @returns {Promise<void>} */
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

/** The translations of what the daemon says in English; null: the daemon's own words are shown. */
export function problemWords() {
  return problems;
}

/** Whether there is a text with this key. @param {string} key @returns {boolean} */
export function has(key) {
  return key in words;
}

/**
 * The text of a key. `{name}` in the text is replaced by `values.name`. A text "one|many" has two parts; `values.n`
 * chooses one of them.
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
