-- When a circuit was written last, Unix milliseconds: a clock that shows less was set back meanwhile. 0: by a release that does not
-- say so.
ALTER TABLE circuit ADD COLUMN noted_ms INTEGER NOT NULL DEFAULT 0;
