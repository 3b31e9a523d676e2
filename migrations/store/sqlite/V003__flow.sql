-- How many callbacks of a topic with a limit each process has in flight, or may begin; forgotten when it does not say so again.
CREATE TABLE permit (
    name     TEXT    NOT NULL,
    owner    TEXT    NOT NULL,
    held     INTEGER NOT NULL,
    until_ms INTEGER NOT NULL,
    PRIMARY KEY (name, owner)
) STRICT, WITHOUT ROWID;

-- Up to when a topic's rate is used up, Unix microseconds.
CREATE TABLE rate (
    name     TEXT PRIMARY KEY,
    spent_us REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- The circuits that are not closed. Until both moments none of the topic's jobs is leased, and then one, which sets the second.
CREATE TABLE circuit (
    name     TEXT    PRIMARY KEY,
    until_ms INTEGER NOT NULL,
    probe_ms INTEGER NOT NULL,
    opens    INTEGER NOT NULL,
    since_ms INTEGER NOT NULL,
    reason   TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
