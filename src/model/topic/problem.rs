//! Finds the settings of a topic that dq cannot follow, and what happens to the topic then. Such topics are in a
//! registry that other programs write: the console of the PHP daemon, or another release of dq. Pure.

use super::{InvalidTopic, Mode, Setting, Topic};

/// The fields that decide how a job is delivered, or whether it is done. A topic is held if one of them is wrong.
const DECISIVE: [&str; 3] = ["method", "success", "re_notify_flag"];

impl Setting {
    /// Returns whether this release supports other values than the default.
    pub fn is_supported(&self) -> bool {
        self.name != "mode"
    }
}

impl InvalidTopic {
    /// Returns whether a topic is held because of this mistake.
    pub fn holds(&self) -> bool {
        DECISIVE.contains(&self.field)
    }
}

impl Topic {
    /// Returns why the topic is held: no job is added to it and none is delivered, until somebody corrects it. None: it
    /// is served.
    pub fn held(&self) -> Option<String> {
        let flaw = self.flaws().into_iter().find(InvalidTopic::holds)?;
        let decision = if flaw.field == "re_notify_flag" { "edits it or clears it" } else { "edits it" };
        Some(format!("{flaw} (until somebody {decision})"))
    }

    /// Returns the settings of the topic that this release does not support yet.
    pub fn not_done_yet(&self) -> Vec<InvalidTopic> {
        let mut all = Vec::new();
        if self.mode == Mode::Pull {
            let problem = "\"pull\" is not supported by this release yet: use \"push\", or leave it out";
            all.push(InvalidTopic::new("mode", problem));
        }
        all
    }

    /// Returns which settings of the topic dq cannot follow, and what happens to the topic. None: dq follows all of
    /// them.
    pub fn problem(&self) -> Option<String> {
        let held = self.held().map(|why| format!("held: {why}"));
        let of_field = |unfit: InvalidTopic| format!("its jobs are not delivered: {unfit}");
        let all: Vec<String> =
            held.into_iter().chain(self.not_done_yet().into_iter().map(of_field)).collect();
        (!all.is_empty()).then(|| all.join("; "))
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

    #[test]
    fn an_unsupported_value_is_refused_by_name_and_holds_no_topic() {
        let plain = Topic::new(TopicName::new("t").unwrap(), "http://h/");
        let topic = Topic { mode: Mode::Pull, ..plain };
        let refused = topic.check().unwrap_err();
        assert_eq!(refused.field, "mode");
        assert!(
            refused.problem.contains("\"pull\"") && refused.problem.contains("this release"),
            "{refused}"
        );
        assert!(topic.check_values().is_ok() && topic.held().is_none());
        assert!(topic.problem().unwrap().contains("\"pull\""));
    }
}
