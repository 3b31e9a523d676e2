//! Alerts by HTTP: a POST request. Its body is a plain JSON document, or is made by a template.

use std::collections::BTreeMap;
use std::io::Read;

use jiff::tz::TimeZone;
use serde::Deserialize;
use ureq::Agent;

use super::AlertSendError;
use model::notice::{AlertTemplate, Message, plain};
use model::settings::AlertWebhook;

/// How many bytes of an answer are read.
const ANSWER_MAX: u64 = 4096;

/// How many characters of an answer are shown.
const ANSWER_TOLD: usize = 200;

/// Sends messages to one webhook.
pub struct Webhook {
    agent: Agent,
    url: String,
    headers: BTreeMap<String, String>,
    template: Option<AlertTemplate>,
    zone: TimeZone,
}

/// The answer of a chat service (`errcode`: DingTalk and WeCom, `code`: Feishu). If the service did not accept a
/// message, the status is still 200, and this code is not 0.
#[derive(Deserialize)]
struct ChatReply {
    errcode: Option<i64>,
    code: Option<i64>,
}

impl Webhook {
    /// Makes a webhook that uses this agent. The agent must refuse addresses that may not be called. An error says why
    /// the settings cannot be used.
    pub fn new(agent: Agent, webhook: &AlertWebhook, zone: TimeZone) -> Result<Webhook, AlertSendError> {
        let template = webhook
            .template
            .as_deref()
            .map(AlertTemplate::parse)
            .transpose()
            .map_err(AlertSendError::Server)?;
        Ok(Webhook { agent, url: webhook.url.clone(), headers: webhook.headers.clone(), template, zone })
    }

    /// Sends a message.
    pub fn send(&self, message: &Message) -> Result<(), AlertSendError> {
        let body = match &self.template {
            Some(template) => template.render(message, &self.zone).map_err(AlertSendError::Refused)?,
            None => plain(message, &self.zone),
        };
        // The URL may be a secret, so an error must not show it.
        let failed = |e: ureq::Error| match e {
            ureq::Error::BadUri(_) => AlertSendError::Server("its url cannot be called".to_owned()),
            e => AlertSendError::Server(e.to_string()),
        };
        let mut request = self.agent.post(&self.url);
        if !self.headers.keys().any(|name| name.eq_ignore_ascii_case("content-type")) {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut response = request.send(body).map_err(failed)?;
        let status = response.status().as_u16();
        let mut bytes = Vec::new();
        let _ = response.body_mut().as_reader().take(ANSWER_MAX).read_to_end(&mut bytes);
        match refusal(status, &bytes) {
            None => Ok(()),
            // 400, 413 and 422 are about the request. A chat service answers with 200 and a code of its own.
            Some(why) if matches!(status, 200..300 | 400 | 413 | 422) => Err(AlertSendError::Refused(why)),
            Some(why) => Err(AlertSendError::Message(why)),
        }
    }
}

/// Returns why an answer means that a message was not accepted. None: the message was accepted.
fn refusal(status: u16, answer: &[u8]) -> Option<String> {
    let excerpt = || {
        let text = String::from_utf8_lossy(answer);
        text.chars().take(ANSWER_TOLD).map(|c| if c.is_control() { ' ' } else { c }).collect::<String>()
    };
    if !(200..300).contains(&status) {
        return Some(format!("it answers {status}: {}", excerpt()));
    }
    let said: Option<ChatReply> = serde_json::from_slice(answer).ok();
    let bad = said.is_some_and(|s| s.errcode.or(s.code).is_some_and(|code| code != 0));
    bad.then(|| format!("it answers: {}", excerpt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_judged_by_status_and_by_chat_error_codes() {
        for (status, answer, taken) in [
            (200, "ok", true),
            (204, "", true),
            (200, r#"{"errcode":0,"errmsg":"ok"}"#, true),
            (200, r#"{"code":0,"msg":"success","data":{}}"#, true),
            (200, r#"{"errcode":310000,"errmsg":"keywords not in content"}"#, false),
            (200, r#"{"code":19001,"msg":"param invalid"}"#, false),
            (302, "", false),
            (500, "no", false),
        ] {
            assert_eq!(refusal(status, answer.as_bytes()).is_none(), taken, "{status} {answer}");
        }
    }
}
