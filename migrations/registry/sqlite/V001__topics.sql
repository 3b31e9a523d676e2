-- The topics, of which there is one of each name.
CREATE TABLE topic (
    name TEXT PRIMARY KEY,
    -- All other fields, as JSON: a release keeps what it does not know.
    spec TEXT NOT NULL CHECK (json_valid(spec)),
    -- What `revision` was when it was last changed.
    revision INTEGER NOT NULL DEFAULT 0
) STRICT;

-- One row: a number that changes with each change of a topic, whoever makes it. It begins anywhere, so that another file in
-- the place of this one is seen.
CREATE TABLE revision (n INTEGER NOT NULL) STRICT;
INSERT INTO revision VALUES (abs(random() % 1000000000000));

CREATE TRIGGER topic_inserted AFTER INSERT ON topic BEGIN
    UPDATE revision SET n = n + 1;
    UPDATE topic SET revision = (SELECT n FROM revision) WHERE name = NEW.name;
END;

CREATE TRIGGER topic_updated AFTER UPDATE OF name, spec ON topic BEGIN
    UPDATE revision SET n = n + 1;
    UPDATE topic SET revision = (SELECT n FROM revision) WHERE name = NEW.name;
END;

CREATE TRIGGER topic_deleted AFTER DELETE ON topic BEGIN
    UPDATE revision SET n = n + 1;
END;
