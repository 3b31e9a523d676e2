-- The records of a topic are listed in the order of this time. NULL: it is ended_ms. Otherwise the clock was set back
-- after an earlier record of the topic, and this is the time of that record.
ALTER TABLE record ADD COLUMN order_ms INTEGER;
-- The greatest order of the records of a topic.
ALTER TABLE topic ADD COLUMN last_order_ms INTEGER NOT NULL DEFAULT 0;

-- How many erasures of records there were, and how many of them are finished: no page of the file and of its log has the
-- text any more.
ALTER TABLE shard ADD COLUMN erasures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE shard ADD COLUMN erased INTEGER NOT NULL DEFAULT 0;
