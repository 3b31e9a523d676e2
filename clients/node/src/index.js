// A client of dq, the delay queue. docs/CLIENTS.md of dq has the examples.
export { Client } from './client.js';
export { DqError } from './errors.js';
export { Webhook, WebhookError } from './webhook.js';
export { work } from './worker.js';
