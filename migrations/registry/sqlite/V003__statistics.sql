-- What was done, by day, of each topic and each node of the store; the day '' is all time.
CREATE TABLE statistics (
    -- 'topic' or 'node'.
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    day TEXT NOT NULL,
    written INTEGER NOT NULL DEFAULT 0,
    delivered INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    deleted INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    -- Microseconds.
    late_us INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, name, day)
) STRICT, WITHOUT ROWID;

-- What of a page of counters is in them already. Written in the transaction that adds to them.
CREATE TABLE statistics_carried (
    -- The page's own number, hexadecimal.
    page TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    written INTEGER NOT NULL DEFAULT 0,
    delivered INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    deleted INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    late_us INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (page, kind, name)
) STRICT, WITHOUT ROWID;
