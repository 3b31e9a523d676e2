-- The tables of the PHP daemon, where they are not there yet. Its console reads and writes them as before: what is added has
-- defaults. Each statement may be run again: no database of this family takes back what it did when the next one fails.
CREATE TABLE IF NOT EXISTS dq_topic (
    id INT NOT NULL AUTO_INCREMENT,
    t_name VARCHAR(1024) NOT NULL DEFAULT '',
    delay INT NOT NULL DEFAULT 0,
    callback VARCHAR(1024) NOT NULL DEFAULT '',
    timeout INT NOT NULL DEFAULT 3000,
    email VARCHAR(1024) NOT NULL DEFAULT '',
    topic VARCHAR(255) NOT NULL DEFAULT '',
    re_notify_flag VARCHAR(1024) NOT NULL DEFAULT '',
    createor VARCHAR(1024) NOT NULL DEFAULT '',
    status TINYINT NOT NULL DEFAULT 1,
    method VARCHAR(32) NOT NULL DEFAULT 'GET',
    priority INT NOT NULL DEFAULT 2,
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS dq_redis (
    id INT NOT NULL AUTO_INCREMENT,
    t_name VARCHAR(200) NOT NULL DEFAULT '',
    t_content VARCHAR(2048) NOT NULL DEFAULT '',
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS dq_alert (
    id INT NOT NULL AUTO_INCREMENT,
    host VARCHAR(255) NOT NULL DEFAULT '',
    port INT NOT NULL DEFAULT 0,
    user VARCHAR(255) NOT NULL DEFAULT '',
    pwd VARCHAR(255) NOT NULL DEFAULT '',
    ext VARCHAR(2048) NOT NULL DEFAULT '',
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS dq_stat (
    id INT NOT NULL AUTO_INCREMENT,
    u_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    num INT NOT NULL DEFAULT 0,
    create_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    update_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
    PRIMARY KEY (id),
    UNIQUE KEY u_key (u_key)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- Older installations have no priority.
SET @missing = (SELECT COUNT(*) = 0 FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'dq_topic' AND column_name = 'priority');
SET @sql = IF(@missing, 'ALTER TABLE dq_topic ADD COLUMN priority INT NOT NULL DEFAULT 2', 'DO 0');
PREPARE step FROM @sql;
EXECUTE step;
DEALLOCATE PREPARE step;

-- The fields that the PHP daemon does not have, as JSON; null in the rows of its console.
SET @missing = (SELECT COUNT(*) = 0 FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'dq_topic' AND column_name = 'dq_spec');
SET @sql = IF(@missing,
    'ALTER TABLE dq_topic ADD COLUMN dq_spec MEDIUMTEXT CHARACTER SET utf8mb4 NULL DEFAULT NULL', 'DO 0');
PREPARE step FROM @sql;
EXECUTE step;
DEALLOCATE PREPARE step;
