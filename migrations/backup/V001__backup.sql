-- What a file of `dq backup` has besides the tables of the store. `dq restore` drops both tables from the restored file.

-- Facts about the backup, one per row: format, made_ms, version, instance, ….
CREATE TABLE dq_backup (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The other files of the backup (registry, session key), in pieces.
CREATE TABLE dq_backup_part (
    file  TEXT    NOT NULL,
    piece INTEGER NOT NULL,
    bytes BLOB    NOT NULL,
    PRIMARY KEY (file, piece)
) STRICT;
