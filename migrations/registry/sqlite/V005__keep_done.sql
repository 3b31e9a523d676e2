-- Releases before this one kept no ended jobs, and stored `keep_done` as 0 with each topic, although nobody had chosen
-- it. Without a value, a topic has the default.
UPDATE topic SET spec = json_remove(spec, '$.keep_done_ms') WHERE json_extract(spec, '$.keep_done_ms') = 0;
