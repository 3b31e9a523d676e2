<?php

declare(strict_types=1);

use Dq\Uuid;

/**
 * The client of php-delayqueue, for code that was written for it: the same calls, over the TCP port of dq.
 *
 * $data of add() has the fields of README.md ("Commands"): `id`, `body`, and at most one of `fix_time`, `delay`,
 * `delay_ms`, `run_at`, `run_at_ms`. A call that fails returns false, and lastError() says why.
 *
 * The connection is kept. If it is lost, or no answer comes in time, the call is made again on another server of the
 * list. An add has an id before its first try, so a repeat replaces the same job.
 */
class DqClient
{
    /** How often a call is made at most, and the first pause. Each pause is twice as long as the one before it. */
    private const TRIES = 5;
    private const FIRST_PAUSE_US = 200000;
    /** A longer answer is not one of dq. */
    private const LONGEST_ANSWER = 1 << 28;

    /** @var array<string, string> */
    private array $servers = [];
    private ?string $token = null;
    private float $timeout = 3.0;
    /** @var resource|null */
    private $stream = null;
    private int $process = 0;
    private string $error = '';

    /**
     * Adds servers, such as "127.0.0.1:6789", or "tls://dq.example:6789".
     *
     * @param string|string[] $server
     */
    public function addServer($server): void
    {
        foreach ((array) $server as $address) {
            $this->servers[$address] = $address;
        }
    }

    /** How many seconds to wait for a connection, and for an answer. */
    public function setTimeout(float $seconds): void
    {
        $this->timeout = $seconds;
    }

    /** The token, if `server.auth` of dq is "token". */
    public function setToken(string $token): void
    {
        $this->token = $token;
    }

    /**
     * Connects to one of the servers, in a random order.
     *
     * @return resource|false
     */
    public function connect()
    {
        if ($this->process !== getmypid()) {
            // A child process must not use a connection of its parent.
            $this->stream = null;
            $this->process = getmypid();
        }
        if ($this->stream !== null) {
            return $this->stream;
        }
        $servers = $this->servers;
        shuffle($servers);
        $this->error = 'no_answer: no server is given';
        foreach ($servers as $server) {
            $address = strpos($server, '://') === false ? "tcp://$server" : $server;
            $stream = @stream_socket_client($address, $number, $why, $this->timeout);
            if ($stream === false) {
                $this->error = "no_answer: $server: $why";
                continue;
            }
            $this->stream = $stream;
            if ($this->token === null) {
                return $stream;
            }
            $answer = $this->exchange((string) json_encode(['cmd' => 'auth', 'token' => $this->token]));
            if (($answer['code'] ?? 0) === 1) {
                return $stream;
            }
            $this->disconnect();
            $this->error = $answer === null ? "no_answer: $server" : self::why($answer);
        }
        return false;
    }

    /**
     * Stores a job.
     *
     * @param string $topic
     * @param array<string, mixed> $data
     */
    public function add($topic, $data): bool
    {
        return $this->isDone(['cmd' => 'add', 'topic' => $topic] + self::withId($data));
    }

    /**
     * Stores up to 10,000 jobs, and returns for each of them whether it was stored. False: none was stored.
     *
     * @param string $topic
     * @param list<array<string, mixed>> $jobs
     * @return list<bool>|false
     */
    public function addMany($topic, array $jobs)
    {
        $jobs = array_map([self::class, 'withId'], array_values($jobs));
        $answer = $this->call(['cmd' => 'madd', 'topic' => $topic, 'jobs' => $jobs]);
        if (($answer['code'] ?? 0) !== 1) {
            return false;
        }
        return array_map(static fn (array $one) => $one['code'] === 1, $answer['data']);
    }

    /**
     * Removes a job, in any state. False also means that there is none.
     *
     * @param string $topic
     * @param string|int $id
     */
    public function del($topic, $id): bool
    {
        return $this->isDone(['cmd' => 'del', 'topic' => $topic, 'id' => $id]);
    }

    /**
     * Shows a job: `code` (1, or 0 if there is none) and `data`, the fields of its body. False: there was no answer.
     *
     * @param string $topic
     * @param string|int $id
     * @return array<string, mixed>|false
     */
    public function get($topic, $id)
    {
        return $this->call(['cmd' => 'get', 'topic' => $topic, 'id' => $id]) ?? false;
    }

    /**
     * Delivers a delayed job now.
     *
     * @param string $topic
     * @param string|int $id
     */
    public function run($topic, $id): bool
    {
        return $this->isDone(['cmd' => 'run', 'topic' => $topic, 'id' => $id]);
    }

    /** Why the last call failed, such as "unknown_topic: …". Empty: it did not fail. */
    public function lastError(): string
    {
        return $this->error;
    }

    /** @param array<string, mixed> $request */
    private function isDone(array $request): bool
    {
        return ($this->call($request)['code'] ?? 0) === 1;
    }

    /**
     * @param array<string, mixed> $data
     * @return array<string, mixed>
     */
    private static function withId(array $data): array
    {
        // Nobody else has this id: a job that is there already is this one.
        return isset($data['id']) ? $data : ['id' => Uuid::v7()] + $data + ['on_conflict' => 'keep'];
    }

    /**
     * Makes a call until there is an answer.
     *
     * @param array<string, mixed> $request
     * @return array<string, mixed>|null
     */
    private function call(array $request): ?array
    {
        $text = json_encode($request, JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES);
        if ($text === false) {
            $this->error = 'bad_json: ' . json_last_error_msg();
            return null;
        }
        $pause = self::FIRST_PAUSE_US;
        for ($try = 1; $try <= self::TRIES; $try++) {
            $wasKept = $this->stream !== null;
            $answer = $this->connect() === false ? null : $this->exchange($text);
            if ($answer !== null) {
                $this->error = $answer['code'] === 1 ? '' : self::why($answer);
                return $answer;
            }
            $this->disconnect();
            // A connection that was kept may have been closed long ago.
            if (!$wasKept && $try < self::TRIES) {
                usleep($pause);
                $pause *= 2;
            }
        }
        return null;
    }

    /**
     * Sends a request, and reads its answer: 4 bytes of length, then JSON. Null: the connection is lost.
     *
     * @return array<string, mixed>|null
     */
    private function exchange(string $text): ?array
    {
        $deadline = microtime(true) + $this->timeout;
        $head = $this->write(pack('N', strlen($text)) . $text, $deadline) ? $this->read(4, $deadline) : null;
        $length = $head === null ? 0 : unpack('N', $head)[1];
        $text = $length <= self::LONGEST_ANSWER && $length > 0 ? $this->read($length, $deadline) : null;
        $answer = $text === null ? null : json_decode($text, true);
        if (!is_array($answer) || !isset($answer['code'])) {
            $this->error = 'no_answer: the connection was lost, or the answer did not come in time';
            return null;
        }
        return $answer;
    }

    private function write(string $bytes, float $deadline): bool
    {
        while ($bytes !== '') {
            $this->setDeadline($deadline);
            $count = @fwrite($this->stream, $bytes);
            if ($count === false || $count === 0) {
                return false;
            }
            $bytes = (string) substr($bytes, $count);
        }
        return true;
    }

    private function read(int $length, float $deadline): ?string
    {
        $bytes = '';
        while (strlen($bytes) < $length) {
            $this->setDeadline($deadline);
            $part = @fread($this->stream, min($length - strlen($bytes), 65536));
            if ($part === false || $part === '') {
                return null;
            }
            $bytes .= $part;
        }
        return $bytes;
    }

    private function setDeadline(float $deadline): void
    {
        $left = max($deadline - microtime(true), 0.001);
        stream_set_timeout($this->stream, (int) $left, (int) (($left - (int) $left) * 1e6));
    }

    private function disconnect(): void
    {
        if ($this->stream !== null) {
            fclose($this->stream);
            $this->stream = null;
        }
    }

    /** @param array<string, mixed> $answer */
    private static function why(array $answer): string
    {
        return ($answer['err'] ?? 'fail') . ': ' . ($answer['msg'] ?? '');
    }
}
