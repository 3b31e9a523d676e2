-- The ready jobs whose priority is a number and not one of the levels, which are 1 to 3. It tells when the oldest of them
-- was due. (`job_ready` has their order.)
CREATE INDEX job_ready_numbered ON job (tid, at_ms) WHERE state = 2 AND priority NOT BETWEEN 1 AND 3;
