-- What was done, by day, of each topic and each node of the store; the day '' is all time.
CREATE TABLE IF NOT EXISTS dq_statistics (
    kind VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    day VARCHAR(10) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    written BIGINT UNSIGNED NOT NULL DEFAULT 0,
    delivered BIGINT UNSIGNED NOT NULL DEFAULT 0,
    failed BIGINT UNSIGNED NOT NULL DEFAULT 0,
    deleted BIGINT UNSIGNED NOT NULL DEFAULT 0,
    dead BIGINT UNSIGNED NOT NULL DEFAULT 0,
    late_us BIGINT UNSIGNED NOT NULL DEFAULT 0,
    attempts BIGINT UNSIGNED NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, name, day)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- What of a page of counters is in them already. Written in the transaction that adds to them.
CREATE TABLE IF NOT EXISTS dq_statistics_carried (
    page BIGINT UNSIGNED NOT NULL,
    kind VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    written BIGINT UNSIGNED NOT NULL DEFAULT 0,
    delivered BIGINT UNSIGNED NOT NULL DEFAULT 0,
    failed BIGINT UNSIGNED NOT NULL DEFAULT 0,
    deleted BIGINT UNSIGNED NOT NULL DEFAULT 0,
    dead BIGINT UNSIGNED NOT NULL DEFAULT 0,
    late_us BIGINT UNSIGNED NOT NULL DEFAULT 0,
    attempts BIGINT UNSIGNED NOT NULL DEFAULT 0,
    PRIMARY KEY (page, kind, name)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- The PHP daemon's numbers have to hold more than 2^31: one that is full would refuse all others with it.
ALTER TABLE dq_stat MODIFY COLUMN num BIGINT NOT NULL DEFAULT 0;
