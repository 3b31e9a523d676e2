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
    /** How long to wait before the next try, and how long if somebody must change the topic first. */
    private const PAUSE_S = 1;
    private const LONG_PAUSE_S = 10;
    /** How long after a move of jobs between nodes no lease ends (docs/PULL.md). */
    private const MOVE_GRACE_S = 10;

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

    /**
     * Works until stop() is called.
     *
     * @throws DqError if waiting does not help, for example if there is no such topic
     */
    public function run(): void
    {
        while (!$this->isStopped) {
            try {
                $jobs = $this->client->reserve($this->topics, $this->wait, 1, $this->lease);
            } catch (DqError $e) {
                // With not_pull, the topic is held, or somebody has changed its mode.
                $isNotPulled = $e->errorCode === 'not_pull';
                if (!$isNotPulled && !self::isPassing($e)) {
                    throw $e;
                }
                error_log("no jobs are reserved: {$e->getMessage()}");
                // A signal ends the pause.
                sleep($isNotPulled ? self::LONG_PAUSE_S : self::PAUSE_S);
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
            $answer = ($this->handler)($job);
            if ($answer instanceof \Generator) {
                throw new \TypeError('the function returned a generator, so its code has not run');
            }
        } catch (\Throwable $e) {
            error_log("job $job->id of $job->topic failed: $e");
            $reason = get_class($e) . ': ' . $e->getMessage();
            $this->reportOutcome($job, fn () => $this->client->nack($job, $reason));
            return;
        }
        $this->reportOutcome($job, fn () => $this->client->ack($job, is_string($answer) ? $answer : null));
    }

    /** Reports an outcome. It repeats the report while that may help, unless the worker is told to stop. */
    private function reportOutcome(ReservedJob $job, callable $report): void
    {
        for ($end = $job->leaseUntilMs / 1000;; sleep(self::PAUSE_S)) {
            try {
                $report();
                return;
            } catch (DqError $e) {
                if ($e->errorCode === 'nodes_moving') {
                    $end = max($end, microtime(true) + self::MOVE_GRACE_S);
                }
                if ($this->isStopped || !self::isPassing($e) || microtime(true) >= $end) {
                    // The lease ends by itself, and the job comes again.
                    error_log("the outcome of job $job->id of $job->topic was not reported: {$e->getMessage()}");
                    return;
                }
                error_log("the outcome of job $job->id of $job->topic is reported again: {$e->getMessage()}");
            }
        }
    }

    /** Whether the same request may succeed later. Errors that a proxy before dq can cause are passing. */
    private static function isPassing(DqError $e): bool
    {
        return $e->isTransient() || $e->errorCode === 'bad_answer' || $e->status === 429 || $e->status >= 500;
    }
}
