<?php

/** Adds jobs, and shows and removes them. DQ_URL and DQ_TOKEN say where dq is. */

require __DIR__ . '/../autoload.php';

// docs: add
$client = new Dq\Client();    // DQ_URL, or http://127.0.0.1:8088
$client->add('orders', ['order' => 42], ['id' => 'order-42', 'delay' => '30m', 'tags' => ['shop:7']]);
$job = $client->get('orders', 'order-42');
echo $job['state'] ?? 'there is no such job', "\n";
$client->delete('orders', 'order-42');

$jobs = [['body' => ['order' => 1], 'delay' => 3600], ['body' => ['order' => 2], 'delay' => '1h']];
foreach ($client->addMany('orders', $jobs) as $result) {
    echo $result instanceof Dq\DqError ? $result->errorCode : $result['id'], "\n";
}

try {
    $client->add('no-such-topic', []);
} catch (Dq\DqError $e) {
    echo $e->errorCode, ' ', $e->status, "\n";    // unknown_topic 404
}
// docs: end of add
