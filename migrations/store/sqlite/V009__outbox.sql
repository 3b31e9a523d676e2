-- What must follow jobs that have ended: written by the transaction that ends the job, removed by the one that adds what
-- follows.
CREATE TABLE outbox (
    number       INTEGER PRIMARY KEY,
    -- The job that has ended.
    topic        TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    stamp_us     INTEGER NOT NULL,
    ended_ms     INTEGER NOT NULL,
    -- A job of its `then`: its place in the list, and its text. NULL: the entry is an event about its end.
    place        INTEGER,
    follower     TEXT,
    -- Of an event: the columns of a record.
    ending       INTEGER,
    due_ms       INTEGER,
    attempts     INTEGER,
    attempts_log TEXT,
    body         TEXT,
    headers      TEXT
) STRICT;

-- Whether an event is made when a job of the topic ends.
ALTER TABLE topic ADD COLUMN with_event INTEGER NOT NULL DEFAULT 0;
