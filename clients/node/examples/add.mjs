// Adds jobs, and shows and removes them. DQ_URL and DQ_TOKEN say where dq is.

// docs: add
import { Client, DqError } from 'dq-client';

const client = new Client();    // DQ_URL, or http://127.0.0.1:8088
await client.add('orders', { order: 42 }, { id: 'order-42', delay: '30m', tags: ['shop:7'] });
const job = await client.get('orders', 'order-42');
console.log(job ? job.state : 'there is no such job');
await client.delete('orders', 'order-42');

const jobs = [1, 2].map((order) => ({ body: { order }, delay: '1h' }));
for (const result of await client.addMany('orders', jobs)) {
  console.log(result instanceof DqError ? result.code : result.id);
}

try {
  await client.add('no-such-topic', {});
} catch (e) {
  if (!(e instanceof DqError)) throw e;
  console.log(e.code, e.status);    // unknown_topic 404
}
// docs: end of add
