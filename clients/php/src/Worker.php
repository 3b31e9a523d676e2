<?php

declare(strict_types=1);

namespace Dq;

/**
 * A worker for pull topics (docs/PULL.md). It reserves one job after the other, and calls a function for each.
 *
 * If the function returns, the job is done; a text that it returns is kept in the job's record. If it throws, the job is
 * tried again, or becomes a dead letter. A job may come twice: if this process or dq fails before the report, or if the
 * lease ends. Nothing extends the lease while the function runs: give it a lease that is long enough, or call
 * Client::extend() in the function. Start several processes to work on several jobs at a time.
 */
final class Worker
{
    private Client $client;
    /** @var string|list<string> */
    private $topics;
    /** @var callable(ReservedJob): mixed */
    private $handler;
    private float $wait;
    /** @var int|string */
    private $lease;
    private bool $isStopped = false;

    /**
     * @param string|list<string> $topics
     * @param callable(ReservedJob): mixed $handler
     * @param int|string $lease
     */
    public function __construct(Client $client, $topics, callable $handler, float $wait = 10, $lease = '5m')
    {
        $this->client = $client;
        $this->topics = $topics;
        $this->handler = $handler;
        $this->wait = $wait;
        $this->lease = $lease;
    }

    /** Works until stop() is called. */
    public function run(): void
    {
        while (!$this->isStopped) {
            try {
                $jobs = $this->client->reserve($this->topics, $this->wait, 1, $this->lease);
            } catch (DqError $e) {
                if (!$e->isTransient()) {
                    throw $e;
                }
                error_log("no jobs are reserved: {$e->getMessage()}");
                sleep(1);
                continue;
            }
            foreach ($jobs as $job) {
                $this->workOn($job);
            }
        }
    }

    /** Ends run() after the job in hand, such as in a signal handler. */
    public function stop(): void
    {
        $this->isStopped = true;
    }

    private function workOn(ReservedJob $job): void
    {
        try {
            try {
                $answer = ($this->handler)($job);
            } catch (\Throwable $e) {
                error_log("job $job->id of $job->topic failed: $e");
                $text = get_class($e) . ': ' . $e->getMessage();
                $isText = preg_match('/^.{0,200}/su', $text, $cut) === 1;
                $this->client->nack($job, $isText ? $cut[0] : get_class($e));
                return;
            }
            $this->client->ack($job, is_string($answer) ? $answer : null);
        } catch (DqError | \JsonException $e) {
            // The lease ends by itself, and the job comes again.
            error_log("the outcome of job $job->id of $job->topic was not reported: {$e->getMessage()}");
        }
    }
}
