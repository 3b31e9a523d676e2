<?php

/** Code that was written for php-delayqueue. DQ_TCP says where dq is. */

// docs: compat
require_once __DIR__ . '/../compat/DqLoader.php';

$client = new DqClient();
$client->addServer([getenv('DQ_TCP') ?: '127.0.0.1:6789']);
$isAdded = $client->add('orders', [
    'id' => 'order-43',
    'body' => ['order' => 43],
    'fix_time' => date('Y-m-d H:i:s', time() + 1800),    // or 'delay' => '30m'
]);
echo $isAdded ? 'added' : $client->lastError(), "\n";
echo $client->get('orders', 'order-43')['data']['order'], "\n";
echo $client->del('orders', 'order-43') ? 'deleted' : $client->lastError(), "\n";
// docs: end of compat
