<?php

/** Tests against a daemon. clients/run starts it and sets the environment. */

declare(strict_types=1);

require __DIR__ . '/../autoload.php';

use Dq\Client;
use Dq\DqError;
use Dq\Webhook;
use Dq\WebhookError;

set_error_handler(static function (int $level, string $message, string $file, int $line): bool {
    if (error_reporting() & $level) {
        throw new ErrorException($message, 0, $level, $file, $line);
    }
    return false;
});

const FIRST_SECRET = 'whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=';
const OLD_SECRET = 'the-old-secret';

function same($wanted, $given, string $what = ''): void
{
    if ($wanted !== $given) {
        throw new Exception("$what: wanted " . var_export($wanted, true) . ', given ' . var_export($given, true));
    }
}

function isTrue(bool $condition, string $what): void
{
    if (!$condition) {
        throw new Exception("not true: $what");
    }
}

/** Returns the error that a call throws. */
function refusal(callable $call, string $class = DqError::class): Throwable
{
    try {
        $call();
    } catch (Throwable $e) {
        isTrue($e instanceof $class, get_class($e) . ' is no ' . $class . ": {$e->getMessage()}");
        return $e;
    }
    throw new Exception('nothing is thrown');
}

function eventually(string $what, callable $condition): void
{
    for ($deadline = microtime(true) + 20; !$condition(); usleep(20000)) {
        isTrue(microtime(true) < $deadline, $what);
    }
}

function control(string $path): void
{
    $context = stream_context_create(['http' => ['method' => 'POST', 'content' => '', 'timeout' => 40]]);
    file_get_contents(getenv('DQ_CONTROL_URL') . $path, false, $context);
}

/** A proxy before dq that answers the first requests as the rules say: scripted() of clients/run. */
final class Script
{
    private string $place;
    public string $url;

    public function __construct(array ...$rules)
    {
        $name = bin2hex(random_bytes(8));
        $this->place = getenv('DQ_SCRIPTED_URL') . "/scripts/$name";
        $this->url = getenv('DQ_SCRIPTED_URL') . "/$name";
        $http = ['method' => 'POST', 'content' => json_encode($rules), 'header' => 'Content-Type: application/json'];
        $context = stream_context_create(['http' => $http]);
        file_get_contents($this->place, false, $context);
    }

    /** Returns the requests to paths with this end. */
    public function requests(string $end): array
    {
        $requests = json_decode(file_get_contents($this->place), true);
        return array_values(array_filter($requests, static fn ($one) => substr($one['path'], -strlen($end)) === $end));
    }

    /** Returns a rule that answers a reserve with a job. */
    public static function reserved(string $id, int $leaseMs = 60000): array
    {
        $job = ['topic' => 't', 'id' => $id, 'body' => $id, 'headers' => new stdClass(), 'tags' => [], 'attempt' => 1,
            'due_ms' => 1, 'added_ms' => 1, 'token' => 'AQ'];
        $job['lease_until_ms'] = (int) (microtime(true) * 1000) + $leaseMs;
        return ['path' => '/reserve$', 'status' => 200, 'body' => ['jobs' => [$job]]];
    }

    public static function done(): array
    {
        return ['path' => '/ack$', 'status' => 200, 'body' => ['outcome' => 'done']];
    }

    public static function problem(string $path, int $status, string $code): array
    {
        $body = ['status' => $status, 'code' => $code, 'detail' => 'as the test says'];
        return ['path' => $path, 'status' => $status, 'body' => $body];
    }
}

/** Runs a worker until it stops, and returns its log. */
function logOf(callable $run): string
{
    $log = tempnam(sys_get_temp_dir(), 'dq');
    $before = ini_set('error_log', $log);
    try {
        $run();
    } finally {
        ini_set('error_log', (string) $before);
        $logged = file_get_contents($log);
        unlink($log);
    }
    return $logged;
}

/** A receiver: each next() takes one callback and answers it. */
final class Sink
{
    /** @var resource */
    private $listener;
    public string $url;

    public function __construct()
    {
        $this->listener = stream_socket_server('tcp://127.0.0.1:0');
        $this->url = 'http://' . stream_socket_get_name($this->listener, false) . '/hook';
    }

    /** @return array{0: array<string, string>, 1: string} headers and body */
    public function next(int $status = 204): array
    {
        $stream = stream_socket_accept($this->listener, 20);
        stream_set_timeout($stream, 20);
        $headers = [];
        for (fgets($stream); ($line = rtrim((string) fgets($stream), "\r\n")) !== '';) {
            [$name, $value] = explode(': ', $line, 2);
            $headers[$name] = $value;
        }
        $body = stream_get_contents($stream, (int) $headers['content-length']);
        fwrite($stream, "HTTP/1.1 $status Answer\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        fclose($stream);
        return [$headers, $body];
    }
}

/** A program of the examples. */
final class Program
{
    /** @var resource */
    private $process;
    /** @var resource */
    public $output;

    /** @param array<string, string> $environment */
    public function __construct(array $command, array $environment = [])
    {
        $pipes = [];
        $files = [0 => ['file', '/dev/null', 'r'], 1 => ['pipe', 'w'], 2 => ['redirect', 1]];
        $this->process = proc_open($command, $files, $pipes, null, $environment + getenv());
        $this->output = $pipes[1];
        stream_set_blocking($this->output, false);
    }

    /** Returns the next line that has this text. */
    public function line(string $text): string
    {
        $deadline = microtime(true) + 20;
        while (microtime(true) < $deadline && !feof($this->output)) {
            $line = stream_get_line($this->output, 65536, "\n");
            if ($line === false) {
                [$read, $none] = [[$this->output], null];
                stream_select($read, $none, $none, 1);
            } elseif (strpos($line, $text) !== false) {
                return $line;
            }
        }
        throw new Exception("not in the output: $text");
    }

    public function end(): int
    {
        proc_terminate($this->process);
        stream_set_blocking($this->output, true);
        stream_get_contents($this->output);
        return proc_close($this->process);
    }
}

final class Tests
{
    private Client $client;
    private string $topic;

    public function __construct()
    {
        $this->client = new Client();
        // Tests share the daemon. Each has topics and tags of its own.
        $this->topic = 'php.' . bin2hex(random_bytes(6));
        $this->topic($this->topic, ['callback' => 'http://127.0.0.1:9/hook']);
    }

    private function topic(string $name, array $settings): string
    {
        $this->client->request('PUT', "/v1/topics/$name", $settings);
        return $name;
    }

    public function aJobIsAddedShownChangedAndDeleted(): void
    {
        foreach (['7', 'p/ü 1', '..', 'a?b#c%25', 'batch'] as $id) {
            $before = microtime(true);
            $options = ['id' => $id, 'delay' => '1h', 'tags' => ['shop:7'], 'priority' => 5, 'headers' => []];
            $added = $this->client->add($this->topic, ['n' => [1, '超时']], $options);
            same([$this->topic, $id, 'new'], [$added['topic'], $added['id'], $added['outcome']]);
            isTrue(abs($added['due_ms'] / 1000 - $before - 3600) < 5, 'due in an hour');
            $job = $this->client->get($this->topic, $id);
            same(['delayed', ['n' => [1, '超时']], ['shop:7']], [$job['state'], $job['body'], $job['tags']]);
            same('replaced', $this->client->add($this->topic, 2, ['id' => $id, 'delay' => 60])['outcome']);
            $this->client->change($this->topic, $id, ['body' => 3.0, 'delay' => new DateInterval('PT2H')]);
            $job = $this->client->get($this->topic, $id);
            same(3.0, $job['body']);
            isTrue($job['due_ms'] / 1000 > $before + 7199, 'due in two hours');
            same([true, false], [$this->client->delete($this->topic, $id), $this->client->delete($this->topic, $id)]);
            same(null, $this->client->get($this->topic, $id));
        }
    }

    public function timesAreWhatTheCallerMeans(): void
    {
        $at = new DateTimeImmutable('+3 hours', new DateTimeZone('Asia/Shanghai'));
        foreach ([$at, (int) $at->format('Uv'), $at->format(DATE_RFC3339_EXTENDED)] as $given) {
            same((int) $at->format('Uv'), $this->client->add($this->topic, 1, ['run_at' => $given])['due_ms']);
        }
        foreach ([90, 90.0, '90s', new DateInterval('PT90S')] as $delay) {
            $dueMs = $this->client->add($this->topic, 1, ['delay' => $delay])['due_ms'];
            isTrue(abs($dueMs / 1000 - microtime(true) - 90) < 5, 'due in 90 s');
        }
    }

    public function eachJobOfABatchHasItsResult(): void
    {
        $this->client->add($this->topic, 1, ['id' => 'there', 'delay' => '1h']);
        $results = $this->client->addMany($this->topic, [
            ['body' => 1, 'delay' => '1h'], ['body' => 2, 'id' => 'two', 'delay' => '1h'],
            ['body' => 3, 'id' => 'there', 'on_conflict' => 'reject'],
            ['body' => 4, 'id' => 'there', 'on_conflict' => 'keep'], ['body' => 5, 'delay' => 'soon'],
        ]);
        $shown = array_map(static function ($result) {
            return $result instanceof DqError ? "$result->errorCode $result->status" : $result['outcome'];
        }, $results);
        same(['new', 'new', 'exists 409', 'kept', 'bad_field 422'], $shown);
        isTrue(preg_match('/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/', $results[0]['id']) === 1, 'a UUID');
        same('delay', $results[4]->field);
    }

    public function aRefusalHasACode(): void
    {
        $e = refusal(fn () => $this->client->add('no-such-topic', 1));
        same(['unknown_topic', 404], [$e->errorCode, $e->status]);
        $e = refusal(fn () => $this->client->add($this->topic, 1, ['delay' => 'soon']));
        same(['bad_field', 'delay'], [$e->errorCode, $e->field]);
        $e = refusal(fn () => $this->client->add($this->topic, 1, ['dealy' => 3]));
        same('unknown_field', $e->errorCode);
        $e = refusal(fn () => $this->client->reserve($this->topic));
        same(['not_pull', false], [$e->errorCode, $e->isTransient()]);
        $e = refusal(fn () => (new Client(null, 'dq_wrong'))->get($this->topic, '1'));
        same('unauthorized', $e->errorCode);
        refusal(fn () => new Client('unix:/run/dq/http.sock'), InvalidArgumentException::class);
        refusal(fn () => new Client(null, null, ['timeuot' => 1]), InvalidArgumentException::class);
    }

    public function aServerThatDoesNotAnswerIsAnErrorInTime(): void
    {
        $listener = stream_socket_server('tcp://127.0.0.1:0');    // it accepts, and never answers
        $url = 'http://' . stream_socket_get_name($listener, false);
        $client = new Client($url, null, ['timeout' => 0.2, 'retry_for' => 0.5]);
        $started = microtime(true);
        $e = refusal(fn () => $client->add($this->topic, 1));
        same(['no_answer', true], [$e->errorCode, $e->isTransient()]);
        $took = microtime(true) - $started;
        isTrue($took > 0.2 && $took < 2, "in time: $took s");
    }

    public function aServerMustBeTrusted(): void
    {
        $url = getenv('DQ_TLS_URL');
        $e = refusal(fn () => (new Client($url))->get($this->topic, '1'));
        same(['untrusted', false], [$e->errorCode, $e->isTransient()]);
        // A connection that ends during the handshake says nothing about the certificate.
        $listener = stream_socket_server('tcp://127.0.0.1:0');
        $child = pcntl_fork();
        if ($child === 0) {
            fclose(stream_socket_accept($listener, 20));
            posix_kill(getmypid(), SIGKILL);
        }
        $closing = new Client('https://' . stream_socket_get_name($listener, false), null, ['retry_for' => 0]);
        $e = refusal(fn () => $closing->get($this->topic, '1'));
        pcntl_waitpid($child, $status);
        same(['no_answer', true], [$e->errorCode, $e->isTransient()]);
        $trusting = new Client($url, null, ['ca_file' => getenv('DQ_CA_FILE')]);
        foreach (['new', 'replaced'] as $outcome) {
            same($outcome, $trusting->add($this->topic, 1, ['id' => '1', 'delay' => '1h'])['outcome']);
        }
    }

    public function aRetryAfterALostAnswerAddsNoSecondJob(): void
    {
        $lossy = new Client(getenv('DQ_LOSSY_URL'));
        $options = ['delay' => '1h', 'tags' => [$this->topic]];
        $added = $lossy->add($this->topic, 1, $options);
        same('kept', $added['outcome']);
        $results = $lossy->addMany($this->topic, array_fill(0, 3, ['body' => 1] + $options));
        same(['kept', 'kept', 'kept'], array_column($results, 'outcome'));
        same(4, count($this->client->request('GET', "/v1/jobs?tag=$this->topic")['jobs']));
        // The first try has deleted it, which the second try cannot know.
        same(false, $lossy->delete($this->topic, $added['id']));
        same(null, $this->client->get($this->topic, $added['id']));
    }

    public function anAddWaitsForARestartOfDq(): void
    {
        $this->client->add($this->topic, 1, ['id' => 'before', 'delay' => '1h']);
        control('/stop');
        same('no_answer', refusal(fn () => (new Client(null, null, ['retry_for' => 0]))->add($this->topic, 1))->errorCode);
        control('/start?after_ms=500');
        $added = (new Client(null, null, ['retry_for' => 60]))->add($this->topic, 1, ['delay' => '1h']);
        same('new', $added['outcome']);
        same('delayed', $this->client->get($this->topic, 'before')['state']);
    }

    public function aCallbackAfterADelayHasAValidSignature(): void
    {
        $sink = new Sink();
        foreach ([[FIRST_SECRET], [FIRST_SECRET, OLD_SECRET]] as $secrets) {
            $this->topic($this->topic, ['callback' => $sink->url, 'secrets' => $secrets]);
            $dueMs = $this->client->add($this->topic, ['a' => 1, 'zh' => '超时'], ['delay' => 1])['due_ms'];
            [$headers, $body] = $sink->next();
            isTrue(microtime(true) * 1000 >= $dueMs, 'not early');
            same(['a' => 1, 'zh' => '超时'], json_decode($body, true));
            same($headers['webhook-id'], (new Webhook(FIRST_SECRET))->verify($headers, $body));
            (new Webhook(['another-secret', FIRST_SECRET]))->verify(array_map(static fn ($one) => [$one], $headers), $body);
            if (in_array(OLD_SECRET, $secrets, true)) {
                (new Webhook(OLD_SECRET))->verify($headers, $body);
            }
            refusal(fn () => (new Webhook('another-secret'))->verify($headers, $body), WebhookError::class);
            refusal(fn () => (new Webhook([FIRST_SECRET, OLD_SECRET]))->verify($headers, "$body "), WebhookError::class);
        }
    }

    public function aFailedCallbackComesAgainWithTheSameWebhookId(): void
    {
        $sink = new Sink();
        $this->topic($this->topic, ['callback' => $sink->url, 'secrets' => [FIRST_SECRET], 'retry' => ['1ms']]);
        $this->client->add($this->topic, 1);
        $webhook = new Webhook(FIRST_SECRET);
        same($webhook->verify(...$sink->next(503)), $webhook->verify(...$sink->next()));
    }

    public function theTableOfSignatures(): void
    {
        $cases = json_decode(file_get_contents(__DIR__ . '/../../signatures.json'), true);
        isTrue(count($cases) > 30, 'the table is read');
        foreach ($cases as $case) {
            try {
                (new Webhook($case['secrets']))->verify($case['headers'], $case['body'], $case['now']);
                $isValid = true;
            } catch (WebhookError $e) {
                $isValid = false;
            }
            same($case['valid'], $isValid, $case['name']);
        }
    }

    public function aSecretThatDqRefusesIsRefused(): void
    {
        foreach (json_decode(file_get_contents(__DIR__ . '/../../secrets.json'), true) as $case) {
            $message = null;
            try {
                new Webhook($case['secrets']);
            } catch (InvalidArgumentException $e) {
                $message = $e->getMessage();
            }
            same($case['error'], $message, json_encode($case));
        }
        $hook = new Program([PHP_BINARY, __DIR__ . '/../examples/hook.php']);
        $hook->line('DQ_WEBHOOK_SECRETS is not set');
        $hook->end();
    }

    public function aJobIsReservedAndReported(): void
    {
        $topic = $this->topic("$this->topic.pull", ['mode' => 'pull']);
        same([], $this->client->reserve($topic));
        $options = ['id' => '1', 'delay' => '1h', 'headers' => ['x-shop' => '7'], 'tags' => ['t']];
        $this->client->add($topic, ['a' => 1], $options);
        $this->client->run($topic, '1');
        [$job] = $this->client->reserve([$topic], 10, 1, '1m');
        same(['1', ['a' => 1], ['x-shop' => '7'], ['t'], 1], [$job->id, $job->body, $job->headers, $job->tags, $job->attempt]);
        $untilMs = $job->leaseUntilMs;
        same($this->client->extend($job, '5m'), $job->leaseUntilMs);
        isTrue($job->leaseUntilMs > $untilMs, 'the lease is longer');
        $this->client->nack($job, 'not yet', 0);
        [$job] = $this->client->reserve($topic, 10);
        same(2, $job->attempt);
        $this->client->ack($job, 'done');
        $this->client->ack($job, 'done');    // a repeat gets the same answer
        same('gone', refusal(fn () => $this->client->nack($job))->errorCode);
    }

    public function aJobThatWasRemovedAtItsReserveNeedsNoReport(): void
    {
        $topic = $this->topic("$this->topic.pull", ['mode' => 'pull', 'on_reserve' => 'remove']);
        $this->client->add($topic, 1, ['id' => '1']);
        [$job] = $this->client->reserve($topic, 10);
        same([null, 0], [$job->token, $job->leaseUntilMs]);
        $this->client->nack($job, 'too late');
        $this->client->ack($job);
    }

    public function aWorkerSurvivesErrorsAndAnOutage(): void
    {
        $topic = $this->topic("$this->topic.pull", ['mode' => 'pull', 'retry' => ['1ms']]);
        $this->client->add($topic, 'once more');
        $seen = [];
        $handler = function ($job) use (&$worker, &$seen, $topic): string {
            $seen[] = [$job->body, $job->attempt];
            if ($seen === [['once more', 1]]) {
                throw new RuntimeException(str_repeat('超', 100) . "not now \xff");
            }
            if ($job->body === 'once more') {
                $this->client->add($topic, 'last');
                control('/stop');
                control('/start?after_ms=1000');
            } else {
                $worker->stop();
            }
            return 'worked';
        };
        $worker = new Dq\Worker(new Client(null, null, ['retry_for' => 0.2]), $topic, $handler, 1, '1m');
        $logged = logOf([$worker, 'run']);
        // The outcome of the second attempt is reported when dq is back.
        same([['once more', 1], ['once more', 2], ['last', 1]], $seen);
        foreach (['RuntimeException: 超', 'is reported again'] as $text) {
            isTrue(strpos($logged, $text) !== false, "the log says: $text\n$logged");
        }
    }

    public function aWorkerGoesOnAfterRefusalsThatPass(): void
    {
        $script = new Script(
            Script::problem('/reserve$', 409, 'not_pull'),
            ['path' => '/reserve$', 'status' => 403, 'body' => '<h1>Forbidden</h1>'],
            Script::problem('/reserve$', 429, 'too_many_failures'),
            // PHP reads no half of a pair.
            ['path' => '/reserve$', 'status' => 200, 'body' => '{"jobs": [{"body": "\ud83d"}]}'],
            ['path' => '/reserve$', 'status' => 200, 'body' => ['it' => 'works']],
            Script::reserved('2'),
            Script::done()
        );
        $seen = [];
        $handler = static function ($job) use (&$worker, &$seen): void {
            $seen[] = $job->id;
            $worker->stop();
        };
        $worker = new Dq\Worker(new Client($script->url, null, ['retry_for' => 0]), 't', $handler, 0.2);
        // A signal ends the longer pause after not_pull.
        pcntl_async_signals(true);
        pcntl_signal(SIGALRM, static function (): void {
        });
        pcntl_alarm(2);
        $started = microtime(true);
        $logged = logOf([$worker, 'run']);
        pcntl_signal(SIGALRM, SIG_DFL);
        isTrue(microtime(true) - $started < 9, 'the signal ends the pause');
        same(['2'], $seen);
        same(5, substr_count($logged, 'no jobs are reserved'), $logged);
        same(1, count($script->requests('/ack')));

        $wrong = new Client(null, 'dq_wrong');
        foreach (['unauthorized' => $wrong, 'unknown_topic' => $this->client] as $code => $client) {
            same($code, refusal(fn () => (new Dq\Worker($client, 'no-such-topic', $handler))->run())->errorCode);
        }
    }

    public function aWorkerReportsUntilTheLeaseEnds(): void
    {
        $cut = ['path' => '/ack$', 'status' => 0];
        $moving = Script::problem('/ack$', 503, 'nodes_moving') + ['times' => 2];
        $script = new Script(
            // An error that passes does not end the reports.
            Script::reserved('1'), $cut, ['path' => '/ack$', 'status' => 500, 'body' => '<h1>Error</h1>'],
            Script::done(),
            // While jobs are moved between nodes, no lease ends. Afterwards it does.
            Script::reserved('2', 0), $moving, Script::done(),
            Script::reserved('3', 7000), ['path' => '/3/ack$', 'times' => 1000] + $cut,
            // A stop ends the repeats.
            Script::reserved('4'), ['path' => '/4/ack$', 'times' => 1000] + $cut
        );
        $handler = static function ($job) use (&$worker): string {
            if ($job->id === '4') {
                $worker->stop();
            }
            return 'done';
        };
        $worker = new Dq\Worker(new Client($script->url, null, ['retry_for' => 0]), 't', $handler, 0.2);
        $logged = logOf([$worker, 'run']);
        same([3, 3], [count($script->requests('/1/ack')), count($script->requests('/2/ack'))], $logged);
        same(1, count($script->requests('/4/ack')));
        isTrue(strpos($logged, 'job 3 of t is reported again') !== false, $logged);
        foreach ([1 => false, 2 => false, 3 => true, 4 => true] as $id => $isThere) {
            $text = "job $id of t was not reported";
            same($isThere, strpos($logged, $text) !== false, "$text: $logged");
        }
    }

    public function noAnswerOfAFunctionPreventsItsReport(): void
    {
        $topic = $this->topic("$this->topic.pull", ['mode' => 'pull', 'max_attempts' => 1]);
        foreach (['huge', 'generator', 'last'] as $id) {
            $this->client->add($topic, 1, ['id' => $id]);
        }
        $generator = (static function () {
            yield 1;
        })();
        $handler = static function ($job) use (&$worker, $generator) {
            if ($job->id === 'last') {
                $worker->stop();
            }
            return $job->id === 'generator' ? $generator : str_repeat("\xff超", 1000000);
        };
        $worker = new Dq\Worker($this->client, $topic, $handler);
        logOf([$worker, 'run']);
        same([null, null], [$this->client->get($topic, 'huge'), $this->client->get($topic, 'last')]);
        same('dead', $this->client->get($topic, 'generator')['state']);
    }

    public function aPostHasAKeyAndOneTryIsOneTry(): void
    {
        $lossy = new Client(getenv('DQ_LOSSY_URL'));
        $body = ['id' => '1', 'body' => 1, 'delay' => '1h'];
        same('replaced', $lossy->request('POST', "/v1/topics/$this->topic/jobs", $body)['outcome']);

        // A kept connection that breaks does not count as a try, unless there is only one.
        foreach ([[10, 2], [0, 1]] as [$retryFor, $tries]) {
            $script = new Script(['path' => '/run$', 'status' => 0]);
            $client = new Client($script->url, null, ['retry_for' => $retryFor]);
            isTrue($client->get($this->topic, '1') !== null, 'the job is there');
            $call = fn () => $client->request('POST', "/v1/topics/$this->topic/jobs/1/run");
            if ($tries === 1) {
                same('no_answer', refusal($call)->errorCode);
            } else {
                $call();
            }
            $keys = array_column($script->requests('/run'), 'key');
            same([$tries, 1], [count($keys), count(array_unique(array_filter($keys)))]);
        }
    }

    public function bodiesAreExactIfTheCallerWantsIt(): void
    {
        $body = '{"n":12345678901234567891,"o":{},"l":[]}';
        $text = '{"id":"1","delay":"1h","body":' . $body . ',"tags":["t"],"headers":{"x-a":"b"}}';
        $headers = ['Authorization: Bearer ' . getenv('DQ_TOKEN'), 'Content-Type: application/json'];
        $context = stream_context_create(['http' => ['method' => 'POST', 'content' => $text, 'header' => $headers]]);
        file_get_contents(getenv('DQ_URL') . "/v1/topics/$this->topic/jobs", false, $context);
        $job = (new Client(null, null, ['exact' => true]))->get($this->topic, '1');
        same(['12345678901234567891', []], [$job['body']->n, $job['body']->l]);
        isTrue($job['body']->o instanceof stdClass, 'an object without fields is an object');
        same([['t'], ['x-a' => 'b']], [$job['tags'], $job['headers']]);
        same([], $this->client->get($this->topic, '1')['body']['o']);
    }

    public function theExamplesWork(): void
    {
        $this->topic('orders', ['callback' => 'http://127.0.0.1:9/hook']);
        $add = new Program([PHP_BINARY, __DIR__ . '/../examples/add.php']);
        same('delayed', $add->line(''));
        same('unknown_topic 404', $add->line('unknown'));
        $add->end();

        $old = new Program([PHP_BINARY, __DIR__ . '/../examples/delayqueue.php']);
        same(['added', '43', 'deleted'], [$old->line(''), $old->line(''), $old->line('')]);
        $old->end();

        $this->topic('shipping', ['mode' => 'pull']);
        $this->client->add('shipping', ['order' => 7], ['id' => '7']);
        $worker = new Program([PHP_BINARY, __DIR__ . '/../examples/worker.php']);
        same('shipping 7 {"order":7}', $worker->line(''));
        same(0, $worker->end());
        same(null, $this->client->get('shipping', '7'));
    }

    public function theReceiverOfTheExampleRefusesWhatIsNotSigned(): void
    {
        $listener = stream_socket_server('tcp://127.0.0.1:0');
        $address = stream_socket_get_name($listener, false);
        fclose($listener);
        $secrets = ['DQ_WEBHOOK_SECRETS' => FIRST_SECRET . ',' . OLD_SECRET];
        $hook = new Program([PHP_BINARY, '-S', $address, __DIR__ . '/../examples/hook.php'], $secrets);
        $hook->line('started');
        $settings = ['callback' => "http://$address/hook", 'secrets' => [OLD_SECRET], 'retry' => ['1h']];
        $this->topic($this->topic, $settings);
        $this->client->add($this->topic, ['order' => 42], ['id' => '42']);
        same('job 42 {"order":42}', strstr($hook->line('job '), 'job '));
        $this->topic($this->topic, ['secrets' => ['another-secret']] + $settings);
        $this->client->add($this->topic, 1, ['id' => '43']);
        eventually('it is refused', function (): bool {
            $log = $this->client->get($this->topic, '43')['log'];
            return $log !== [] && $log[0]['status'] === 401;
        });
        $hook->end();
    }

    public function theCallsOfPhpDelayqueueWork(): void
    {
        $client = new DqClient();
        $client->addServer(['127.0.0.1:1', getenv('DQ_TCP')]);    // one of them is down
        $client->addServer('127.0.0.1:2');
        $data = ['id' => 'i-1', 'body' => ['a' => 1, 'zh' => '中文'], 'fix_time' => date('Y-m-d H:i:s', time() + 3600)];
        for ($n = 0; $n < 3; $n++) {
            same(true, $client->add($this->topic, $data), $client->lastError());
        }
        $got = $client->get($this->topic, 'i-1');
        same([1, 1, '中文'], [$got['code'], $got['data']['a'], $got['data']['zh']]);
        isTrue(isset($got['data']['notify_time']), 'the fields of php-delayqueue');
        same([true, false], [$client->del($this->topic, 'i-1'), $client->del($this->topic, 'i-1')]);
        isTrue(strpos($client->lastError(), 'not_found') === 0, $client->lastError());
        same(0, $client->get($this->topic, 'i-1')['code']);
        same(true, $client->add($this->topic, ['body' => str_repeat('x', 100000), 'delay' => '1h']), $client->lastError());
        same(false, $client->add('no-such-topic', $data));
        isTrue(strpos($client->lastError(), 'unknown_topic') === 0, $client->lastError());
        same(false, $client->add($this->topic, ['body' => "\xff"]));
        isTrue(strpos($client->lastError(), 'bad_json') === 0, $client->lastError());
        $jobs = [['id' => 'm-1', 'body' => 1, 'delay' => '1h'], ['body' => 2, 'delay_ms' => 3600000], ['body' => 3, 'delay' => 'soon']];
        same([true, true, false], $client->addMany($this->topic, $jobs));
        same(true, $client->run($this->topic, 'm-1'));
        same([], $client->addMany($this->topic, []));
        same(false, (new DqClient())->get($this->topic, 'i-1'));

        // The connection is lost, and dq is away for a moment. Then it wants a token.
        control('/stop');
        control('/start?after_ms=300&DQ_SERVER__AUTH=token');
        same(false, $client->add($this->topic, $data));
        isTrue(strpos($client->lastError(), 'unauthorized') === 0, $client->lastError());
        $client->setToken('dq_wrong');
        same(false, $client->add($this->topic, $data));
        $client = new DqClient();
        $client->addServer(getenv('DQ_TCP'));
        $client->setToken(getenv('DQ_TOKEN'));
        same(true, $client->add($this->topic, $data), $client->lastError());
        control('/stop');
        control('/start');
        same(true, $client->add($this->topic, $data), $client->lastError());

        // A child has a connection of its own.
        $name = stream_socket_get_name($client->connect(), false);
        $child = pcntl_fork();
        if ($child === 0) {
            $isOwn = stream_socket_get_name($client->connect(), false) !== $name;
            posix_kill(getmypid(), $isOwn ? SIGTERM : SIGKILL);
        }
        pcntl_waitpid($child, $status);
        same(SIGTERM, pcntl_wtermsig($status));
        same($name, stream_socket_get_name($client->connect(), false));
        same(true, $client->add($this->topic, $data), $client->lastError());

        $listener = stream_socket_server('tcp://127.0.0.1:0');    // it accepts, and never answers
        $client = new DqClient();
        $client->addServer(stream_socket_get_name($listener, false));
        $client->setTimeout(0.1);
        $started = microtime(true);
        same(false, $client->get($this->topic, '1'));
        isTrue(strpos($client->lastError(), 'no_answer') === 0 && microtime(true) - $started < 6, 'an error in time');
    }
}

$failed = 0;
$names = array_diff(get_class_methods(Tests::class), ['__construct']);
foreach ($names as $name) {
    try {
        (new Tests())->$name();
        echo "ok      $name\n";
    } catch (Throwable $e) {
        $failed++;
        echo "FAILED  $name: $e\n";
    }
}
echo count($names) - $failed, " passed, $failed failed\n";
exit($failed > 0 ? 1 : 0);
