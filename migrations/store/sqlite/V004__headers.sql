-- A job's own headers: the stamp of the job that they are of, a space, JSON. NULL: it has none.
ALTER TABLE job ADD COLUMN headers TEXT;
