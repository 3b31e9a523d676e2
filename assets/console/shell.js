// The frame around all pages: navigation, search, switches, the banner of a lost connection. It does not know the
// content of the pages.

import { classes, h } from './dom.js';
import { chooseLanguage, remember, shownLanguage, t } from './i18n.js';
import { layer } from './layer.js';
import { leaveDraft } from './leaving.js';
import { live, total } from './live.js';
import { compact } from './format.js';
import { button } from './parts/button.js';
import { icon } from './parts/icon.js';
import { note, skeleton } from './parts/problem.js';
import { searchBox } from './parts/search.js';
import { sayProblem } from './parts/toast.js';
import { redraw } from './redraw.js';
import { mayChange, session, signOut, wasSignedIn } from './session.js';

const GROUPS = [['overview', 'topics', 'dead', 'alerts'], ['nodes', 'processes'], ['tokens', 'accounts', 'audit']];
const THEMES = ['auto', 'light', 'dark'];
const frame = { open: false };

const hrefOf = (name) => (name === 'overview' ? '#/' : `#/${name}`);

function badgeOf(name) {
  const n = name === 'dead' ? total('dead') : name === 'alerts' ? live.alerts?.length ?? 0 : 0;
  return n > 0 && h('span', { class: classes('nav-count', name === 'alerts' && 'nav-count--bad'), key: 'count' }, compact(n), h('span', { class: 'sr' }, ` ${t(`nav.${name}.count`)}`));
}

function entry(name, nav) {
  const close = () => { frame.open = false; redraw(); };
  return h('li', { key: name }, h('a', { href: hrefOf(name), class: 'nav-link', 'aria-current': nav === name ? 'page' : undefined, onclick: close },
    icon(name), h('span', null, t(`nav.${name}`)), badgeOf(name)));
}

function brand() {
  return h('a', { class: 'brand', href: '#/', 'aria-label': t('brand') },
    h('svg', { class: 'brand-mark', viewBox: '0 0 32 32', 'aria-hidden': 'true' },
      h('rect', { class: 'brand-ground', width: 32, height: 32, rx: 8 }), h('circle', { class: 'brand-line', cx: 14, cy: 16, r: 7 }), h('path', { class: 'brand-line', d: 'M14 12v4l3 2M21 7v18' })),
    h('span', { class: 'brand-name' }, 'dq'));
}

function navigation(nav) {
  return h('nav', { id: 'nav', class: classes('nav', frame.open && 'nav--open'), 'aria-label': t('nav') }, brand(),
    // An account that may only view things gets no links to pages that it may not see.
    GROUPS.slice(0, mayChange() ? 3 : 2).map((group, i) => h('ul', { class: 'nav-group', key: i }, group.map((name) => entry(name, nav)))),
    h('div', { class: 'nav-foot' }, h('span', { class: 'nav-instance', title: session.instance }, session.instance), h('span', { class: 'soft' }, session.version && `dq ${session.version}`), h('a', { href: '/docs' }, t('api_docs'))));
}

function chosenTheme() {
  return document.documentElement.dataset.theme ?? 'auto';
}

function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length];
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  remember('dq.theme', theme === 'auto' ? null : theme);
  window.dispatchEvent(new Event('dq-theme'));
  redraw();
}

async function nextLanguage() {
  await chooseLanguage(shownLanguage() === 'en' ? 'zh' : 'en');
  window.dispatchEvent(new Event('dq-language'));
  redraw();
}

/** The buttons that change the theme and the language. */
export function switches() {
  const theme = chosenTheme();
  return [
    button({ key: 'language', label: shownLanguage() === 'en' ? '中文' : 'English', icon: 'language', kind: 'quiet', title: t('language.switch'), onclick: nextLanguage }),
    button({ key: 'theme', label: `${t('theme')}: ${t(`theme.${theme}`)}`, icon: theme === 'light' ? 'sun' : theme === 'dark' ? 'moon' : 'auto', kind: 'quiet', bare: true, onclick: nextTheme })];
}

function heartbeat() {
  const state = live.connected ? 'live' : live.lost ? 'lost' : 'joining';
  return h('span', { class: `pulse pulse--${state}`, title: t(`pulse.${state}.why`) }, h('i', null), h('span', { class: 'pulse-word' }, t(`pulse.${state}`)));
}

function topBar() {
  return h('header', { class: 'top' },
    h('button', { type: 'button', class: 'button button--quiet button--bare top-menu', 'aria-expanded': frame.open ? 'true' : 'false', 'aria-controls': 'nav', 'aria-label': t('nav.open'), onclick: () => { frame.open = !frame.open; redraw(); } }, icon(frame.open ? 'close' : 'menu')),
    searchBox(), h('span', { class: 'gap' }), heartbeat(), switches(),
    h('span', { class: 'who', title: t(`role.${session.role}`) }, icon('accounts'), h('span', { class: 'who-name' }, session.name), session.role === 'read' && h('span', { class: 'badge badge--plain' }, t('role.read.short'))),
    button({ label: t('sign_out'), icon: 'out', kind: 'quiet', bare: true, onclick: () => leaveDraft(signOut).catch(sayProblem) }));
}

function content({ page, failed, key }) {
  if (failed) return note('bad', h('p', null, t('error.page')), button({ label: t('reload'), small: true, onclick: () => location.reload() }));
  if (!page) return skeleton(6);
  return h('div', { class: 'page', key }, page.view());
}

function banner() {
  return live.lost && h('div', { class: 'banner', role: 'status', key: 'banner' }, icon('warn'), t('lost'));
}

/**
 * Everything that the document shows.
 * @param {{page: ?import('./app.js').Page, nav: string, key: ?string, failed: ?Error, signIn: ?(switches: any) => any}} now
 * @returns {any[]}
 */
export function shell(now) {
  const isFrame = session.known ? session.signed_in : wasSignedIn();
  if (!isFrame && !(session.known && now.signIn)) return [h('div', { class: 'boot', key: 'boot' }, h('div', { class: 'boot-side' }), h('div', { class: 'boot-main' }))];
  if (!isFrame) return [h('div', { class: 'outside', key: 'outside' }, now.signIn(switches())), ...layer()];
  return [
    h('div', { class: classes('frame', live.lost && 'frame--lost'), key: 'frame' },
      h('a', { class: 'skip', href: '#main', onclick: (event) => { event.preventDefault(); document.getElementById('main').focus(); } }, t('skip')),
      navigation(now.nav), frame.open && h('div', { class: 'nav-veil', key: 'veil', onclick: () => { frame.open = false; redraw(); } }),
      h('div', { class: 'side' }, topBar(), banner(), h('main', { id: 'main', class: 'main', tabindex: '-1' }, content(now)))),
    ...layer()];
}

window.addEventListener('keydown', (event) => {
  const target = event.target;
  const isTyping = target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
  if (event.key === '/' && !isTyping && !event.ctrlKey && !event.metaKey && !document.querySelector('dialog[open]')) {
    event.preventDefault();
    document.getElementById('search')?.focus();
  } else if (event.key === 'Escape' && frame.open) {
    frame.open = false;
    redraw();
    document.querySelector('.top-menu')?.focus();
  }
});
