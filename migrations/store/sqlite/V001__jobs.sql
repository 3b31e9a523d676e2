-- Topics, with exact counts of their jobs, kept by the transactions that move jobs.
CREATE TABLE topic (
    tid         INTEGER PRIMARY KEY,
    name        TEXT    NOT NULL UNIQUE,
    delayed     INTEGER NOT NULL DEFAULT 0,
    ready       INTEGER NOT NULL DEFAULT 0,
    leased      INTEGER NOT NULL DEFAULT 0,
    dead        INTEGER NOT NULL DEFAULT 0,
    -- Not later than the earliest due of its delayed jobs; NULL when there are none. Adds lower it, promotion makes it
    -- exact.
    next_due_ms INTEGER
) STRICT;

-- What the shard knows as a whole: one row.
CREATE TABLE shard (
    one              INTEGER PRIMARY KEY CHECK (one = 1),
    -- Not later than the earliest deadline of a lease; NULL when there are none. Leases lower it, expiry makes it exact.
    next_deadline_ms INTEGER
) STRICT;
INSERT INTO shard (one) VALUES (1);

-- A job. state: 1 delayed, 2 ready, 3 leased, 4 dead.
CREATE TABLE job (
    seq             INTEGER PRIMARY KEY,
    tid             INTEGER NOT NULL,
    id              TEXT    NOT NULL,
    state           INTEGER NOT NULL,
    -- When the state ends or began: delayed, when it is due; ready, when it was due; leased, the deadline; dead, when it
    -- died.
    at_ms           INTEGER NOT NULL,
    priority        INTEGER NOT NULL,
    -- When the coming or current attempt is, or was, due.
    due_ms          INTEGER NOT NULL,
    -- When it was added, microseconds: the stamp by which the newest of several copies is known.
    stamp_us        INTEGER NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    -- Attempts that were given back because their consumer died.
    crashes         INTEGER NOT NULL DEFAULT 0,
    -- The job's own limit of attempts.
    max_attempts    INTEGER,
    -- Of a lease: its token, who holds it, and the limit of attempts that holds when it runs out.
    token           BLOB,
    owner           TEXT,
    lease_limit     INTEGER,
    -- Set when the job was replaced while it was leased: the row holds the replacement, and becomes leasable when the
    -- lease has ended, at this due time.
    replaced_due_ms INTEGER,
    -- JSON: the last attempts.
    attempts_log    TEXT,
    body            TEXT    NOT NULL
) STRICT;

CREATE UNIQUE INDEX job_live_id ON job (tid, id) WHERE state < 4;
CREATE INDEX job_delayed ON job (tid, at_ms) WHERE state = 1;
CREATE INDEX job_ready ON job (tid, priority, at_ms) WHERE state = 2;
CREATE INDEX job_leased ON job (at_ms) WHERE state = 3;
CREATE INDEX job_owner ON job (owner) WHERE state = 3 AND owner IS NOT NULL;
CREATE INDEX job_dead ON job (tid, at_ms) WHERE state = 4;
CREATE INDEX job_dead_id ON job (tid, id, at_ms) WHERE state = 4;
