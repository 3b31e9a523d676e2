-- A job's own headers: the stamp of the job that they are of, a space, JSON. NULL: it has none.
ALTER TABLE job ADD COLUMN headers TEXT;
-- What tickets of receivers that answer later are signed with; NULL: nobody has needed it yet.
ALTER TABLE shard ADD COLUMN secret BLOB;
