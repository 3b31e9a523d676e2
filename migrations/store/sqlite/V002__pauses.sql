-- The topics whose jobs are not leased until they are resumed. By name: a topic may be paused before it has a job.
CREATE TABLE pause (
    name TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
