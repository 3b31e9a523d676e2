// Starts the console, and shows the page that the hash of the address names. Each page decides what it shows. This file
// asks the API only who is signed in.

import { onStale } from './api.js';
import { recolour } from './chart.js';
import { patch } from './dom.js';
import { loadAllWords, loadLanguage } from './i18n.js';
import { isLeft, leaveDraft } from './leaving.js';
import { onConnection, startLive, stopLive } from './live.js';
import { onRedraw, redraw } from './redraw.js';
import { resource } from './resource.js';
import { loadSession, onSessionChange, renewSession, session } from './session.js';
import { shell } from './shell.js';

/**
 * @typedef {{params: Object<string, string>, query: URLSearchParams, resource: typeof resource, onLeave: (act: () => void) => void}} Context
 * @typedef {{title: () => string, view: () => any}} Page
 */

/** Each route: the pattern of the hash, the module of the page, and its entry in the navigation. */
const ROUTES = [
  ['/', () => import('./pages/overview.js'), 'overview'],
  ['/topics', () => import('./pages/topics.js'), 'topics'],
  ['/register', () => import('./pages/topic_form.js'), 'topics'],
  ['/topics/:topic', () => import('./pages/topic.js'), 'topics'],
  ['/topics/:topic/edit', () => import('./pages/topic_form.js'), 'topics'],
  ['/topics/:topic/jobs', () => import('./pages/jobs.js'), 'topics'],
  ['/topics/:topic/dead', () => import('./pages/dead.js'), 'topics'],
  ['/topics/:topic/bulk', () => import('./pages/bulk.js'), 'topics'],
  ['/topics/:topic/records', () => import('./pages/records.js'), 'topics'],
  ['/topics/:topic/test', () => import('./pages/trial.js'), 'topics'],
  ['/topics/:topic/jobs/:id', () => import('./pages/job.js'), 'topics'],
  ['/find', () => import('./pages/find.js'), 'topics'],
  ['/dead', () => import('./pages/dead.js'), 'dead'],
  ['/nodes', () => import('./pages/nodes.js'), 'nodes'],
  ['/processes', () => import('./pages/processes.js'), 'processes'],
  ['/alerts', () => import('./pages/alerts.js'), 'alerts'],
  ['/tokens', () => import('./pages/tokens.js'), 'tokens'],
  ['/accounts', () => import('./pages/accounts.js'), 'accounts'],
  ['/audit', () => import('./pages/audit.js'), 'audit'],
];

const NOT_FOUND = () => import('./pages/not_found.js');
const root = document.getElementById('app');
const current = { hash: null, page: null, nav: '', key: 0, leave: [], failed: null };
let signIn = null;

function matched(path) {
  const parts = path.split('/').filter(Boolean);
  for (const [pattern, load, nav] of ROUTES) {
    const wanted = pattern.split('/').filter(Boolean);
    if (wanted.length !== parts.length) continue;
    const params = {};
    const fits = wanted.every((part, i) => (part.startsWith(':') ? (params[part.slice(1)] = parts[i]) !== '' : part === parts[i]));
    if (fits) return { params: decoded(params), load, nav };
  }
  return { params: {}, load: NOT_FOUND, nav: '' };
}

function decoded(params) {
  const safe = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };
  return Object.fromEntries(Object.entries(params).map(([name, text]) => [name, safe(text)]));
}

function leave() {
  for (const act of current.leave) act();
  Object.assign(current, { leave: [], page: null, failed: null });
}

let looks = null;

/** Loads the styles that the first page does not need. */
function loadLooks() {
  looks ??= new Promise((done, failed) => {
    const link = Object.assign(document.createElement('link'), { rel: 'stylesheet', href: '/console/pages.css', onload: done, onerror: () => { link.remove(); looks = null; failed(new Error(link.href)); } });
    document.head.append(link);
  });
  return looks;
}

/** Shows the page that the hash names. */
async function go() {
  const hash = location.hash || '#/';
  const [path, search = ''] = hash.slice(1).split('?');
  const { params, load, nav } = matched(path);
  const key = ++current.key;
  const was = current.hash;
  let module;
  try {
    [module] = await Promise.all([load(), nav !== 'overview' && loadAllWords(), nav !== 'overview' && loadLooks()]);
  } catch (failed) {
    if (key !== current.key) return;
    leave();
    Object.assign(current, { hash, nav, failed });
    redraw();
    return;
  }
  if (key !== current.key || !session.signed_in) return;
  leave();
  Object.assign(current, { hash, nav });
  const acts = current.leave;
  /** @type {Context} */
  const context = {
    params, query: new URLSearchParams(search), onLeave: (act) => acts.push(act),
    resource: (read, every) => {
      const it = resource(read, every);
      acts.push(it.stop);
      return it;
    },
  };
  current.page = module.default(context);
  redraw();
  if (was !== null && was.split('?')[0] !== hash.split('?')[0]) arrive();
}

// After a click in the navigation, the page is shown from its top. The focus goes to its heading, so that a screen
// reader begins there.
function arrive() {
  window.scrollTo(0, 0);
  requestAnimationFrame(() => requestAnimationFrame(() => {
    // A page may have put the focus into an input field. The focus then stays there.
    if (!document.getElementById('main')?.querySelector('input:focus')) document.querySelector('h1')?.focus({ preventScroll: true });
  }));
}

function draw() {
  root.dataset.shown = current.page ? current.hash : '';
  if (session.known && !session.signed_in && signIn === null) {
    import('./parts/sign_in.js').then((module_) => { signIn = module_.signInView; redraw(); });
  }
  patch(root, shell({ page: current.page, nav: current.nav, key: current.hash?.split('?')[0], failed: current.failed, signIn }));
  const title = session.signed_in && current.page ? current.page.title() : '';
  const whole = [title, `dq ${session.instance ?? ''}`.trim()].filter(Boolean).join(' · ');
  if (document.title !== whole) document.title = whole;
}

onRedraw(draw);
onConnection(loadSession);
onStale(renewSession);
let name = '';
onSessionChange(() => {
  window.dispatchEvent(new CustomEvent('dq-left', { detail: name }));
  name = session.name;
  if (session.signed_in) {
    startLive();
    go().then(() => window.dispatchEvent(new Event('dq-back')));
  } else {
    leave();
    current.hash = null;
    stopLive();
  }
});

async function start() {
  const language = loadLanguage();
  const asked = loadSession().catch(() => {
    // The daemon did not answer. The question is repeated until it answers.
    session.known = false;
    setTimeout(start, 2000);
  });
  await language;
  redraw();
  await asked;
}

window.addEventListener('hashchange', () => {
  if (!session.signed_in) return;
  const wanted = location.hash;
  if (!isLeft(current.hash, wanted)) return go();
  history.replaceState(null, '', current.hash);
  leaveDraft(() => { location.hash = wanted; });
});
window.addEventListener('dq-theme', recolour);
window.addEventListener('dq-language', recolour);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', recolour);
// Texts such as "3 min ago" change as time passes.
setInterval(() => !document.hidden && redraw(), 1000);
start();
