-- Operations on many jobs: what is done to which jobs, and how far it has come (both JSON); whether somebody has asked to stop it;
-- how it ended ('done', 'stopped', 'failed'; null: it has not ended) and when; who has the right to run it, and until when.
CREATE TABLE IF NOT EXISTS dq_bulk (
    n BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    who VARCHAR(400) CHARACTER SET utf8mb4 NOT NULL,
    request MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL,
    progress MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL,
    started_ms BIGINT NOT NULL,
    stop TINYINT NOT NULL DEFAULT 0,
    ended VARCHAR(16) CHARACTER SET ascii NULL DEFAULT NULL,
    ended_ms BIGINT NULL DEFAULT NULL,
    runner VARCHAR(64) CHARACTER SET ascii NULL DEFAULT NULL,
    until_ms BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (n),
    KEY ended (ended)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
