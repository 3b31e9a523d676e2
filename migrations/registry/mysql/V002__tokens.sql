-- The tokens by which clients are let in. Of the secrets there are digests alone: SHA-256, as 64 hexadecimal digits. Scopes have
-- spaces between. The PHP daemon knows nothing of this table.
CREATE TABLE IF NOT EXISTS dq_token (
    name VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    digest VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    scopes MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT NULL DEFAULT NULL,
    creator VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL DEFAULT '',
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
