// A receiver of callbacks in Express: node express.mjs PORT

// docs: receive
import express from 'express';
import { Webhook, WebhookError } from 'dq-client';

// DQ_WEBHOOK_SECRETS has the secret; during a rotation, it has the new secret, a comma and the old secret.
const secrets = process.env.DQ_WEBHOOK_SECRETS;
if (!secrets) throw new Error('DQ_WEBHOOK_SECRETS is not set');
const webhook = new Webhook(secrets.split(','));
const seen = new Set();    // in real life: a unique key in the database, written together with the effects of the job

const app = express();
// The signature covers the bytes as they came, so no middleware may decode them before.
app.post('/hook', express.raw({ type: () => true, limit: '1mb' }), (request, response) => {
  let webhookId;
  try {
    webhookId = webhook.verify(request.headers, request.body);
  } catch (e) {
    if (!(e instanceof WebhookError)) throw e;
    return response.status(401).send(e.message);
  }
  if (!seen.has(webhookId)) {
    console.log('job', request.headers['dq-job-id'], JSON.parse(request.body));
    seen.add(webhookId);
  }
  return response.status(204).end();
});
const server = app.listen(Number(process.argv[2] ?? 9000), '127.0.0.1');
// docs: end of receive
server.on('listening', () => console.log(`listens on ${server.address().port}`));
