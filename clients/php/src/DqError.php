<?php

declare(strict_types=1);

namespace Dq;

/**
 * A request was refused, or no answer came.
 *
 * $errorCode is one of docs/HTTP.md ("Errors"), or one of the client's own: "no_answer" (after all tries there was no
 * complete answer, so the change may or may not have happened), "bad_answer" (something that is not dq answered, or the
 * answer cannot be read) and "untrusted" (the certificate of the server is not trusted).
 * $status is the HTTP status, 0 without an answer. $field names the wrong field, if there is one.
 */
final class DqError extends \RuntimeException
{
    public string $errorCode;
    public string $detail;
    public int $status;
    public ?string $field;

    public function __construct(string $errorCode, string $detail, int $status = 0, ?string $field = null)
    {
        parent::__construct("$errorCode: $detail", $status);
        $this->errorCode = $errorCode;
        $this->detail = $detail;
        $this->status = $status;
        $this->field = $field;
    }

    /** @param mixed $answer */
    public static function fromAnswer(int $status, $answer): self
    {
        if (is_array($answer) && is_string($answer['code'] ?? null)) {
            return new self($answer['code'], $answer['detail'] ?? '', $status, $answer['field'] ?? null);
        }
        return new self('bad_answer', "status $status without a problem of dq", $status);
    }

    /** Whether the same request may succeed later. */
    public function isTransient(): bool
    {
        return in_array($this->errorCode, ['no_answer', 'in_progress'], true)
            || in_array($this->status, [408, 502, 503, 504], true);
    }
}
