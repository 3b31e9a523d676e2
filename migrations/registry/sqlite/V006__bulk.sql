-- Operations on many jobs. AUTOINCREMENT: no number is used twice, because due times of a spread depend on it.
CREATE TABLE bulk (
    n          INTEGER PRIMARY KEY AUTOINCREMENT,
    who        TEXT    NOT NULL,
    -- What is done to which jobs: JSON.
    request    TEXT    NOT NULL,
    -- How far it has come: JSON.
    progress   TEXT    NOT NULL,
    started_ms INTEGER NOT NULL,
    -- 1: somebody has asked to stop it.
    stop       INTEGER NOT NULL DEFAULT 0,
    -- How it ended ('done', 'stopped', 'failed'), and when. NULL: it has not ended.
    ended      TEXT,
    ended_ms   INTEGER,
    -- Who has the right to run it, and until when. NULL: nobody; then, from when on somebody may.
    runner     TEXT,
    until_ms   INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX bulk_running ON bulk (n) WHERE ended IS NULL;
