// The fields of a topic in a form: their groups, their kinds of input, and the conversion between entered texts and the
// API's values. The meaning of each field is in words/ under `field.<name>`. The daemon says what is wrong with a
// value.

/**
 * @typedef {{name: string, kind: 'text' | 'select' | 'switch' | 'number' | 'span' | 'list' | 'lines' | 'headers' | 'secrets', first: string,
 *   options?: string[], mono?: boolean, wide?: boolean, shown?: (form: Object<string, string>) => boolean}} TopicField
 */

const isRetry = (...kinds) => (form) => kinds.includes(form.retry);

/** The groups, in their order. In the form of a new topic, the first group is open. @type {[string, TopicField[]][]} */
export const GROUPS = [
  ['basics', [
    { name: 'name', kind: 'text', first: '', mono: true },
    { name: 'title', kind: 'text', first: '' },
    { name: 'mode', kind: 'select', first: 'push', options: ['push', 'pull'] },
    { name: 'callback', kind: 'text', first: '', mono: true, wide: true },
    { name: 'ttr', kind: 'span', first: '1m', shown: (form) => form.mode === 'pull' },
    { name: 'on_reserve', kind: 'select', first: 'lease', options: ['lease', 'remove'], shown: (form) => form.mode === 'pull' },
    { name: 'retried_first', kind: 'switch', first: 'false', options: ['true', 'false'], shown: (form) => form.mode === 'pull' },
    { name: 'delay', kind: 'span', first: '0s' },
    { name: 'expire_after', kind: 'span', first: '0s' },
    { name: 'status', kind: 'select', first: 'online', options: ['online', 'offline'] },
    { name: 'creator', kind: 'text', first: '' },
  ]],
  ['delivery', [
    { name: 'method', kind: 'select', first: 'POST', options: ['POST', 'GET'] },
    { name: 'payload', kind: 'select', first: 'json', options: ['json', 'form'] },
    { name: 'timeout', kind: 'span', first: '3s' },
    { name: 'connect_timeout', kind: 'span', first: '1s' },
    { name: 'tls_verify', kind: 'switch', first: 'true', options: ['true', 'false'] },
    { name: 'success', kind: 'text', first: 'status', mono: true },
    { name: 're_notify_flag', kind: 'text', first: '', mono: true },
    { name: 'max_notifications', kind: 'number', first: '' },
    { name: 'answer_later', kind: 'span', first: '0s' },
    { name: 'headers', kind: 'headers', first: '', mono: true, wide: true },
    { name: 'job_headers', kind: 'list', first: '', mono: true },
    { name: 'job_hosts', kind: 'list', first: '', mono: true },
  ]],
  ['retry', [
    { name: 'retry', kind: 'select', first: '2n+1', options: ['2n+1', 'exponential', 'list'] },
    { name: 'retry_base', kind: 'span', first: '1m', shown: isRetry('2n+1', 'exponential') },
    { name: 'retry_cap', kind: 'span', first: '1h', shown: isRetry('exponential') },
    { name: 'retry_list', kind: 'list', first: '1m, 5m, 30m', mono: true, shown: isRetry('list') },
    { name: 'max_attempts', kind: 'number', first: '10' },
    { name: 'retry_on', kind: 'list', first: '', mono: true },
  ]],
  ['limits', [
    { name: 'max_in_flight', kind: 'number', first: '' },
    { name: 'rate', kind: 'text', first: '', mono: true },
    { name: 'priority', kind: 'select', first: 'normal', options: ['high', 'normal', 'low'] },
    { name: 'max_pending', kind: 'number', first: '' },
    { name: 'max_bytes', kind: 'text', first: '', mono: true },
    { name: 'add_rate', kind: 'text', first: '', mono: true },
    { name: 'tenant', kind: 'text', first: '' },
    { name: 'breaker_failures', kind: 'number', first: '20' },
    { name: 'breaker_pause', kind: 'span', first: '10s' },
    { name: 'catch_up', kind: 'text', first: 'all', mono: true },
    { name: 'durability', kind: 'text', first: '', mono: true },
  ]],
  ['alerts', [
    { name: 'alert', kind: 'list', first: '', wide: true },
    { name: 'keep_dead', kind: 'span', first: '0s' },
    { name: 'keep_done', kind: 'span', first: '1day' },
    { name: 'keep_done_jobs', kind: 'number', first: '100000' },
    { name: 'keep_done_body', kind: 'switch', first: 'false', options: ['true', 'false'] },
    { name: 'on_done', kind: 'text', first: '', mono: true, wide: true },
    { name: 'on_done_answer', kind: 'switch', first: 'false', options: ['true', 'false'] },
  ]],
  ['security', [
    { name: 'secrets', kind: 'secrets', first: '', mono: true, wide: true },
    { name: 'old_secrets_until', kind: 'text', first: '', mono: true },
  ]],
];

/** The fields of all groups. @type {TopicField[]} */
export const FIELDS = GROUPS.flatMap(([, fields]) => fields);

/** The values of the form for a new topic. @returns {Object<string, string>} */
export function newForm() {
  return Object.fromEntries(FIELDS.map((field) => [field.name, field.first]));
}

/** The values of the form for a topic from the API. @param {any} topic @returns {Object<string, string>} */
export function formOf(topic) {
  const form = newForm();
  for (const field of FIELDS) {
    const value = topic[field.name];
    if (field.kind === 'secrets' || field.name === 'retry_list') continue;
    else if (value === null || value === undefined) form[field.name] = field.name === 'retry_base' || field.name === 'retry_cap' ? field.first : '';
    else if (field.kind === 'headers') form.headers = Object.entries(value).map(([name, text]) => `${name}: ${text}`).join('\n');
    else if (Array.isArray(value)) form[field.name] = value.join(', ');
    else form[field.name] = String(value);
  }
  if (Array.isArray(topic.retry)) Object.assign(form, { retry: 'list', retry_list: topic.retry.join(', ') });
  return form;
}

const listOf = (text) => text.split(/[,\n]/).map((one) => one.trim()).filter(Boolean);

function headersOf(text) {
  const lines = text.split('\n').map((line) => line.trim()).filter(Boolean);
  return Object.fromEntries(lines.map((line) => {
    const cut = line.indexOf(':');
    return cut < 0 ? [line, ''] : [line.slice(0, cut).trim(), line.slice(cut + 1).trim()];
  }));
}

function valueOf(field, text) {
  const said = text.trim();
  if (field.kind === 'headers') return said === '' ? null : headersOf(text);
  if (field.kind === 'list') return said === '' ? null : listOf(text);
  if (said === '') return null;
  if (field.kind === 'switch') return said === 'true';
  // A text that is not a number is sent as it is. The daemon then says what is wrong with it.
  return field.kind === 'number' && /^\d+$/.test(said) ? Number(said) : said;
}

/**
 * The topic as the API takes it. An empty field becomes null, which means its default.
 * @param {Object<string, string>} form
 * @param {boolean} noSecrets whether the secrets of the topic are removed
 * @returns {Object<string, any>}
 */
export function given(form, noSecrets = false) {
  const topic = {};
  for (const field of FIELDS) {
    if (field.kind === 'secrets' || field.name === 'retry_list' || (field.shown && !field.shown(form))) continue;
    topic[field.name] = valueOf(field, form[field.name]);
  }
  if (form.retry === 'list') topic.retry = listOf(form.retry_list);
  const secrets = listOf(form.secrets);
  if (secrets.length > 0) topic.secrets = secrets;
  else if (noSecrets) topic.secrets = null;
  return topic;
}

/** The fields of a group that differ from their defaults: their names and texts. @param {TopicField[]} fields @param {Object<string, string>} form @returns {[string, string][]} */
export function saidOf(fields, form) {
  return fields.filter((field) => (!field.shown || field.shown(form)) && form[field.name].trim() !== field.first).map((field) => [field.name, form[field.name].trim()]);
}

/** A new secret of 32 random bytes, in the form of Standard Webhooks. @returns {string} */
export function newSecret() {
  return `whsec_${btoa(String.fromCharCode(...crypto.getRandomValues(new Uint8Array(32))))}`;
}
