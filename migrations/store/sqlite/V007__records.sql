-- What is kept of jobs that have ended. `rid` is the topic's number times 2^40, plus the number of the record in its topic:
-- so the records of a topic lie together, in the order in which their jobs ended, without an index of their own.
CREATE TABLE record (
    rid          INTEGER PRIMARY KEY,
    tid          INTEGER NOT NULL,
    id           TEXT    NOT NULL,
    -- 1 delivered, 2 dead, 3 deleted, 4 replaced.
    ending       INTEGER NOT NULL,
    ended_ms     INTEGER NOT NULL,
    stamp_us     INTEGER NOT NULL,
    due_ms       INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    -- JSON, as in `job`.
    attempts_log TEXT,
    -- NULL: the topic keeps no bodies. The headers are kept with the body, in the form that they have in `job`.
    body         TEXT,
    headers      TEXT
) STRICT;

CREATE INDEX record_id ON record (tid, id);

-- How much a topic keeps: NULL means the default. How many records there are, the number of the last one that was written,
-- and how many bytes they have.
ALTER TABLE topic ADD COLUMN keep_age_ms INTEGER;
ALTER TABLE topic ADD COLUMN keep_jobs INTEGER;
ALTER TABLE topic ADD COLUMN keep_body INTEGER NOT NULL DEFAULT 0;
ALTER TABLE topic ADD COLUMN records INTEGER NOT NULL DEFAULT 0;
ALTER TABLE topic ADD COLUMN last_record INTEGER NOT NULL DEFAULT 0;
ALTER TABLE topic ADD COLUMN record_bytes INTEGER NOT NULL DEFAULT 0;

-- How many bytes the records of all topics have, and how many they may have. NULL: the default.
ALTER TABLE shard ADD COLUMN record_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE shard ADD COLUMN record_bytes_max INTEGER;
