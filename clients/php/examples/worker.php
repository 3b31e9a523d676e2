<?php

/** A worker for the pull topic `shipping`. SIGTERM ends it after the job in hand. */

require __DIR__ . '/../autoload.php';

// docs: work
$worker = new Dq\Worker(new Dq\Client(), 'shipping', function (Dq\ReservedJob $job): string {
    echo "shipping $job->id ", json_encode($job->body), "\n";
    return 'shipped';    // kept in the job's record; an exception means: try again later
}, 1);
pcntl_async_signals(true);
pcntl_signal(SIGTERM, [$worker, 'stop']);
$worker->run();
// docs: end of work
