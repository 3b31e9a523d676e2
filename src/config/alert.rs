//! Checks the settings of alerts: who gets them, and how.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use lettre::message::Mailbox;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::ConfigError;
use super::bounds::{HOUR, within};
use super::raw;
use model::job::TopicName;
use model::notice::{AlertTemplate, KINDS};
use model::settings::{AlertSettings, AlertWebhook, SmtpSettings, SmtpTls};

const SECOND: Duration = Duration::from_secs(1);

fn wrong<T>(key: &str, problem: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::key(key, problem))
}

/// Checks `[alert]`. Relative paths resolve against `base`.
pub(super) fn alert(raw: raw::Alert, base: &Path) -> Result<AlertSettings, ConfigError> {
    addresses("alert.to", &raw.to)?;
    let mut names = HashSet::new();
    let mut webhooks = Vec::new();
    for (i, raw) in raw.webhook.into_iter().enumerate() {
        let at = format!("alert.webhook[{i}]");
        if !names.insert(raw.name.clone()) {
            return wrong(
                &format!("{at}.name"),
                format!("{:?} is already the name of another webhook", raw.name),
            );
        }
        webhooks.push(webhook(&at, raw, base)?);
    }
    Ok(AlertSettings {
        smtp: smtp(raw.smtp, base)?,
        to: raw.to,
        gather: within("alert.gather", raw.gather, Duration::ZERO, HOUR)?,
        interval: within("alert.interval", raw.interval, Duration::ZERO, 24 * HOUR)?,
        late_after: match raw.late_after.0 {
            Duration::ZERO => None,
            _ => Some(within("alert.late_after", raw.late_after, SECOND, 24 * 366 * HOUR)?),
        },
        restarts_within: within("alert.restarts_within", raw.restarts_within, SECOND, 24 * HOUR)?,
        webhooks,
    })
}

/// Checks mail addresses.
pub(super) fn addresses(key: &str, addresses: &[String]) -> Result<(), ConfigError> {
    for text in addresses {
        if text.parse::<Mailbox>().is_err() {
            return wrong(key, format!("{text:?} is not an address, such as \"ops@example.com\""));
        }
    }
    Ok(())
}

fn smtp(raw: raw::Smtp, base: &Path) -> Result<Option<SmtpSettings>, ConfigError> {
    if raw.host.is_empty() {
        let given = [
            ("user", &raw.user),
            ("password", &raw.password),
            ("password_file", &raw.password_file),
            ("from", &raw.from),
            ("ca_file", &raw.ca_file),
        ];
        return match given.iter().find(|(_, value)| !value.is_empty()) {
            Some((key, _)) => {
                let problem =
                    format!("is missing, but alert.smtp.{key} is set; a host is \"mail.example.com\"");
                wrong("alert.smtp.host", problem)
            }
            None => Ok(None),
        };
    }
    if raw.host.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '@')) {
        let problem = format!(
            "{:?} is not a host, such as \"mail.example.com\"; the port is alert.smtp.port",
            raw.host
        );
        return wrong("alert.smtp.host", problem);
    }
    if raw.port == 0 {
        return wrong(
            "alert.smtp.port",
            "0 is not a port; use 587 with \"starttls\", 465 with \"tls\", 25 with \"none\"",
        );
    }
    let tls = match raw.tls.as_str() {
        "none" => SmtpTls::None,
        "tls" => SmtpTls::Tls,
        "starttls" => SmtpTls::Starttls,
        other => {
            return wrong(
                "alert.smtp.tls",
                format!("{other:?} is none of \"starttls\", \"tls\" and \"none\""),
            );
        }
    };
    if raw.from.is_empty() {
        return wrong("alert.smtp.from", "is missing: the sender of the mails, such as \"dq@example.com\"");
    }
    addresses("alert.smtp.from", std::slice::from_ref(&raw.from))?;
    let ca = file("alert.smtp.ca_file", &raw.ca_file, base)?;
    if let Some(ca) = &ca {
        if tls == SmtpTls::None {
            return wrong(
                "alert.smtp.ca_file",
                format!("{:?} has no effect with tls = \"none\"", raw.ca_file),
            );
        }
        if CertificateDer::from_pem_slice(ca.as_bytes()).is_err() {
            let problem = format!(
                "{:?} holds no certificate; certificates begin with \"-----BEGIN CERTIFICATE-----\"",
                raw.ca_file
            );
            return wrong("alert.smtp.ca_file", problem);
        }
    }
    let timeout = within("alert.smtp.timeout", raw.timeout, SECOND, SECOND * 300)?;
    let (host, port, from) = (raw.host.clone(), raw.port, raw.from.clone());
    Ok(Some(SmtpSettings { host, port, tls, login: login(&raw, base)?, from, timeout, ca }))
}

fn login(raw: &raw::Smtp, base: &Path) -> Result<Option<(String, String)>, ConfigError> {
    let password = match (raw.password.as_str(), file("alert.smtp.password_file", &raw.password_file, base)?)
    {
        ("", None) => None,
        (password, None) => Some(password.to_owned()),
        ("", Some(text)) => match text.trim_end_matches(['\r', '\n']) {
            "" => return wrong("alert.smtp.password_file", format!("{:?} is empty", raw.password_file)),
            password => Some(password.to_owned()),
        },
        (_, Some(_)) => {
            return wrong(
                "alert.smtp.password_file",
                "alert.smtp.password is set as well: leave one of them out",
            );
        }
    };
    match (raw.user.as_str(), password) {
        ("", None) => Ok(None),
        ("", Some(_)) => wrong("alert.smtp.user", "is missing, but there is a password"),
        (user, None) => wrong(
            "alert.smtp.password",
            format!("is missing for the user {user:?}: set it, or password_file"),
        ),
        (user, Some(password)) => Ok(Some((user.to_owned(), password))),
    }
}

fn webhook(at: &str, raw: raw::AlertWebhook, base: &Path) -> Result<AlertWebhook, ConfigError> {
    let key = |name: &str| format!("{at}.{name}");
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    if !(1..=64).contains(&raw.name.len()) || !raw.name.bytes().all(allowed) {
        return wrong(
            &key("name"),
            format!("{:?} must be 1 to 64 letters, digits, `_`, `-` or `.`", raw.name),
        );
    }
    let uri: Option<Uri> = raw.url.parse().ok();
    if !uri.is_some_and(|u| {
        matches!(u.scheme_str(), Some("http" | "https")) && u.host().is_some_and(|h| !h.is_empty())
    }) {
        return wrong(
            &key("url"),
            "is not a URL that dq can call, such as \"https://hooks.example.com/T0/B0/x\"",
        );
    }
    for (name, value) in &raw.headers {
        if name.parse::<HeaderName>().is_err() || HeaderValue::from_str(value).is_err() {
            return wrong(&key("headers"), format!("{name:?} and its value are not a valid header"));
        }
    }
    if let Some(kind) = raw.kinds.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
        return wrong(
            &key("kinds"),
            format!("{kind:?} is not a kind of alert; the kinds are {}", KINDS.join(", ")),
        );
    }
    if let Some(topic) = raw.topics.iter().find(|topic| TopicName::new(topic).is_err()) {
        return wrong(&key("topics"), format!("{topic:?} is not the name of a topic"));
    }
    let template = file(&key("template_file"), &raw.template_file, base)?;
    if let Some(text) = &template {
        let named =
            |e: String| ConfigError::key(key("template_file"), format!("{:?}: {e}", raw.template_file));
        let template = AlertTemplate::parse(text).map_err(named)?;
        let kind = raw.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        if kind.is_none_or(|(_, value)| value.contains("json")) {
            template.makes_json().map_err(named)?;
        }
    }
    let raw::AlertWebhook { name, url, headers, kinds, topics, .. } = raw;
    Ok(AlertWebhook { name, url, headers, template, kinds, topics })
}

/// Returns the text of the file that the value of a key names. None: the value is empty.
fn file(key: &str, name: &str, base: &Path) -> Result<Option<String>, ConfigError> {
    if name.is_empty() {
        return Ok(None);
    }
    let path = base.join(name);
    std::fs::read_to_string(&path).map(Some).map_err(|e| ConfigError::unreadable(key, &path, &e))
}
