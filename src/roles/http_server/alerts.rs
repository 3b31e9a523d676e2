//! `test` of alerts: sends a message to those who are told, now, and tells what came of it. Nothing waits, and nothing is tried again.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::tz::TimeZone;
use serde::Serialize;
use tokio::sync::Semaphore;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, Sent};
use super::input::{Fields, or_empty};
use super::problem::Problem;
use super::schema;
use super::told::Told;
use super::topic_shown::text;
use crate::alert::{Mailer, NotSent, Webhook, address};
use crate::callback::{Rules, guarded_agent};
use crate::notice::{Message, Notice};
use crate::process::now_ms;
use crate::registry::php_smtp;
use crate::settings::{AlertWebhook, Settings, Smtp};

/// So many messages are sent at the same time.
static FREE: Semaphore = Semaphore::const_new(4);

/// How long a webhook may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(test_alerts)).routes(routes!(channels_shown))
}

/// How people are told, as the configuration has it.
#[derive(Serialize, ToSchema)]
#[schema(as = AlertChannels)]
struct Channels<'a> {
    /// Null: no mail is sent.
    #[schema(required = true)]
    mail: Option<Mail<'a>>,
    webhooks: Vec<Hook<'a>>,
    /// What comes within so long goes into one message.
    gather: String,
    /// Nobody gets more than one message in so long.
    interval: String,
    /// A topic is late whose oldest ready job waits for longer; null: never.
    #[schema(required = true)]
    late_after: Option<String>,
    /// A process is started again and again that was so three times within this.
    restarts_within: String,
}

/// The mail server; of its password nothing.
#[derive(Serialize, ToSchema)]
#[schema(as = AlertMail)]
struct Mail<'a> {
    host: &'a str,
    port: u16,
    from: &'a str,
    /// Who gets a mail of everything; of a topic also those whom it names.
    recipients: &'a [String],
}

/// Who is told by HTTP; of the address only the host.
#[derive(Serialize, ToSchema)]
#[schema(as = AlertHook)]
struct Hook<'a> {
    name: &'a str,
    host: String,
    /// Of which kinds of alerts; empty: of all.
    kinds: &'a [String],
    /// Of which topics; empty: of all.
    topics: &'a [String],
}

/// Shows who is told of alerts, as the configuration has it.
#[utoipa::path(get, path = "/v1/alerts/channels", tag = "daemon", operation_id = "get_alert_channels",
    responses((status = 200, body = Channels, description = "Without passwords and addresses that are secrets"), schema::ShowProblems))]
async fn channels_shown(State(api): State<Api>) -> Told {
    let alert = &api.settings.alert;
    let mail = alert.smtp.as_ref().map(|Smtp { host, port, from, .. }| Mail {
        host,
        port: *port,
        from,
        recipients: &alert.to,
    });
    let host = |url: &str| url.parse::<axum::http::Uri>().ok().and_then(|u| u.host().map(str::to_owned));
    let shown = Channels {
        mail,
        webhooks: alert
            .webhooks
            .iter()
            .map(|AlertWebhook { name, url, kinds, topics, .. }| Hook {
                name,
                host: host(url).unwrap_or_default(),
                kinds,
                topics,
            })
            .collect(),
        gather: text(alert.gather),
        interval: text(alert.interval),
        late_after: alert.late_after.map(text),
        restarts_within: text(alert.restarts_within),
    };
    Told::new(StatusCode::OK, &shown)
}

/// Who is to be told. Neither: all that the configuration names.
#[derive(ToSchema, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
#[schema(as = TestAlert, example = json!({"webhook": "ops"}))]
pub(super) struct Wanted {
    /// An address of mail.
    #[schema(required = false)]
    to: Option<String>,
    /// The name of a webhook.
    #[schema(required = false)]
    webhook: Option<String>,
}

/// What came of it.
#[derive(Serialize, ToSchema)]
#[schema(as = TestedAlerts)]
pub(super) struct Tested {
    results: Vec<Came>,
}

/// What came of one message.
#[derive(Serialize, ToSchema)]
#[schema(as = TestedAlert)]
pub(super) struct Came {
    /// `mail` or `webhook`.
    channel: &'static str,
    /// The address, or the webhook's name.
    to: String,
    sent: bool,
    /// Why it was not sent; null: it was.
    #[schema(required = true)]
    error: Option<String>,
    duration_ms: u64,
}

/// One message to send.
enum Channel {
    Mail(Smtp, String),
    Webhook(AlertWebhook),
}

/// Sends a test message to one address or webhook, or to all of the configuration. 200 whatever comes of it.
#[utoipa::path(post, path = "/v1/alerts/test", tag = "daemon", operation_id = "test_alerts",
    params(schema::IdempotencyKey), request_body(content = Option<Wanted>, content_type = "application/json"),
    responses((status = 200, body = Tested, description = "What came of it"), schema::ChangeProblems))]
async fn test_alerts(State(api): State<Api>, Sent(json): Sent) -> Result<Told, Problem> {
    let fields = Fields::of(or_empty(&json), &["to", "webhook"])?;
    let to: Option<String> = fields.plain("to", "an address, such as \"ops@example.com\"")?;
    let webhook: Option<String> = fields.plain("webhook", "the name of a webhook")?;
    if to.is_some() && webhook.is_some() {
        return Err(Problem::field("webhook", "to and webhook both say who: give one of them"));
    }
    if let Some(why) = to.as_deref().and_then(address) {
        return Err(Problem::field("to", why));
    }
    let Ok(permit) = FREE.try_acquire() else {
        return Err(Problem::unavailable("too_many_tests", "4 alerts are being tested already"));
    };
    let (settings, zone) = (Arc::clone(&api.settings), api.zone.clone());
    let send = move || -> Result<Vec<Came>, Problem> {
        let _permit = permit;
        let channels = channels(&settings, to, webhook)?;
        let message = Message::new(&settings.instance, vec![Notice::test(now_ms())], &zone);
        Ok(channels.into_iter().map(|channel| came(channel, &settings, &message, &zone)).collect())
    };
    let sent = tokio::task::spawn_blocking(send).await;
    let results = sent.map_err(|_| Problem::unavailable("no_thread", "nobody could send"))??;
    Ok(Told::new(StatusCode::OK, &Tested { results }))
}

fn channels(
    settings: &Settings,
    to: Option<String>,
    webhook: Option<String>,
) -> Result<Vec<Channel>, Problem> {
    let alert = &settings.alert;
    if let Some(name) = webhook {
        let found = alert.webhooks.iter().find(|w| w.name == name);
        let unknown = || Problem::field("webhook", "there is no [[alert.webhook]] of that name");
        return Ok(vec![Channel::Webhook(found.ok_or_else(unknown)?.clone())]);
    }
    let smtp = match (&alert.smtp, &settings.registry) {
        (Some(smtp), _) => Some(smtp.clone()),
        (None, Some(registry)) => {
            php_smtp(registry).map_err(|e| Problem::unavailable("registry_away", e.to_string()))?
        }
        (None, None) => None,
    };
    let nobody = |why: &str| Err(Problem::conflict("no_channel", why));
    let Some(smtp) = smtp else {
        if to.is_some() {
            return nobody("there is no mail server: [alert.smtp] names one");
        }
        if alert.webhooks.is_empty() {
            return nobody("nobody is told: there is no [alert.smtp] and no [[alert.webhook]]");
        }
        return Ok(alert.webhooks.iter().cloned().map(Channel::Webhook).collect());
    };
    if let Some(to) = to {
        return Ok(vec![Channel::Mail(smtp, to)]);
    }
    let mails = alert.to.iter().map(|to| Channel::Mail(smtp.clone(), to.clone()));
    let all: Vec<Channel> = mails.chain(alert.webhooks.iter().cloned().map(Channel::Webhook)).collect();
    if all.is_empty() {
        return nobody("nobody is told of everything: alert.to is empty, and there is no [[alert.webhook]]");
    }
    Ok(all)
}

fn came(channel: Channel, settings: &Settings, message: &Message, zone: &TimeZone) -> Came {
    let begun = Instant::now();
    let (kind, to, sent) = match channel {
        Channel::Mail(smtp, to) => {
            let sent = Mailer::new(&smtp).and_then(|mailer| mailer.send(&to, message));
            ("mail", to, sent)
        }
        Channel::Webhook(webhook) => {
            ("webhook", webhook.name.clone(), by_webhook(&webhook, settings, message, zone))
        }
    };
    let error = sent.err().map(|e| e.to_string());
    Came { channel: kind, to, sent: error.is_none(), error, duration_ms: begun.elapsed().as_millis() as u64 }
}

fn by_webhook(
    webhook: &AlertWebhook,
    settings: &Settings,
    message: &Message,
    zone: &TimeZone,
) -> Result<(), NotSent> {
    let agent = guarded_agent(Rules::new(&settings.callback), PATIENCE);
    Webhook::new(agent, webhook, zone.clone())?.send(message)
}
