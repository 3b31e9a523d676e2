<?php

declare(strict_types=1);

namespace Dq;

/** Writes requests, and reads the answers of dq. */
final class Json
{
    private const FLAGS =
        JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES | JSON_PRESERVE_ZERO_FRACTION | JSON_THROW_ON_ERROR;

    /**
     * @param mixed $value
     * @throws \JsonException
     */
    public static function write($value): string
    {
        return json_encode($value, self::FLAGS);
    }

    /**
     * Reads an answer. In exact bodies of jobs, objects are not arrays, and integers beyond 64 bits are texts.
     *
     * @return mixed null if the text cannot be read
     */
    public static function read(string $text, bool $isExact)
    {
        if (!$isExact) {
            return json_decode($text, true);
        }
        return self::arrays(json_decode($text, false, 512, JSON_BIGINT_AS_STRING));
    }

    /**
     * Returns a value with arrays in place of objects, but leaves bodies as they are.
     *
     * @param mixed $value
     * @return mixed
     */
    private static function arrays($value)
    {
        if (!is_array($value) && !is_object($value)) {
            return $value;
        }
        $fields = [];
        foreach ((array) $value as $name => $field) {
            $fields[$name] = $name === 'body' ? $field : self::arrays($field);
        }
        return $fields;
    }
}
