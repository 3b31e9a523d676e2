-- A database of an older PHP daemon: no priority, no dq_stat, utf8.
CREATE TABLE `dq_alert` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `host` varchar(255) NOT NULL DEFAULT '',
  `port` int(11) NOT NULL DEFAULT '0',
  `user` varchar(255) NOT NULL DEFAULT '',
  `pwd` varchar(255) NOT NULL DEFAULT '',
  `ext` varchar(2048) NOT NULL DEFAULT '',
  PRIMARY KEY (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=2 DEFAULT CHARSET=utf8;
CREATE TABLE `dq_redis` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `t_name` varchar(200) NOT NULL DEFAULT '',
  `t_content` varchar(2048) NOT NULL DEFAULT '',
  PRIMARY KEY (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=14 DEFAULT CHARSET=utf8;
CREATE TABLE `dq_topic` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `t_name` varchar(1024) NOT NULL DEFAULT '',
  `delay` int(11) NOT NULL DEFAULT '0',
  `callback` varchar(1024) NOT NULL DEFAULT '',
  `timeout` int(11) NOT NULL DEFAULT '3000',
  `email` varchar(1024) NOT NULL DEFAULT '',
  `re_notify_flag` varchar(1024) NOT NULL DEFAULT '',
  `topic` varchar(255) NOT NULL DEFAULT '',
  `createor` varchar(1024) NOT NULL DEFAULT '',
  `status` tinyint(4) NOT NULL DEFAULT '1',
  `method` varchar(32) NOT NULL DEFAULT 'GET',
  PRIMARY KEY (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=6 DEFAULT CHARSET=utf8;
INSERT INTO `dq_alert` VALUES (1,'smtp.example.com',465,'dq@example.com','s3cret','{"redis":"a@example.com,b@example.com"}');
INSERT INTO `dq_redis` VALUES (2,'二','10.0.0.2:6379:pw'),(1,'一','10.0.0.1:6379:pw,10.0.0.9:6379:pw');
INSERT INTO `dq_topic` (`id`,`t_name`,`delay`,`callback`,`timeout`,`email`,`re_notify_flag`,`topic`,`createor`,`status`,`method`) VALUES
 (1,'关闭订单',1800,'http://127.0.0.1:9000/close',3000,'a@example.com,b@example.com','{res.code} != 0','order_close','张三',1,'POST'),
 (2,'vip',60,'http://127.0.0.1:9000/vip?k=1',500,'','重试标记','order_openvip_checker','li',2,'GET'),
 (3,'no url',0,'nowhere',3000,'','','nowhere','li',1,'GET'),
 (4,'again',0,'http://127.0.0.1:9000/other',3000,'','','order_close','li',1,'GET'),
 (5,'bad name',0,'http://127.0.0.1:9000/x',3000,'','','order close','li',1,'GET');
