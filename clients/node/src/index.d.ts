/** A duration: a text such as "30m", or a number of seconds. */
export type Span = string | number;

/** Fields of a job beside its body. docs/HTTP.md ("Jobs") says what each means. */
export interface JobOptions {
  /** Without an id, the client makes one before its first try, so that a retry does not add a second job. */
  id?: string;
  delay?: Span;
  /** A Date, RFC 3339, or Unix milliseconds. */
  run_at?: Date | string | number;
  priority?: 'high' | 'normal' | 'low' | number;
  on_conflict?: 'replace' | 'reject' | 'keep';
  max_attempts?: number;
  ttr?: Span;
  headers?: Record<string, string>;
  tags?: string[];
  path?: string;
  url?: string;
  then?: unknown;
}

export type NewJob = JobOptions & { body: unknown };

/** What a change may give. null: the limit or the ttr of the topic, or no path or URL. */
export type JobChange = Pick<JobOptions, 'delay' | 'run_at' | 'priority' | 'headers' | 'tags'> & {
  body?: unknown;
  max_attempts?: number | null;
  ttr?: Span | null;
  path?: string | null;
  url?: string | null;
};

export interface Added {
  topic: string;
  id: string;
  outcome: 'new' | 'replaced' | 'kept' | 'spooled';
  due_ms?: number;
}

/** A job or its latest dead letter. It has further fields, see docs/HTTP.md. */
export interface Job {
  topic: string;
  id: string;
  state?: 'delayed' | 'ready' | 'leased' | 'dead';
  body: unknown;
  [field: string]: unknown;
}

/** A job of a pull topic that this client may work on until its lease ends. */
export interface ReservedJob {
  topic: string;
  id: string;
  body: unknown;
  headers: Record<string, string>;
  tags: string[];
  attempt: number;
  due_ms: number;
  added_ms: number;
  /** Missing: the topic says on_reserve = "remove". The job is done, and nothing is reported. */
  token?: string;
  lease_until_ms?: number;
}

export interface ClientOptions {
  /** Default: the variable DQ_URL of the environment, then http://127.0.0.1:8088. */
  url?: string;
  /** Default: the variable DQ_TOKEN of the environment. */
  token?: string;
  /** How long one try may take. Default: 5000. */
  timeoutMs?: number;
  /**
   * How long a request is tried again while dq cannot be reached or cannot do it now. Default: 10000. 0: one try, on a
   * connection of its own.
   */
  retryForMs?: number;
  /** Options for TLS connections, such as { ca }. */
  tls?: object;
  /**
   * What reads and writes JSON. Default: JSON, which rounds integers beyond 2^53. With a library that keeps them, such
   * as json-bigint, bodies are exact.
   */
  json?: { parse(text: string): any; stringify(value: any): string };
}

export interface RequestOptions {
  body?: unknown;
  /** The Idempotency-Key of a POST. Default: the client makes one. */
  key?: string;
  timeoutMs?: number;
  signal?: AbortSignal;
}

export class Client {
  constructor(options?: ClientOptions);
  /** Stores a job. */
  add(topic: string, body: unknown, options?: JobOptions): Promise<Added>;
  /** Stores up to 10,000 jobs, and returns for each of them how it was stored, or why not. */
  addMany(topic: string, jobs: NewJob[]): Promise<Array<Added | DqError>>;
  /** Returns a pending job or the latest dead letter of this id, or null. */
  get(topic: string, id: string): Promise<Job | null>;
  /** Changes the given fields of a job. */
  change(topic: string, id: string, fields: JobChange): Promise<Record<string, unknown>>;
  /** Removes a job, in any state. false: there is none (any more), also if the answer to an earlier try was lost. */
  delete(topic: string, id: string): Promise<boolean>;
  /** Delivers a delayed job now. */
  run(topic: string, id: string): Promise<void>;
  /** Reserves due jobs of pull topics, and waits up to waitMs (at most 60,000) for the first one. */
  reserve(
    topics: string | string[],
    options?: { max?: number; waitMs?: number; lease?: Span; signal?: AbortSignal },
  ): Promise<ReservedJob[]>;
  /** Reports that a reserved job is done. The first 200 characters of the answer are kept in its record. */
  ack(job: ReservedJob, answer?: string): Promise<void>;
  /** Reports that a reserved job could not be done. It is tried again, or becomes a dead letter. */
  nack(job: ReservedJob, options?: { reason?: string; delay?: Span }): Promise<void>;
  /** Takes more time for a reserved job, and returns until when, in Unix milliseconds. */
  extend(job: ReservedJob, lease?: Span): Promise<number>;
  /** Makes any request of the API. The request may be sent again. So a POST without a key gets one. */
  request(method: string, path: string, options?: RequestOptions): Promise<any>;
  /** Closes the connections that are kept. */
  close(): void;
}

/** A request was refused, or no answer came. */
export class DqError extends Error {
  /**
   * One of docs/HTTP.md ("Errors"), or one of the client's own: "no_answer" (after all tries there was no complete
   * answer, so the change may or may not have happened), "bad_answer" (something that is not dq answered, or the answer
   * cannot be read) and "untrusted" (the certificate of the server is not trusted).
   */
  readonly code: string;
  readonly detail: string;
  /** The HTTP status, 0 without an answer. */
  readonly status: number;
  /** The field that is wrong, if there is one. */
  readonly field?: string;
  /** Whether the same request may succeed later. */
  readonly isTransient: boolean;
}

/** A request is not a callback of dq, or is too old. Answer it with 401. */
export class WebhookError extends Error {}

/** The headers of a request: those of node:http, or of fetch. */
export type RequestHeaders =
  | { get(name: string): string | null }
  | { readonly [name: string]: string | string[] | undefined };

/**
 * Verifies callbacks with the secrets of a topic: signatures of Standard Webhooks (docs/CALLBACKS.md, "Signatures"). A
 * secret that dq itself would refuse is a TypeError.
 *
 * While a secret is rotated, give the new one and the old one: a signature of either is enough. A request whose
 * timestamp differs by more than toleranceS seconds (default: 300) from this host's clock is refused.
 */
export class Webhook {
  constructor(secrets: string | string[], options?: { toleranceS?: number });
  /**
   * Returns the webhook-id, by which to recognize repeats. Otherwise throws a WebhookError. The body is the body as it
   * came, before it is decoded. It is empty if the method of the topic is GET.
   */
  verify(headers: RequestHeaders, body: Uint8Array | string, options?: { nowS?: number }): string;
}

export interface WorkOptions {
  /** Ends the work after the job in hand. */
  signal?: AbortSignal;
  /** How long one reserve waits. Default: 30000. */
  waitMs?: number;
  /** The lease, which is extended while the handler runs. Default: 60000. */
  leaseMs?: number;
  /** Gets what goes wrong beside the handler's result. Default: console.error. */
  log?: (message: string, error: unknown) => void;
}

/**
 * Reserves one job after the other, and calls the handler for each, until the signal aborts.
 *
 * If the handler returns, the job is done; a text that it returns is kept in the job's record. If it throws, the job is
 * tried again, or becomes a dead letter. A job may come twice: if this process or dq fails before the report, or if the
 * lease ends. Call work() several times to work on several jobs at a time.
 *
 * The promise is rejected with a DqError if waiting does not help, for example if there is no such topic.
 */
export function work(
  client: Client,
  topics: string | string[],
  handler: (job: ReservedJob) => unknown,
  options?: WorkOptions,
): Promise<void>;
