// Formats JSON text, and finds parts of it. The JSON is not parsed into values, because this would round long numbers.

/** Splits JSON into tokens. Strings and numbers stay as they are written. */
function tokens(text) {
  return text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
}

/**
 * The same JSON with line breaks and indents.
 * @param {string} text valid JSON
 * @returns {string}
 */
export function pretty(text) {
  const all = tokens(text);
  const out = [];
  let depth = 0;
  const line = () => out.push('\n', '  '.repeat(depth));
  for (let i = 0; i < all.length; i++) {
    const token = all[i];
    const next = all[i + 1];
    if ((token === '{' && next === '}') || (token === '[' && next === ']')) {
      out.push(token + next);
      i++;
    } else if (token === '{' || token === '[') {
      depth++;
      out.push(token);
      line();
    } else if (token === '}' || token === ']') {
      depth--;
      line();
      out.push(token);
    } else if (token === ',') {
      out.push(token);
      line();
    } else out.push(token === ':' ? ': ' : token);
  }
  return out.join('');
}

const VISIBLE = /^[\p{L}\p{M}\p{N}\p{P}\p{S}\u3000]$/u;

/**
 * The same JSON with characters in place of escapes such as \u5173. Escapes of ASCII and of invisible characters stay.
 * @param {string} text
 * @returns {string}
 */
export function readable(text) {
  return text.replace(/\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|u[\da-fA-F]{4}|[^u])/g, (written) => {
    if (written[1] !== 'u') return written;
    const char = JSON.parse(`"${written}"`);
    return char > '\x7f' && VISIBLE.test(char) ? char : written;
  });
}

/**
 * The value of a member of an object, as it is written.
 * @param {string} text an object
 * @param {string} name
 * @returns {?string} null: there is no such member
 */
export function member(text, name) {
  const all = tokens(text);
  let depth = 0;
  for (let i = 0; i < all.length; i++) {
    if (all[i] === '{' || all[i] === '[') depth++;
    else if (all[i] === '}' || all[i] === ']') depth--;
    else if (depth === 1 && all[i + 1] === ':' && all[i] === JSON.stringify(name)) return valueAt(all, i + 2);
  }
  return null;
}

function valueAt(all, begin) {
  let depth = 0;
  let end = begin;
  do {
    if (all[end] === '{' || all[end] === '[') depth++;
    else if (all[end] === '}' || all[end] === ']') depth--;
    end++;
  } while (depth > 0 && end < all.length);
  return all.slice(begin, end).join('');
}

let looked = { text: '', why: null };

/** Why a text is not JSON; null: it is JSON. The result for the last text is kept, so the text is parsed only once. @param {string} text @returns {?string} */
export function flaw(text) {
  if (looked.text !== text || text === '') looked = { text, why: mistake(text) };
  return looked.why;
}

function mistake(text) {
  try {
    JSON.parse(text);
    return null;
  } catch (e) {
    return e.message;
  }
}

/** The length of a text in bytes, in UTF-8. @param {string} text @returns {number} */
export function byteLength(text) {
  return new TextEncoder().encode(text).length;
}
