<?php

declare(strict_types=1);

namespace Dq;

final class Uuid
{
    /** Returns a UUID of version 7: the time in milliseconds, then 74 random bits. */
    public static function v7(): string
    {
        $bytes = substr(pack('J', (int) (microtime(true) * 1000)), 2) . random_bytes(10);
        $bytes[6] = chr(ord($bytes[6]) & 0x0f | 0x70);
        $bytes[8] = chr(ord($bytes[8]) & 0x3f | 0x80);
        return vsprintf('%s%s-%s-%s-%s-%s%s%s', str_split(bin2hex($bytes), 4));
    }
}
