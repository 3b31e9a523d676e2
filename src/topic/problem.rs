//! What of a topic dq cannot do as it is written, and what becomes of the topic then. Such topics stand in a registry that others
//! write: the console of the PHP daemon, or another release. Pure.

use super::{Mode, Topic, Unfit};

/// The fields without which nobody can say how a job is delivered, or whether it is done: a topic is held for them.
const DECISIVE: [&str; 3] = ["method", "success", "re_notify_flag"];

impl Unfit {
    /// Whether a topic is held for it.
    pub(crate) fn holds(&self) -> bool {
        DECISIVE.contains(&self.field)
    }
}

impl Topic {
    /// Why it is held: nothing is added to it, and nothing is delivered, until somebody has decided. None: it is served.
    pub fn held(&self) -> Option<String> {
        let flaw = self.flaws().into_iter().find(Unfit::holds)?;
        let decision = if flaw.field == "re_notify_flag" { "edits it or clears it" } else { "edits it" };
        Some(format!("{flaw} (until somebody {decision})"))
    }

    /// What it is set to that this release does not do.
    pub fn not_done_yet(&self) -> Vec<Unfit> {
        let mut all = Vec::new();
        if self.mode == Mode::Pull {
            let problem = "\"pull\" is not done by this release yet: say \"push\", or leave it out";
            all.push(Unfit::new("mode", problem));
        }
        if !self.keep_done.is_zero() {
            let span = humantime::format_duration(self.keep_done).to_string().replace(' ', "");
            let problem = format!("\"{span}\" is not done by this release yet: say \"0s\", or leave it out");
            all.push(Unfit::new("keep_done", problem));
        }
        all
    }

    /// What dq cannot do as it is written, and what becomes of the topic; none: all is done.
    pub fn problem(&self) -> Option<String> {
        let held = self.held().map(|why| format!("offline: {why}"));
        let of_field = |unfit: Unfit| match unfit.field {
            "mode" => format!("its jobs are not delivered: {unfit}"),
            _ => format!("jobs that were accepted are not kept: {unfit}"),
        };
        let all: Vec<String> =
            held.into_iter().chain(self.not_done_yet().into_iter().map(of_field)).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::job::TopicName;
    use crate::topic::{Method, Success};

    #[test]
    fn a_topic_is_held_for_what_decides_over_its_jobs_alone() {
        let plain = Topic::new(TopicName::new("t").unwrap(), "http://h/");
        assert_eq!((plain.held(), plain.problem()), (None, None));
        for (topic, value) in [
            (Topic { re_notify_flag: "isset({res.a})".into(), ..plain.clone() }, "isset({res.a})"),
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
    fn what_this_release_does_not_do_is_refused_by_its_name_and_holds_nothing() {
        let plain = Topic::new(TopicName::new("t").unwrap(), "http://h/");
        for (topic, field, value) in [
            (Topic { mode: Mode::Pull, ..plain.clone() }, "mode", "\"pull\""),
            (Topic { keep_done: Duration::from_secs(5400), ..plain.clone() }, "keep_done", "\"1h30m\""),
        ] {
            let refused = topic.check().unwrap_err();
            assert_eq!(refused.field, field);
            assert!(refused.problem.contains(value) && refused.problem.contains("this release"), "{refused}");
            assert!(topic.check_values().is_ok() && topic.held().is_none());
            assert!(topic.problem().unwrap().contains(value));
        }
    }
}
