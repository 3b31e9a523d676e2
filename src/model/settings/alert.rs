//! The settings of alerts: mail and webhooks.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Who gets alerts, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertSettings {
    /// The mail server. `None`: dq uses the mail server that the PHP daemon's database names, if this database is the
    /// registry. Otherwise dq sends no mail.
    pub smtp: Option<SmtpSettings>,
    /// The addresses that get a mail about every alert.
    pub to: Vec<String>,
    /// Alerts that come within this time go into one message.
    pub gather: Duration,
    /// A recipient gets at most one message in this time.
    pub interval: Duration,
    /// A topic is late if its oldest ready job has waited for longer than this time. None: no topic is ever late.
    pub late_after: Option<Duration>,
    /// An alert opens if a process was started again three times within this time. The alert closes when the same time
    /// has passed without a restart.
    pub restarts_within: Duration,
    /// The webhooks that get alerts.
    pub webhooks: Vec<AlertWebhook>,
}

/// A mail server, and how to connect to it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmtpSettings {
    /// The name or address of the server.
    pub host: String,
    /// The port of the server.
    pub port: u16,
    /// How the connection is encrypted.
    pub tls: SmtpTls,
    /// User and password, if the server needs them.
    pub login: Option<(String, String)>,
    /// The sender of the mails.
    pub from: String,
    /// How long the server may take to accept the connection, and how long it may take for each answer.
    pub timeout: Duration,
    /// The authorities that may sign the server's certificate, as PEM. None: the authorities that this host trusts.
    pub ca: Option<String>,
}

/// Hides the password.
impl fmt::Debug for SmtpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Smtp").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

/// How the connection to a mail server is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SmtpTls {
    /// The connection is not encrypted.
    None,
    /// The connection is encrypted from the first byte.
    Tls,
    /// The connection is encrypted after the greeting.
    Starttls,
    /// The connection is encrypted after the greeting, if the server offers encryption.
    Opportunistic,
}

/// A webhook that gets alerts.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertWebhook {
    /// The name of the webhook, for people.
    pub name: String,
    /// The URL. It may contain a secret.
    pub url: String,
    /// Headers in addition to dq's own headers.
    pub headers: BTreeMap<String, String>,
    /// The template of the request's body. None: a plain JSON document.
    pub template: Option<String>,
    /// The kinds of alerts that the webhook gets. Empty: all kinds.
    pub kinds: Vec<String>,
    /// The topics whose alerts the webhook gets. Empty: all topics, and alerts that concern no topic.
    pub topics: Vec<String>,
}

/// Hides the URL.
impl fmt::Debug for AlertWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlertWebhook").field("name", &self.name).finish_non_exhaustive()
    }
}
