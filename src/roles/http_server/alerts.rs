//! The routes of alerts. The routes show the channels through which people get alerts, and test the channels with a
//! message. A test message is sent at once, and the answer has the result. The message is not gathered with other
//! messages, and is not sent again if it fails.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::api_response::ApiResponse;
use super::body::JsonBody;
use super::problem::Problem;
use super::schema;
use super::topic_shown::text;
use super::typed_body;
use delivery::alert::{AlertSendError, Mailer, Webhook, address};
use delivery::callback::{GuardRules, guarded_agent};
use host::now_ms;
use model::notice::{Message, Notice};
use model::settings::{AlertWebhook, Settings, SmtpSettings};
use registry::php_smtp;

/// How many test requests run at the same time.
static FREE: Semaphore = Semaphore::const_new(4);

/// How long a webhook may take to answer.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(test_alerts)).routes(routes!(channels_shown))
}

/// How people get alerts, as the configuration says.
#[derive(Serialize, ToSchema)]
#[schema(as = AlertChannels)]
struct AlertChannels<'a> {
    /// The mail channel. Null: no mail is sent.
    #[schema(required = true)]
    mail: Option<MailChannel<'a>>,
    webhooks: Vec<WebhookChannel<'a>>,
    /// Alerts that occur within this time go into one message.
    gather: String,
    /// A recipient gets at most one message in this time.
    interval: String,
    /// An alert is sent when the oldest ready job of a topic waits for longer than this. Null: never.
    #[schema(required = true)]
    late_after: Option<String>,
    /// An alert is sent when a process was restarted three times within this time.
    restarts_within: String,
}

/// The mail server, without its password.
#[derive(Serialize, ToSchema)]
#[schema(as = AlertMail)]
struct MailChannel<'a> {
    host: &'a str,
    port: u16,
    from: &'a str,
    /// The addresses that get mail about everything. The addresses in `alert` of a topic also get the mail about this
    /// topic.
    recipients: &'a [String],
}

/// A webhook. Only the host of its URL is shown.
#[derive(Serialize, ToSchema)]
#[schema(as = AlertHook)]
struct WebhookChannel<'a> {
    name: &'a str,
    host: String,
    /// The kinds of alerts that the webhook gets. An empty list means all.
    kinds: &'a [String],
    /// The topics whose alerts the webhook gets. An empty list means all.
    topics: &'a [String],
}

/// Shows who gets alerts, as the configuration says.
#[utoipa::path(get, path = "/v1/alerts/channels", tag = "daemon", operation_id = "get_alert_channels",
    responses((status = 200, body = AlertChannels, description = "The channels, without passwords and without URLs of webhooks"), schema::ReadErrorResponses))]
async fn channels_shown(State(api): State<Api>) -> ApiResponse {
    let alert = &api.settings.alert;
    let mail = alert.smtp.as_ref().map(|SmtpSettings { host, port, from, .. }| MailChannel {
        host,
        port: *port,
        from,
        recipients: &alert.to,
    });
    let host = |url: &str| url.parse::<axum::http::Uri>().ok().and_then(|u| u.host().map(str::to_owned));
    let shown = AlertChannels {
        mail,
        webhooks: alert
            .webhooks
            .iter()
            .map(|AlertWebhook { name, url, kinds, topics, .. }| WebhookChannel {
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
    ApiResponse::new(StatusCode::OK, &shown)
}

/// Who gets the test message. Without both fields: all recipients in the configuration.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TestAlert, example = json!({"webhook": "ops"}))]
pub(super) struct AlertTestRequest {
    /// An email address.
    #[schema(required = false)]
    to: Option<String>,
    /// The name of a webhook.
    #[schema(required = false)]
    webhook: Option<String>,
}

/// The results of a test.
#[derive(Serialize, ToSchema)]
#[schema(as = TestedAlerts)]
pub(super) struct AlertTestResponse {
    results: Vec<AlertTestResult>,
}

/// The result of one message.
#[derive(Serialize, ToSchema)]
#[schema(as = TestedAlert)]
pub(super) struct AlertTestResult {
    /// `mail` or `webhook`.
    channel: &'static str,
    /// The email address or the name of the webhook.
    to: String,
    sent: bool,
    /// Why the message was not sent. Null if it was sent.
    #[schema(required = true)]
    error: Option<String>,
    duration_ms: u64,
}

/// One recipient of the message.
enum Channel {
    Mail(SmtpSettings, String),
    Webhook(AlertWebhook),
}

/// Sends a test message to one address or webhook, or to all recipients in the configuration. The status is 200 even if
/// a message cannot be sent.
#[utoipa::path(post, path = "/v1/alerts/test", tag = "daemon", operation_id = "test_alerts",
    params(schema::IdempotencyKey), request_body(content = Option<AlertTestRequest>, content_type = "application/json"),
    responses((status = 200, body = AlertTestResponse, description = "The result of each message"), schema::ChangeErrorResponses))]
async fn test_alerts(State(api): State<Api>, JsonBody(json): JsonBody) -> Result<ApiResponse, Problem> {
    let AlertTestRequest { to, webhook } = typed_body::read_or_empty(&json)?;
    if to.is_some() && webhook.is_some() {
        return Err(Problem::field("webhook", "to and webhook exclude each other: give one of them"));
    }
    if let Some(why) = to.as_deref().and_then(address) {
        return Err(Problem::field("to", why));
    }
    let Ok(permit) = FREE.try_acquire() else {
        return Err(Problem::unavailable("too_many_tests", "4 alerts are being tested already"));
    };
    let (settings, zone) = (Arc::clone(&api.settings), api.zone.clone());
    let send = move || -> Result<Vec<AlertTestResult>, Problem> {
        let _permit = permit;
        let channels = channels(&settings, to, webhook)?;
        let message = Message::new(&settings.instance, vec![Notice::test(now_ms())], &zone);
        Ok(channels.into_iter().map(|channel| send_test(channel, &settings, &message, &zone)).collect())
    };
    let sent = tokio::task::spawn_blocking(send).await;
    let results =
        sent.map_err(|_| Problem::unavailable("no_thread", "the thread that sends the messages failed"))??;
    Ok(ApiResponse::new(StatusCode::OK, &AlertTestResponse { results }))
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
            return nobody("there is nobody to alert: there is no [alert.smtp] and no [[alert.webhook]]");
        }
        return Ok(alert.webhooks.iter().cloned().map(Channel::Webhook).collect());
    };
    if let Some(to) = to {
        return Ok(vec![Channel::Mail(smtp, to)]);
    }
    let mails = alert.to.iter().map(|to| Channel::Mail(smtp.clone(), to.clone()));
    let all: Vec<Channel> = mails.chain(alert.webhooks.iter().cloned().map(Channel::Webhook)).collect();
    if all.is_empty() {
        return nobody("there is nobody to alert: alert.to is empty, and there is no [[alert.webhook]]");
    }
    Ok(all)
}

fn send_test(channel: Channel, settings: &Settings, message: &Message, zone: &TimeZone) -> AlertTestResult {
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
    AlertTestResult {
        channel: kind,
        to,
        sent: error.is_none(),
        error,
        duration_ms: begun.elapsed().as_millis() as u64,
    }
}

fn by_webhook(
    webhook: &AlertWebhook,
    settings: &Settings,
    message: &Message,
    zone: &TimeZone,
) -> Result<(), AlertSendError> {
    let agent = guarded_agent(GuardRules::new(&settings.callback), PATIENCE);
    Webhook::new(agent, webhook, zone.clone())?.send(message)
}
