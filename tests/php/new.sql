-- A newer PHP daemon also has a priority for each topic, and a table with its counts (`dq_stat`).
ALTER TABLE `dq_topic` ADD COLUMN `priority` int(11) NOT NULL DEFAULT '2';
UPDATE `dq_topic` SET `priority` = 1 WHERE `id` = 1;
CREATE TABLE `dq_stat` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `u_key` varchar(255) NOT NULL DEFAULT '',
  `num` int(11) NOT NULL DEFAULT '0',
  `create_time` timestamp NOT NULL DEFAULT '0000-00-00 00:00:00',
  `update_time` timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  PRIMARY KEY (`id`),
  UNIQUE KEY `u_key` (`u_key`)
) ENGINE=InnoDB AUTO_INCREMENT=0 DEFAULT CHARSET=utf8;
INSERT INTO `dq_stat` (`u_key`,`num`,`create_time`) VALUES ('1:total_write',7,'2020-01-01 00:00:00');
