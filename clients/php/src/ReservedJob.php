<?php

declare(strict_types=1);

namespace Dq;

/** A job of a pull topic that this client may work on until its lease ends. */
final class ReservedJob
{
    public string $topic;
    public string $id;
    /** @var mixed */
    public $body;
    /** @var array<string, string> */
    public array $headers;
    /** @var list<string> */
    public array $tags;
    public int $attempt;
    public int $dueMs;
    public int $addedMs;
    /** Null if the topic says on_reserve = "remove": the job is done then, and nothing is reported. */
    public ?string $token;
    /** By the clock of dq. Client::extend() changes it. */
    public int $leaseUntilMs;

    /** @param array<string, mixed> $job */
    public function __construct(array $job)
    {
        $this->topic = $job['topic'];
        $this->id = $job['id'];
        $this->body = $job['body'];
        $this->headers = $job['headers'];
        $this->tags = $job['tags'];
        $this->attempt = $job['attempt'];
        $this->dueMs = $job['due_ms'];
        $this->addedMs = $job['added_ms'];
        $this->token = $job['token'] ?? null;
        $this->leaseUntilMs = $job['lease_until_ms'] ?? 0;
    }
}
