-- The client that has reserved a job, if it has named itself: the attempt that it is for, a space, and the text that the
-- store writes. It counts only while the job is leased for this attempt.
ALTER TABLE job ADD COLUMN reserver TEXT;
