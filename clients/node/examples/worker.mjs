// A worker for the pull topic `shipping`. SIGTERM ends it after the job in hand.

// docs: work
import { Client, work } from 'dq-client';

const stop = new AbortController();
process.on('SIGTERM', () => stop.abort());

await work(new Client(), 'shipping', async (job) => {
  console.log('shipping', job.id, job.body);
  return 'shipped';    // kept in the job's record; an exception means: try again later
}, { signal: stop.signal });
// docs: end of work
