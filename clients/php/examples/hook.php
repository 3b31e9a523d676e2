<?php

/** A receiver of callbacks: php -S 127.0.0.1:9000 hook.php */

require __DIR__ . '/../autoload.php';

// docs: receive
// DQ_WEBHOOK_SECRETS has the secret; during a rotation, it has the new secret, a comma and the old secret.
$secrets = getenv('DQ_WEBHOOK_SECRETS');
if (!$secrets) {
    throw new RuntimeException('DQ_WEBHOOK_SECRETS is not set');
}
$webhook = new Dq\Webhook(explode(',', $secrets));
$body = file_get_contents('php://input');
try {
    $webhookId = $webhook->verify(getallheaders(), $body);
} catch (Dq\WebhookError $e) {
    http_response_code(401);
    exit($e->getMessage());
}
// In real life, insert $webhookId into a table with a unique key, together with the effects of the job.
error_log("job {$_SERVER['HTTP_DQ_JOB_ID']} " . json_encode(json_decode($body)));
http_response_code(204);
// docs: end of receive
