<?php

declare(strict_types=1);

namespace Dq;

/**
 * Verifies callbacks with the secrets of a topic: signatures of Standard Webhooks (docs/CALLBACKS.md, "Signatures"). A
 * secret that dq itself would refuse is an InvalidArgumentException.
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
        foreach (array_values((array) $secrets) as $i => $secret) {
            $this->keys[] = self::key($secret, 'secret ' . ($i + 1));
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

    /** Returns the key of a secret. An error names the secret, and does not show it. */
    private static function key(string $secret, string $name): string
    {
        if (preg_match('/^wh[sp]k_/', $secret) === 1) {
            throw new \InvalidArgumentException("$name is a key of an asymmetric signature, which dq does not use");
        }
        if (strpos($secret, 'whsec_') !== 0) {
            if (strlen($secret) < 8) {
                throw new \InvalidArgumentException("$name has " . strlen($secret) . ' bytes, and needs at least 8');
            }
            return $secret;
        }
        $encoded = rtrim((string) substr($secret, strlen('whsec_')), '=');
        // The decoder passes over white space.
        $key = preg_match('#^[A-Za-z0-9+/]*$#D', $encoded) === 1 ? base64_decode($encoded, true) : false;
        if ($key === false) {
            throw new \InvalidArgumentException("$name has no base64 after whsec_");
        }
        $length = strlen($key);
        if ($length < 24 || $length > 64) {
            throw new \InvalidArgumentException("$name has $length bytes after whsec_, and needs 24 to 64");
        }
        return $key;
    }
}
