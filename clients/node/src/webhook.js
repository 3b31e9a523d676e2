import { createHmac, timingSafeEqual } from 'node:crypto';

export class WebhookError extends Error {
  name = 'WebhookError';
}

// index.d.ts describes the methods.
export class Webhook {
  #keys;
  #toleranceS;

  constructor(secrets, { toleranceS = 300 } = {}) {
    this.#keys = [secrets].flat().map(keyOf);
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

function keyOf(secret) {
  if (!secret.startsWith('whsec_')) return Buffer.from(secret);
  const encoded = secret.slice('whsec_'.length);
  if (!/^[A-Za-z0-9+/]+={0,2}$/.test(encoded)) throw new TypeError('after whsec_, a secret has base64');
  return Buffer.from(encoded, 'base64');
}
