<?php

declare(strict_types=1);

namespace Dq;

/**
 * Verifies callbacks with the secrets of a topic: signatures of Standard Webhooks (docs/CALLBACKS.md, "Signatures").
 *
 * While a secret is rotated, give the new one and the old one: a signature of either is enough. A request whose
 * timestamp differs by more than $tolerance seconds from this host's clock is refused.
 */
final class Webhook
{
    /** @var list<string> */
    private array $keys = [];
    private int $tolerance;

    /** @param string|list<string> $secrets */
    public function __construct($secrets, int $tolerance = 300)
    {
        foreach ((array) $secrets as $secret) {
            $this->keys[] = self::key($secret);
        }
        if ($this->keys === []) {
            throw new \InvalidArgumentException('a webhook needs a secret');
        }
        $this->tolerance = $tolerance;
    }

    /**
     * Returns the webhook-id, by which to recognize repeats.
     *
     * @param array<string, string|list<string>> $headers of getallheaders(), or of a framework
     * @param string $body as it came: file_get_contents('php://input'). It is empty if the method of the topic is GET
     * @throws WebhookError
     */
    public function verify(array $headers, string $body, ?int $now = null): string
    {
        $found = [];
        foreach ($headers as $name => $value) {
            $found[strtolower((string) $name)] = is_array($value) ? (string) reset($value) : (string) $value;
        }
        $id = $found['webhook-id'] ?? '';
        $timestamp = $found['webhook-timestamp'] ?? '';
        $signatures = $found['webhook-signature'] ?? '';
        if ($id === '' || $signatures === '') {
            throw new WebhookError('the request is not signed');
        }
        if (preg_match('/^[0-9]{1,15}$/D', $timestamp) !== 1) {
            throw new WebhookError('webhook-timestamp is not a time');
        }
        if (abs(($now ?? time()) - (int) $timestamp) > $this->tolerance) {
            throw new WebhookError('webhook-timestamp is too far from the clock of this host');
        }
        $isValid = false;
        foreach ($this->keys as $key) {
            $wanted = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$timestamp.$body", $key, true));
            foreach (explode(' ', $signatures) as $given) {
                $isValid = hash_equals($wanted, $given) || $isValid;
            }
        }
        if (!$isValid) {
            throw new WebhookError('no signature is valid');
        }
        return $id;
    }

    private static function key(string $secret): string
    {
        if (strpos($secret, 'whsec_') !== 0) {
            return $secret;
        }
        $key = base64_decode(substr($secret, 6), true);
        if ($key === false || $key === '') {
            throw new \InvalidArgumentException('after whsec_, a secret has base64');
        }
        return $key;
    }
}
