-- Who changed what.
CREATE TABLE audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    who TEXT NOT NULL,
    -- What was done, such as 'topic.pause'.
    action TEXT NOT NULL,
    -- To what: a topic, a job as 'topic/id', a token.
    target TEXT NOT NULL,
    detail TEXT NOT NULL,
    -- With how many jobs; null: it is not about a number of them.
    jobs INTEGER
) STRICT;

-- By it those are let go that are old.
CREATE INDEX audit_at ON audit (at_ms);
