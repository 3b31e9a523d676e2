<?php

/** For code that includes the file of this name of php-delayqueue. */

require_once __DIR__ . '/../autoload.php';
