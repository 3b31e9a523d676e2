-- The spool of a host: changes of jobs that were answered and wait for their node.

-- The last change of each job. seq is the order in which they came; AUTOINCREMENT never gives a number twice.
CREATE TABLE entry (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    topic        TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    -- The batch in which it was sent, until the node has said what became of it.
    batch        INTEGER,
    -- When it came: Unix microseconds by the host's clock, and the host's boot and milliseconds since that.
    added_us     INTEGER NOT NULL,
    boot         TEXT    NOT NULL,
    boot_ms      INTEGER NOT NULL,
    -- The body; NULL: the job is deleted, and what follows says nothing.
    body         TEXT,
    -- Due at a moment (Unix milliseconds), or so long after it came.
    due_ms       INTEGER,
    delay_ms     INTEGER,
    priority     INTEGER NOT NULL DEFAULT 2,
    max_attempts INTEGER,
    attempts     INTEGER NOT NULL DEFAULT 0,
    headers      TEXT    NOT NULL DEFAULT '',
    UNIQUE (topic, id)
) STRICT;

CREATE INDEX entry_of_batch ON entry (batch) WHERE batch IS NOT NULL;

-- What was sent to a shard, and not yet answered. Each shard remembers the number of the last batch that it took.
CREATE TABLE batch (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Whose numbers these are: the process that sent it.
    sender  TEXT    NOT NULL,
    node    TEXT    NOT NULL,
    shard   INTEGER NOT NULL,
    -- The set of nodes by which it was sent there.
    node_set TEXT   NOT NULL
) STRICT;
