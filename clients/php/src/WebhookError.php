<?php

declare(strict_types=1);

namespace Dq;

/** A request is not a callback of dq, or is too old. Answer it with 401. */
final class WebhookError extends \RuntimeException
{
}
