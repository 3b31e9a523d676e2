//! Decides who gets which alert. The decision depends on the settings, the topics, and the mail settings in the PHP
//! daemon's database.

use std::sync::{Arc, Mutex};

use serde::Deserialize;

use delivery::alert::address;
use model::notice::{Notice, Recipient};
use model::settings::{self, AlertSettings, AlertWebhook, Settings, SmtpSettings};
use model::topic::Topics;
use registry::PhpAlert;

/// What is known of the PHP daemon's mail settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum PhpMail {
    /// The registry has not been read yet.
    #[default]
    Unknown,
    /// There are no mail settings, or they are not used.
    Nothing,
    /// The mail settings.
    Row(Box<PhpMailSettings>),
}

/// The contents of a row of `dq_alert`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PhpMailSettings {
    smtp: SmtpSettings,
    /// The addresses that get alerts about nodes.
    of_nodes: Vec<String>,
}

/// The mail settings. The registry's thread writes them.
pub(super) type SharedPhpMail = Arc<Mutex<PhpMail>>;

impl PhpMail {
    /// Whether the PHP daemon's mail settings are used.
    pub(super) fn counts(settings: &Settings) -> bool {
        settings.alert.smtp.is_none()
            && matches!(settings.registry, Some(settings::RegistrySettings::Mysql(_)))
    }

    /// Returns the mail settings of a row. `None`: there is no row.
    pub(super) fn from_row(row: Option<PhpAlert>) -> PhpMail {
        match row.and_then(|row| Some((row.smtp()?, row))) {
            None => PhpMail::Nothing,
            Some((smtp, row)) => {
                PhpMail::Row(Box::new(PhpMailSettings { smtp, of_nodes: of_nodes(&row.ext) }))
            }
        }
    }
}

fn of_nodes(ext: &str) -> Vec<String> {
    #[derive(Deserialize)]
    struct PhpAlertExt {
        #[serde(default)]
        redis: String,
    }
    let ext: Option<PhpAlertExt> = serde_json::from_str(ext).ok();
    let addresses = ext.map(|ext| ext.redis).unwrap_or_default();
    addresses.split([',', ';']).map(str::trim).filter(|a| !a.is_empty()).map(str::to_owned).collect()
}

/// Decides who gets an alert.
pub(super) struct Routes<'a> {
    pub alert: &'a AlertSettings,
    pub topics: &'a Topics,
    pub php: &'a PhpMail,
}

impl Routes<'_> {
    /// Returns the mail server. `None`: there is no mail server, or it is not known yet.
    pub(super) fn smtp(&self) -> Option<&SmtpSettings> {
        match self.php {
            PhpMail::Row(row) if self.alert.smtp.is_none() => Some(&row.smtp),
            _ => self.alert.smtp.as_ref(),
        }
    }

    /// Returns whether mail may be sent. False: it is known that there is no mail server. (While the registry has not
    /// been read, this may be unknown.)
    fn has_mail(&self) -> bool {
        self.alert.smtp.is_some() || *self.php != PhpMail::Nothing
    }

    /// Returns who gets this notice.
    pub(super) fn recipients(&self, notice: &Notice) -> Vec<Recipient> {
        let mut to: Vec<Recipient> = Vec::new();
        if self.has_mail() {
            let topic = notice.topic.as_deref().and_then(|name| self.topics.get(name));
            let own = topic.map_or(&[][..], |topic| &topic.alert);
            let php = match self.php {
                PhpMail::Row(row) if notice.node.is_some() => &row.of_nodes[..],
                _ => &[],
            };
            for text in self.alert.to.iter().chain(own).chain(php) {
                let mail = Recipient::Mail(text.trim().to_owned());
                if to.contains(&mail) {
                    continue;
                }
                match address(text) {
                    None => to.push(mail),
                    Some(why) => log::debug!("cannot send {:?} to an address: {why}", notice.title),
                }
            }
        }
        let is_told = |webhook: &&AlertWebhook| {
            let of_kind = webhook.kinds.is_empty() || webhook.kinds.contains(&notice.kind);
            let of_topic = webhook.topics.is_empty()
                || notice.topic.as_ref().is_some_and(|topic| webhook.topics.contains(topic));
            of_kind && of_topic
        };
        to.extend(self.alert.webhooks.iter().filter(is_told).map(|w| Recipient::Webhook(w.name.clone())));
        to
    }

    /// Whether a recipient may still get alerts.
    pub(super) fn knows(&self, to: &Recipient) -> bool {
        match to {
            Recipient::Mail(_) => self.has_mail(),
            Recipient::Webhook(name) => self.alert.webhooks.iter().any(|w| w.name == *name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use model::job::TopicName;
    use model::settings::SmtpTls;
    use model::topic::Topic;

    fn alert() -> AlertSettings {
        let hook = |name: &str, kinds: &[&str], topics: &[&str]| AlertWebhook {
            name: name.into(),
            url: String::new(),
            headers: Default::default(),
            template: None,
            kinds: kinds.iter().map(|k| (*k).to_owned()).collect(),
            topics: topics.iter().map(|t| (*t).to_owned()).collect(),
        };
        AlertSettings {
            smtp: None,
            to: vec!["ops@example.com".into()],
            gather: Duration::ZERO,
            interval: Duration::ZERO,
            late_after: None,
            restarts_within: Duration::from_secs(300),
            webhooks: vec![
                hook("all", &[], &[]),
                hook("nodes", &["node_down"], &[]),
                hook("orders", &[], &["orders"]),
            ],
        }
    }

    fn addresses(php: &PhpMail, notice: &Notice) -> Vec<String> {
        let mails = ["shop@example.com", "ops@example.com", "junk"].map(str::to_owned).to_vec();
        let topic = Topic { alert: mails, ..Topic::new(TopicName::new("orders").unwrap(), "http://h/") };
        let topics = Topics::from_iter([topic]);
        let routes = Routes { alert: &alert(), topics: &topics, php };
        routes.recipients(notice).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn alerts_go_to_topic_and_global_contacts_and_chosen_webhooks() {
        let row = PhpAlert {
            host: "mail.example.com".into(),
            port: 25,
            user: "dq".into(),
            password: "s".into(),
            ext: r#"{"redis":"r1@example.com, r2@example.com"}"#.into(),
        };
        let smtp = row.smtp().unwrap();
        assert_eq!((smtp.from.as_str(), smtp.tls), ("dq@mail.example.com", SmtpTls::Starttls));
        let here = PhpAlert { host: "127.0.0.1".into(), ..row.clone() };
        assert_eq!(here.smtp().unwrap().tls, SmtpTls::Opportunistic);
        let php = PhpMail::from_row(Some(row.clone()));
        let dead = Notice::dead("orders", 1, vec![], 0);
        let mails = ["ops@example.com", "shop@example.com"];
        assert_eq!(addresses(&php, &dead), [&mails[..], &["the webhook all", "the webhook orders"]].concat());
        assert_eq!(addresses(&PhpMail::Unknown, &dead)[..2], mails);
        assert_eq!(addresses(&PhpMail::Nothing, &dead), ["the webhook all", "the webhook orders"]);
        let node = Notice { kind: "node_down".into(), node: Some("r1".into()), ..Notice::test(0) };
        let nodes =
            ["ops@example.com", "r1@example.com", "r2@example.com", "the webhook all", "the webhook nodes"];
        assert_eq!(addresses(&php, &node), nodes);
        assert_eq!(PhpMail::from_row(Some(PhpAlert { host: " ".into(), ..row })), PhpMail::Nothing);
    }
}
