-- Who changed what: which action, such as 'topic.pause', was done to what, a topic, a job as 'topic/id', a token; and with how many
-- jobs, if it is about a number of them.
CREATE TABLE IF NOT EXISTS dq_audit (
    seq BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    at_ms BIGINT NOT NULL,
    who VARCHAR(400) CHARACTER SET utf8mb4 NOT NULL,
    action VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    target VARCHAR(400) CHARACTER SET utf8mb4 NOT NULL,
    detail VARCHAR(400) CHARACTER SET utf8mb4 NOT NULL,
    jobs BIGINT UNSIGNED NULL DEFAULT NULL,
    PRIMARY KEY (seq),
    KEY at_ms (at_ms)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- Hashes of passwords stand there as well.
ALTER TABLE dq_token MODIFY COLUMN digest VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL;
