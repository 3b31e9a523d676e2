-- Releases before this one kept no ended jobs, and stored `keep_done` as 0 with each topic, although nobody had chosen
-- it. Without a value, a topic has the default.
UPDATE dq_topic SET dq_spec = JSON_REMOVE(dq_spec, '$.keep_done_ms')
WHERE dq_spec IS NOT NULL AND JSON_VALID(dq_spec) AND JSON_EXTRACT(dq_spec, '$.keep_done_ms') = 0;
