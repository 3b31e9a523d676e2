-- How many bytes the ids, bodies and headers of a topic's jobs have together, dead letters included. Triggers keep the sum,
-- so that it is exact whichever release changes a job.
ALTER TABLE topic ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;

UPDATE topic SET bytes = (
    SELECT coalesce(sum(octet_length(id) + octet_length(body) + coalesce(octet_length(headers), 0)), 0)
    FROM job WHERE job.tid = topic.tid
);

CREATE TRIGGER job_bytes_inserted AFTER INSERT ON job BEGIN
    UPDATE topic SET bytes = bytes + octet_length(new.id) + octet_length(new.body) + coalesce(octet_length(new.headers), 0)
    WHERE tid = new.tid;
END;

CREATE TRIGGER job_bytes_updated AFTER UPDATE OF body, headers ON job BEGIN
    UPDATE topic SET bytes = bytes + octet_length(new.body) + coalesce(octet_length(new.headers), 0)
                                   - octet_length(old.body) - coalesce(octet_length(old.headers), 0)
    WHERE tid = new.tid;
END;

CREATE TRIGGER job_bytes_deleted AFTER DELETE ON job BEGIN
    UPDATE topic SET bytes = bytes - octet_length(old.id) - octet_length(old.body) - coalesce(octet_length(old.headers), 0)
    WHERE tid = old.tid;
END;
