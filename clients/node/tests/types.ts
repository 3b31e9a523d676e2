// Compiled only: what the types allow, and what they refuse.
import { Client, DqError, Webhook, work, type Added, type Job, type ReservedJob } from 'dq-client';

const client = new Client({ url: 'http://h', token: 'dq_', timeoutMs: 1, retryForMs: 1, json: JSON });
const added: Added = await client.add('t', { a: 1 }, { delay: 3, run_at: new Date(), priority: 7, on_conflict: 'keep' });
const results: Array<Added | DqError> = await client.addMany('t', [{ body: 1, ttr: '1m' }]);
const job: Job | null = await client.get('t', added.id);
const reserved: ReservedJob[] = await client.reserve(['t'], { max: 3, waitMs: 1000, lease: '1m' });
const until: number = await client.extend(reserved[0], 60);
const id: string = new Webhook(['a-secret']).verify(new Headers(), new Uint8Array(), { nowS: until });
new Webhook('a-secret').verify({ 'webhook-id': id, other: ['a'] }, '');
await client.change('t', id, { ttr: null, delay: '1m' });
await work(client, 't', (one) => one.body, { signal: new AbortController().signal });
export { job, results };

// @ts-expect-error a misspelt field
await client.add('t', 1, { dealy: 3 });
// @ts-expect-error no body
await client.addMany('t', [{ id: '1' }]);
// @ts-expect-error it may be null
job.state;
// @ts-expect-error no such policy
await client.add('t', 1, { on_conflict: 'ignore' });
