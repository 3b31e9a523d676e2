-- Since when a change of the job waits, without a break: the host's boot, and milliseconds since this boot. A shard that
-- takes the entry removes the dead letters of the job that are younger. NULL: since the entry was added.
ALTER TABLE entry ADD COLUMN since_boot TEXT;
ALTER TABLE entry ADD COLUMN since_boot_ms INTEGER;
