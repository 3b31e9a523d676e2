import { createHmac, timingSafeEqual } from 'node:crypto';

export class WebhookError extends Error {
  name = 'WebhookError';
}

// index.d.ts describes the methods.
export class Webhook {
  #keys;
  #toleranceS;

  constructor(secrets, { toleranceS = 300 } = {}) {
    this.#keys = [secrets].flat().map((secret, i) => keyOf(secret, `secret ${i + 1}`));
    if (this.#keys.length === 0) throw new TypeError('a webhook needs a secret');
    this.#toleranceS = toleranceS;
  }

  verify(headers, body, { nowS = Date.now() / 1000 } = {}) {
    const [id, timestamp, signatures] = ['id', 'timestamp', 'signature'].map((name) => header(headers, `webhook-${name}`));
    if (!id || !signatures) throw new WebhookError('the request is not signed');
    if (!/^[0-9]{1,15}$/.test(timestamp)) throw new WebhookError('webhook-timestamp is not a time');
    if (Math.abs(nowS - Number(timestamp)) > this.#toleranceS) {
      throw new WebhookError('webhook-timestamp is too far from the clock of this host');
    }
    const given = signatures.split(' ').map((signature) => Buffer.from(signature));
    let isValid = false;
    for (const key of this.#keys) {
      const mac = createHmac('sha256', key).update(`${id}.${timestamp}.`).update(body);
      const wanted = Buffer.from(`v1,${mac.digest('base64')}`);
      for (const signature of given) {
        isValid = (signature.length === wanted.length && timingSafeEqual(signature, wanted)) || isValid;
      }
    }
    if (!isValid) throw new WebhookError('no signature is valid');
    return id;
  }
}

function header(headers, name) {
  if (typeof headers.get === 'function') return headers.get(name) ?? '';
  const found = Object.entries(headers).find(([given]) => given.toLowerCase() === name);
  return String([found?.[1] ?? ''].flat()[0]);
}

/** Returns the key of a secret. An error names the secret, and does not show it. */
function keyOf(secret, name) {
  if (/^wh[sp]k_/.test(secret)) {
    throw new TypeError(`${name} is a key of an asymmetric signature, which dq does not use`);
  }
  if (!secret.startsWith('whsec_')) {
    const key = Buffer.from(secret);
    if (key.length < 8) throw new TypeError(`${name} has ${key.length} bytes, and needs at least 8`);
    return key;
  }
  const encoded = secret.slice('whsec_'.length).replace(/=+$/, '');
  if (!/^[A-Za-z0-9+/]*$/.test(encoded) || encoded.length % 4 === 1) {
    throw new TypeError(`${name} has no base64 after whsec_`);
  }
  const key = Buffer.from(encoded, 'base64');
  if (key.length < 24 || key.length > 64) {
    throw new TypeError(`${name} has ${key.length} bytes after whsec_, and needs 24 to 64`);
  }
  return key;
}
