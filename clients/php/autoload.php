<?php

/** Loads the classes of the client where there is no Composer. */

declare(strict_types=1);

spl_autoload_register(static function (string $class): void {
    $file = strpos($class, 'Dq\\') === 0 ? __DIR__ . '/src/' . substr($class, 3) . '.php' : '';
    if ($class === 'DqClient') {
        $file = __DIR__ . '/compat/DqClient.php';
    }
    if ($file !== '' && is_file($file)) {
        require_once $file;
    }
});
