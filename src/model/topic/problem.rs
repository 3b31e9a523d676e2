//! Decides whether a topic is held, because dq cannot use one of its settings. Such a topic comes from a registry into
//! which other programs also write: the console of the PHP daemon, or another release of dq. Pure.

use super::{InvalidTopic, Topic};

/// The fields that decide how a job is delivered, or whether it is done. A topic is held if one of these fields is
/// wrong.
const DECISIVE: [&str; 3] = ["method", "success", "re_notify_flag"];

impl InvalidTopic {
    /// Returns whether a topic is held because of this mistake.
    pub fn holds(&self) -> bool {
        DECISIVE.contains(&self.field)
    }
}

impl Topic {
    /// Returns why the topic is held. No job is added to a held topic, and no job of a held topic is delivered, until
    /// somebody corrects the setting. None: the topic is served.
    pub fn held(&self) -> Option<String> {
        let flaw = self.flaws().into_iter().find(InvalidTopic::holds)?;
        let decision = if flaw.field == "re_notify_flag" { "edits it or clears it" } else { "edits it" };
        Some(format!("{flaw} (until somebody {decision})"))
    }

    /// Returns a message that the topic is held, and why. None: the topic is not held.
    pub fn problem(&self) -> Option<String> {
        self.held().map(|why| format!("held: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::TopicName;
    use crate::topic::{Method, Success};

    #[test]
    fn a_topic_is_held_for_what_decides_over_its_jobs_alone() {
        let plain = Topic::new(TopicName::new("t").unwrap(), "http://h/");
        assert_eq!((plain.held(), plain.problem()), (None, None));
        for (topic, value) in [
            (Topic { re_notify_flag: "system({res.a})".into(), ..plain.clone() }, "system({res.a})"),
            (Topic { success: Success::When("{status} =".into()), ..plain.clone() }, "{status} ="),
            (Topic { method: Method::Other("PUT".into()), ..plain.clone() }, "PUT"),
        ] {
            let why = topic.held().unwrap();
            assert!(why.contains(value) && topic.problem().unwrap().contains(&why), "{why}");
            assert!(topic.check().is_err(), "it is not written so");
        }
        let mail = Topic { alert: vec!["nobody".into()], ..plain.clone() };
        assert_eq!((mail.held(), mail.problem()), (None, None), "it is served without that");
    }
}
