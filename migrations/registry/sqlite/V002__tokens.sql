-- The tokens by which clients are let in. Of the secrets there are digests alone.
CREATE TABLE token (
    name TEXT PRIMARY KEY,
    -- SHA-256 of the secret, as 64 hexadecimal digits.
    digest TEXT NOT NULL,
    -- With spaces between.
    scopes TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    -- Null: never.
    expires_ms INTEGER,
    creator TEXT NOT NULL DEFAULT ''
) STRICT;

-- Their changes are changes of the registry, like those of topics.
CREATE TRIGGER token_inserted AFTER INSERT ON token BEGIN
    UPDATE revision SET n = n + 1;
END;

CREATE TRIGGER token_updated AFTER UPDATE ON token BEGIN
    UPDATE revision SET n = n + 1;
END;

CREATE TRIGGER token_deleted AFTER DELETE ON token BEGIN
    UPDATE revision SET n = n + 1;
END;
