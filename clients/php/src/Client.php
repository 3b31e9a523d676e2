<?php

declare(strict_types=1);

namespace Dq;

/**
 * A client of dq over HTTP. It keeps its connection from one request to the next.
 *
 * A job to add is an array of the fields of docs/HTTP.md ("Jobs"). `delay` and `ttr` may also be seconds or a
 * DateInterval, and `run_at` a DateTimeInterface. Without an id, the client makes one before its first try, so that a
 * retry does not add a second job.
 */
final class Client
{
    /** The pause before the second try, and the longest one. Each pause is twice as long as the one before it. */
    private const FIRST_PAUSE_S = 0.1;
    private const LONGEST_PAUSE_S = 2.0;
    /** How many characters of an answer or a reason dq keeps. */
    private const TEXT_MAX = 200;

    private string $url;
    /** @var list<string> */
    private array $headers;
    private float $timeout;
    private float $retryFor;
    private ?string $caFile;
    private bool $isExact;
    /** @var \CurlHandle|resource|null */
    private $curl = null;
    private int $process = 0;

    /**
     * The URL and the token default to the variables DQ_URL and DQ_TOKEN of the environment, as for the command `dq`.
     * The options: `timeout` is how many seconds one try may take (5). A request is tried again for `retry_for` seconds
     * (10) while dq cannot be reached or cannot do it now; 0 means one try, on a connection of its own. `ca_file` names
     * a file with the authorities to trust, instead of those of the host. `exact` (false) gives bodies without a loss:
     * an object is a stdClass and not an array, and an integer beyond 64 bits is a text of its digits and not a float.
     *
     * @param array{timeout?: float, retry_for?: float, ca_file?: string, exact?: bool} $options
     */
    public function __construct(?string $url = null, ?string $token = null, array $options = [])
    {
        $url = $url ?: (getenv('DQ_URL') ?: 'http://127.0.0.1:8088');
        if (preg_match('#^https?://[^/]#', $url) !== 1) {
            throw new \InvalidArgumentException("the URL of dq must be http://… or https://…, not $url");
        }
        if ($unknown = array_diff(array_keys($options), ['timeout', 'retry_for', 'ca_file', 'exact'])) {
            throw new \InvalidArgumentException('there is no option ' . implode(', ', $unknown));
        }
        $this->url = rtrim($url, '/');
        $this->timeout = (float) ($options['timeout'] ?? 5);
        $this->retryFor = (float) ($options['retry_for'] ?? 10);
        $this->caFile = $options['ca_file'] ?? null;
        $this->isExact = $options['exact'] ?? false;
        // Without Expect, curl does not wait for leave to send a long body.
        $this->headers = ['Accept: application/json', 'Expect:', 'User-Agent: dq-php/0.1'];
        $token = $token ?: getenv('DQ_TOKEN');
        if ($token) {
            $this->headers[] = "Authorization: Bearer $token";
        }
    }

    /**
     * Stores a job.
     *
     * @param mixed $body any value that is JSON
     * @param array<string, mixed> $options the other fields of the job, such as `id`, `delay`, `tags`
     * @return array{topic: string, id: string, outcome: string, due_ms?: int} `outcome` is new, replaced, kept, spooled
     */
    public function add(string $topic, $body, array $options = []): array
    {
        $answer = $this->request('POST', self::jobs($topic), self::written(['body' => $body] + $options));
        return self::withField('outcome', $answer);
    }

    /**
     * Stores up to 10,000 jobs, and returns for each of them how it was stored, or why not.
     *
     * @param list<array<string, mixed>> $jobs each with a `body`
     * @return list<array{topic: string, id: string, outcome: string, due_ms?: int}|DqError>
     */
    public function addMany(string $topic, array $jobs): array
    {
        $wanted = ['jobs' => array_map([self::class, 'written'], array_values($jobs))];
        $answer = self::withField('results', $this->request('POST', self::jobs($topic) . '/batch', $wanted));
        return array_map(static function (array $result) {
            return $result['status'] >= 400 ? DqError::fromAnswer($result['status'], $result) : $result;
        }, $answer['results']);
    }

    /**
     * Returns a pending job or the latest dead letter of this id, or null.
     *
     * @return array<string, mixed>|null with `state`, `body`, `due_ms` and others
     */
    public function get(string $topic, string $id): ?array
    {
        return $this->unlessMissing('GET', self::job($topic, $id));
    }

    /**
     * Changes the given fields of a job.
     *
     * @param array<string, mixed> $fields of delay, run_at, body, priority, max_attempts, ttr, headers, tags, path, url
     * @return array<string, mixed>
     */
    public function change(string $topic, string $id, array $fields): array
    {
        return $this->request('PATCH', self::job($topic, $id), self::fields($fields));
    }

    /** Removes a job, in any state. False: there is none (any more), also if the answer to an earlier try was lost. */
    public function delete(string $topic, string $id): bool
    {
        return $this->unlessMissing('DELETE', self::job($topic, $id)) !== null;
    }

    /** Delivers a delayed job now. */
    public function run(string $topic, string $id): void
    {
        $this->request('POST', self::job($topic, $id) . '/run');
    }

    /**
     * Reserves up to $max due jobs of pull topics, and waits up to $wait seconds (at most 60) for the first one.
     *
     * @param string|list<string> $topics
     * @param int|string|\DateInterval|null $lease how long the leases hold; null: as the topic says
     * @return list<ReservedJob>
     */
    public function reserve($topics, float $wait = 0, int $max = 1, $lease = null): array
    {
        $wanted = ['topics' => array_values((array) $topics), 'max' => $max, 'wait' => self::milliseconds($wait)];
        if ($lease !== null) {
            $wanted['lease'] = self::span($lease);
        }
        // Without a key: a client that goes away while it waits must take no job with it.
        $answer = $this->send('POST', '/v1/reserve', $wanted, null, $wait + $this->timeout);
        return array_map(static fn (array $job) => new ReservedJob($job), self::withField('jobs', $answer)['jobs']);
    }

    /** Reports that a reserved job is done. The first 200 characters of $answer are kept in its record. */
    public function ack(ReservedJob $job, ?string $answer = null): void
    {
        $this->report($job, 'ack', ['answer' => self::cut($answer)]);
    }

    /**
     * Reports that a reserved job could not be done. It is tried again, or becomes a dead letter.
     *
     * @param int|string|\DateInterval|null $delay null: as the topic says
     */
    public function nack(ReservedJob $job, ?string $reason = null, $delay = null): void
    {
        $this->report($job, 'nack', ['reason' => self::cut($reason), 'delay' => self::span($delay)]);
    }

    /**
     * Takes more time for a reserved job, and returns until when, in Unix milliseconds.
     *
     * @param int|string|\DateInterval|null $lease
     */
    public function extend(ReservedJob $job, $lease = null): int
    {
        $job->leaseUntilMs = $this->report($job, 'extend', ['lease' => self::span($lease)])['until_ms'];
        return $job->leaseUntilMs;
    }

    /**
     * Makes any request of the API, such as request('PUT', '/v1/topics/orders', [...]).
     *
     * The request may be sent again. So a POST without a key (Idempotency-Key) gets one.
     *
     * @param mixed $body
     * @return array<string, mixed>
     */
    public function request(string $method, string $path, $body = null, ?string $key = null, ?float $timeout = null): array
    {
        if ($method === 'POST' && $key === null) {
            $key = Uuid::v7();
        }
        return $this->send($method, $path, $body, $key, $timeout ?? $this->timeout);
    }

    /**
     * Makes a request, and adds no key. A reserve needs none, and dq knows a repeated report by its token.
     *
     * @param mixed $body
     * @return array<string, mixed>
     */
    private function send(string $method, string $path, $body, ?string $key, float $timeout): array
    {
        $headers = $this->headers;
        $text = null;
        if ($body !== null) {
            $text = Json::write($body);
            $headers[] = 'Content-Type: application/json';
        }
        if ($key !== null) {
            $headers[] = "Idempotency-Key: $key";
        }
        $started = microtime(true);
        for ($pause = self::FIRST_PAUSE_S;; $pause = min($pause * 2, self::LONGEST_PAUSE_S)) {
            [$answer, $error, $retryAfter] = $this->try($method, $path, $text, $headers, $timeout);
            if ($error === null) {
                return $answer;
            }
            $wait = max($pause * random_int(500, 1000) / 1000, $retryAfter);
            if (!$error->isTransient() || microtime(true) + $wait > $started + $this->retryFor) {
                throw $error;
            }
            usleep((int) ($wait * 1e6));
        }
    }

    /**
     * Makes one try.
     *
     * @param list<string> $headers
     * @return array{0: array<string, mixed>, 1: ?DqError, 2: int} the answer, or an error and its Retry-After
     */
    private function try(string $method, string $path, ?string $text, array $headers, float $timeout): array
    {
        // A child process must not use a connection of its parent.
        if ($this->curl === null || $this->process !== getmypid()) {
            $this->curl = curl_init();
            $this->process = getmypid();
        }
        curl_reset($this->curl);
        $retryAfter = 0;
        curl_setopt_array($this->curl, [
            CURLOPT_URL => $this->url . $path,
            // An id may be "..".
            CURLOPT_PATH_AS_IS => true,
            CURLOPT_PROXY => '',
            CURLOPT_CUSTOMREQUEST => $method,
            CURLOPT_HTTPHEADER => $headers,
            CURLOPT_RETURNTRANSFER => true,
            CURLOPT_NOSIGNAL => true,
            // A client that may try only once keeps no connection, so it never sends a request twice.
            CURLOPT_FORBID_REUSE => $this->retryFor <= 0,
            CURLOPT_CONNECTTIMEOUT_MS => (int) ($this->timeout * 1000),
            CURLOPT_TIMEOUT_MS => (int) ($timeout * 1000),
            CURLOPT_HEADERFUNCTION => static function ($curl, string $line) use (&$retryAfter): int {
                if (preg_match('/^retry-after:\s*(\d+)\s*$/i', $line, $found) === 1) {
                    $retryAfter = (int) $found[1];
                }
                return strlen($line);
            },
        ]);
        if ($text !== null) {
            curl_setopt($this->curl, CURLOPT_POSTFIELDS, $text);
        }
        if ($this->caFile !== null) {
            curl_setopt($this->curl, CURLOPT_CAINFO, $this->caFile);
        }
        $received = curl_exec($this->curl);
        if ($received === false) {
            $untrusted = [CURLE_SSL_CACERT, CURLE_SSL_PEER_CERTIFICATE, CURLE_SSL_CACERT_BADFILE];
            $code = in_array(curl_errno($this->curl), $untrusted, true) ? 'untrusted' : 'no_answer';
            return [[], new DqError($code, "$method $path: " . curl_error($this->curl)), 0];
        }
        $status = curl_getinfo($this->curl, CURLINFO_RESPONSE_CODE);
        $answer = $received === '' ? [] : Json::read($received, $this->isExact);
        $isGood = $status < 300 && is_array($answer);
        return $isGood ? [$answer, null, 0] : [[], DqError::fromAnswer($status, $answer), $retryAfter];
    }

    /** @return array<string, mixed>|null */
    private function unlessMissing(string $method, string $path): ?array
    {
        try {
            return $this->request($method, $path);
        } catch (DqError $e) {
            if ($e->errorCode === 'not_found') {
                return null;
            }
            throw $e;
        }
    }

    /**
     * @param array<string, mixed> $fields
     * @return array<string, mixed>
     */
    private function report(ReservedJob $job, string $report, array $fields): array
    {
        if ($job->token === null) {
            return ['until_ms' => 0];
        }
        $fields = array_filter($fields, static fn ($value) => $value !== null);
        $path = self::job($job->topic, $job->id) . "/$report";
        $answer = $this->send('POST', $path, ['token' => $job->token] + $fields, null, $this->timeout);
        return self::withField('outcome', $answer);
    }

    /**
     * Returns an answer that has this field. An answer without it is not one of dq.
     *
     * @param array<string, mixed> $answer
     * @return array<string, mixed>
     */
    private static function withField(string $name, array $answer): array
    {
        if (!isset($answer[$name])) {
            throw new DqError('bad_answer', "the answer has no field $name", 200);
        }
        return $answer;
    }

    /** Returns the part of a text that dq keeps. Bytes that are not UTF-8 are replaced. */
    private static function cut(?string $text): ?string
    {
        if ($text === null) {
            return null;
        }
        // A character has at most four bytes.
        $text = json_decode((string) json_encode(substr($text, 0, 4 * self::TEXT_MAX), JSON_INVALID_UTF8_SUBSTITUTE));
        preg_match('/^.{0,' . self::TEXT_MAX . '}/su', $text, $found);
        return $found[0];
    }

    private static function jobs(string $topic): string
    {
        return '/v1/topics/' . rawurlencode($topic) . '/jobs';
    }

    private static function job(string $topic, string $id): string
    {
        return self::jobs($topic) . '/' . rawurlencode($id);
    }

    /**
     * Returns a job as the API takes it, with an id.
     *
     * @param array<string, mixed> $job
     * @return array<string, mixed>
     */
    private static function written(array $job): array
    {
        if (!isset($job['id'])) {
            // Nobody else has this id: a job that is there already is this one.
            $job['id'] = Uuid::v7();
            $job += ['on_conflict' => 'keep'];
        }
        return self::fields($job);
    }

    /**
     * @param array<string, mixed> $fields
     * @return array<string, mixed>
     */
    private static function fields(array $fields): array
    {
        foreach (['delay', 'ttr'] as $name) {
            if (isset($fields[$name])) {
                $fields[$name] = self::span($fields[$name]);
            }
        }
        if (($fields['run_at'] ?? null) instanceof \DateTimeInterface) {
            $fields['run_at'] = $fields['run_at']->format('Y-m-d\TH:i:s.vP');
        }
        if (isset($fields['headers'])) {
            $fields['headers'] = (object) $fields['headers'];
        }
        return $fields;
    }

    /**
     * Returns a duration as dq reads it.
     *
     * @param int|float|string|\DateInterval|null $value
     * @return int|string|null
     */
    private static function span($value)
    {
        if ($value instanceof \DateInterval) {
            $from = new \DateTimeImmutable('@0');
            $value = (float) $from->add($value)->format('U.u');
        }
        return is_float($value) ? self::milliseconds($value) : $value;
    }

    private static function milliseconds(float $seconds): string
    {
        return round($seconds * 1000) . 'ms';
    }
}
