// The DOM of the console. h() describes elements. patch() changes the document in place until it matches the
// description, so that elements that stay keep their focus, scroll position and selection. Strings become text nodes.
// Nothing in this file may ever parse HTML.

/**
 * @typedef {{tag: string, text?: string, props: Object<string, any>, children: Node_[], key: any, el: any}} Node_
 */

const SVG = 'http://www.w3.org/2000/svg';
const SVG_TAGS = new Set(['svg', 'g', 'path', 'circle', 'rect', 'line', 'polyline', 'polygon']);
const HOOKS = new Set(['key', 'mount', 'update', 'unmount']);
const PROPERTIES = new Set(['value', 'checked', 'disabled', 'selected', 'hidden', 'indeterminate', 'open', 'inert', 'readOnly']);
const NO_PROPS = {};

const textNode = (text) => ({ tag: '', text, props: NO_PROPS, children: [], key: undefined, el: null });

function flatten(list, into) {
  for (const child of list) {
    // An absent child becomes an empty text node. So its neighbours keep their positions, and are recognised when the
    // child appears.
    if (child === null || child === undefined || typeof child === 'boolean') into.push(textNode(''));
    else if (Array.isArray(child)) flatten(child, into);
    else if (typeof child === 'object') into.push(child);
    else into.push(textNode(String(child)));
  }
  return into;
}

/**
 * Describes an element.
 * @param {string} tag
 * @param {?Object<string, any>} props attributes, properties, `on…` handlers, `style` as an object; the hooks
 *   `mount(el)`, `update(el)`, `unmount(el)`; `key` tells siblings apart.
 * @param {...any} children strings, descriptions, or lists of these; null and false show nothing.
 * @returns {Node_}
 */
export function h(tag, props, ...children) {
  return { tag, props: props ?? NO_PROPS, children: flatten(children, []), key: props?.key, el: null };
}

function listen(el, type, handler) {
  el.dqHandlers ??= {};
  if (!(type in el.dqHandlers)) el.addEventListener(type, (event) => el.dqHandlers[type]?.(event));
  el.dqHandlers[type] = handler;
}

function setStyle(el, now, was) {
  for (const name in was) if (!now || !(name in now)) el.style.removeProperty(name);
  for (const name in now) if (!was || now[name] !== was[name]) el.style.setProperty(name, now[name]);
}

function setProp(el, name, now, was) {
  if (name.startsWith('on')) listen(el, name.slice(2), typeof now === 'function' ? now : null);
  else if (name === 'style') setStyle(el, now, was);
  else if (PROPERTIES.has(name)) setProperty(el, name, now ?? (name === 'value' ? '' : false));
  else if (now === null || now === undefined || now === false) el.removeAttribute(name);
  else el.setAttribute(name, now === true ? '' : String(now));
}

function setProperty(el, name, value) {
  if (el[name] !== value) el[name] = value;
}

function setProps(el, now, was) {
  for (const name in was) if (!HOOKS.has(name) && !(name in now)) setProp(el, name, undefined, was[name]);
  for (const name in now) if (!HOOKS.has(name) && now[name] !== was[name]) setProp(el, name, now[name], was[name]);
}

function create(node) {
  if (node.tag === '') {
    node.el = document.createTextNode(node.text);
    return node.el;
  }
  const el = SVG_TAGS.has(node.tag) ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  node.el = el;
  for (const child of node.children) el.append(create(child));
  // The properties are set after the children, because a select takes a value only when it has this option.
  setProps(el, node.props, NO_PROPS);
  return el;
}

function mounted(node) {
  for (const child of node.children) mounted(child);
  node.props.mount?.(node.el);
}

function unmounted(node) {
  node.props.unmount?.(node.el);
  for (const child of node.children) unmounted(child);
}

function update(was, now) {
  const el = was.el;
  now.el = el;
  if (now.tag === '') {
    if (was.text !== now.text) el.data = now.text;
    return;
  }
  patchChildren(el, was.children, now.children);
  setProps(el, now.props, was.props);
  now.props.update?.(el);
}

/** Returns a function that finds, for a new child, the old child that it continues. */
function matcher(old) {
  const keyed = new Map();
  const plain = [];
  for (const node of old) {
    if (node.key === undefined) plain.push(node);
    else keyed.set(node.key, node);
  }
  let at = 0;
  return (node) => {
    const found = node.key === undefined ? plain[at++] : keyed.get(node.key);
    return found && found.tag === node.tag ? found : null;
  };
}

function patchChildren(parent, old, now) {
  const match = matcher(old);
  const kept = new Set();
  const pairs = now.map((node) => {
    const was = match(node);
    if (was && !kept.has(was)) kept.add(was);
    else return [node, null];
    return [node, was];
  });
  for (const node of old) {
    if (kept.has(node)) continue;
    unmounted(node);
    node.el.remove();
  }
  let place = old.length === 0 ? null : parent.firstChild;
  for (const [node, was] of pairs) {
    if (was) {
      update(was, node);
      if (node.el === place) place = place.nextSibling;
      else parent.insertBefore(node.el, place);
    } else {
      parent.insertBefore(create(node), place);
      mounted(node);
    }
  }
}

/**
 * Changes the children of `root` until they match the descriptions.
 * @param {Element & {dqShown?: Node_[]}} root an element of which only this function makes the children
 * @param {Node_[]} nodes
 */
export function patch(root, nodes) {
  const focused = document.activeElement;
  if (!root.dqShown) root.replaceChildren();
  patchChildren(root, root.dqShown ?? [], nodes);
  root.dqShown = nodes;
  // A row that was moved has lost the focus, so the focus is set again.
  if (focused instanceof HTMLElement && focused !== document.activeElement && focused.isConnected && root.contains(focused)) {
    focused.focus({ preventScroll: true });
  }
}

/** Joins the class names. Names that are false are left out. @param {...any} names */
export function classes(...names) {
  return names.filter(Boolean).join(' ');
}
