//! Alerts by HTTP: a POST, whose body is a plain JSON document or what a template makes.

use std::collections::BTreeMap;
use std::io::Read;

use jiff::tz::TimeZone;
use serde::Deserialize;
use ureq::Agent;

use super::NotSent;
use crate::notice::{Message, Template, plain};
use crate::settings::AlertWebhook;

/// So much of an answer is read.
const ANSWER_MAX: u64 = 4096;

/// How many characters of it are told.
const ANSWER_TOLD: usize = 200;

/// Tells one receiver.
pub struct Webhook {
    agent: Agent,
    url: String,
    headers: BTreeMap<String, String>,
    template: Option<Template>,
    zone: TimeZone,
}

/// What chat services answer with a status of 200 when they have not taken a message (DingTalk, WeCom; Feishu).
#[derive(Deserialize)]
struct Said {
    errcode: Option<i64>,
    code: Option<i64>,
}

impl Webhook {
    /// By that agent, which is to know who may be called; or why its settings cannot be used.
    pub fn new(agent: Agent, webhook: &AlertWebhook, zone: TimeZone) -> Result<Webhook, NotSent> {
        let template =
            webhook.template.as_deref().map(Template::parse).transpose().map_err(NotSent::Server)?;
        Ok(Webhook { agent, url: webhook.url.clone(), headers: webhook.headers.clone(), template, zone })
    }

    /// Sends a message.
    pub fn send(&self, message: &Message) -> Result<(), NotSent> {
        let body = match &self.template {
            Some(template) => template.render(message, &self.zone).map_err(NotSent::Message)?,
            None => plain(message, &self.zone),
        };
        // Its address may be a secret, which an error is not to show.
        let failed = |e: ureq::Error| match e {
            ureq::Error::BadUri(_) => NotSent::Server("its url cannot be called".to_owned()),
            e => NotSent::Server(e.to_string()),
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
            Some(why) => Err(NotSent::Message(why)),
        }
    }
}

/// Why an answer means that a message was not taken; none: it was.
fn refusal(status: u16, answer: &[u8]) -> Option<String> {
    let told = || {
        let text = String::from_utf8_lossy(answer);
        text.chars().take(ANSWER_TOLD).map(|c| if c.is_control() { ' ' } else { c }).collect::<String>()
    };
    if !(200..300).contains(&status) {
        return Some(format!("it answers {status}: {}", told()));
    }
    let said: Option<Said> = serde_json::from_slice(answer).ok();
    let bad = said.is_some_and(|s| s.errcode.or(s.code).is_some_and(|code| code != 0));
    bad.then(|| format!("it answers: {}", told()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_judged_by_its_status_and_by_what_chat_services_say() {
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
