//! The settings of a topic that only administrators change: its quotas, its share of the workers, the check of
//! certificates, and the hosts of its jobs. A caller that may only manage the topic must not change them. Otherwise the
//! caller could remove the limits that were set for it. With `job_hosts`, the caller could also send callbacks to its
//! own host and read their headers. With `tls_verify`, the caller could let others on the network read the headers.
//!
//! Administrators, and callers that may read the answers of the topic's receiver, decide where these answers are sent.

use super::api::CallerContext;
use super::problem::Problem;
use model::job::TopicName;
use model::scope::RequiredAccess;
use model::topic::{Setting, Topic, Topics};

/// The names of the settings that only administrators change.
const NAMES: [&str; 7] =
    ["tenant", "priority", "max_pending", "max_bytes", "add_rate", "tls_verify", "job_hosts"];

/// How many topics a token without the scope `admin` may register.
const TOPICS_MAX: usize = 1000;

/// What a caller may do with the settings that only administrators change.
pub(super) enum AdminSettingsAccess {
    /// The caller is an administrator, and may change the settings.
    Changed,
    /// The caller must leave the settings as they are. A new topic of the caller belongs to this tenant. Therefore all
    /// topics of one caller together do not get a greater share of the workers than one topic.
    Kept {
        /// The name of the caller's token.
        tenant: String,
        /// How many topics this tenant has.
        topics: usize,
        /// Whether the caller may see what the topic's receiver answers.
        sees_answers: bool,
    },
}

impl AdminSettingsAccess {
    pub(super) fn for_requester(
        requester: &CallerContext,
        name: &TopicName,
        topics: &Topics,
    ) -> AdminSettingsAccess {
        if requester.permits(RequiredAccess::Admin) {
            return AdminSettingsAccess::Changed;
        }
        let tenant = requester.name().unwrap_or_default();
        let topics = topics.iter().filter(|topic| topic.tenant == tenant).count();
        AdminSettingsAccess::Kept { tenant, topics, sees_answers: requester.sees_answers(name) }
    }

    /// Checks the removal of a topic, because this also removes the topic's limits.
    pub(super) fn check_removal(&self, topic: &Topic) -> Result<(), Problem> {
        let AdminSettingsAccess::Kept { tenant, .. } = self else { return Ok(()) };
        let new = Topic::new(topic.name.clone(), "");
        let is_own_tenant = |setting: &Setting| setting.name == "tenant" && topic.tenant == *tenant;
        for setting in Topic::SETTINGS.iter().filter(|setting| NAMES.contains(&setting.name)) {
            let value = setting.value(topic);
            if value != setting.value(&new) && !is_own_tenant(setting) {
                let detail = format!("{} is {value}: only an administrator removes the topic", setting.name);
                return Err(Problem::forbidden_field(setting.name, detail));
            }
        }
        Ok(())
    }

    /// Checks a change. `before` is none for a new topic.
    pub(super) fn check(&self, before: Option<&Topic>, changed: &mut Topic) -> Result<(), Problem> {
        let AdminSettingsAccess::Kept { tenant, topics, sees_answers } = self else { return Ok(()) };
        if before.is_none() && *topics >= TOPICS_MAX {
            let detail =
                format!("{tenant} has registered {topics} topics: only an administrator registers more");
            return Err(Problem::forbidden_field("name", detail));
        }
        let new = Topic::new(changed.name.clone(), "");
        let present = before.unwrap_or(&new);
        for setting in Topic::SETTINGS.iter().filter(|setting| NAMES.contains(&setting.name)) {
            let (was, is) = (setting.value(present), setting.value(changed));
            if was != is {
                let detail = format!("{} is {was}: only an administrator changes it to {is}", setting.name);
                return Err(Problem::forbidden_field(setting.name, detail));
            }
        }
        // A caller that must not see the answers must not send them to its own address. The check also applies when the
        // change turns `on_done_answer` off, because waiting events already contain answers.
        let sends = |topic: &Topic| (topic.on_done_answer, topic.on_done.clone());
        let has_answers = present.on_done_answer || changed.on_done_answer;
        if has_answers && !sees_answers && sends(present) != sends(changed) {
            let is_same = present.on_done_answer == changed.on_done_answer;
            let name = if is_same { "on_done" } else { "on_done_answer" };
            let scope = RequiredAccess::Answers(changed.name.as_str());
            let detail = format!(
                "with on_done_answer, the events contain the answers of the receiver: only a caller with {scope} may turn it on or off, or change on_done while it is on"
            );
            return Err(Problem::forbidden_field(name, detail));
        }
        if before.is_none() {
            changed.tenant.clone_from(tenant);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_administrator_lifts_the_limits_of_a_topic() {
        let before = Topic {
            max_pending: Some(7),
            tenant: "shops".into(),
            ..Topic::new(TopicName::new("t").unwrap(), "http://h/")
        };
        let manager = AdminSettingsAccess::Kept { tenant: "ci".into(), topics: 0, sees_answers: false };
        let mut changed = Topic { title: "new".into(), ..before.clone() };
        assert!(manager.check(Some(&before), &mut changed).is_ok() && changed.tenant == "shops");
        let mut lifted = Topic { max_pending: None, ..before.clone() };
        let problem = manager.check(Some(&before), &mut lifted).unwrap_err();
        assert_eq!(problem.named_field(), Some("max_pending"));
        assert!(
            problem.detail.contains("max_pending is 7") && problem.detail.contains("null"),
            "{}",
            problem.detail
        );
        assert!(AdminSettingsAccess::Changed.check(Some(&before), &mut lifted).is_ok());
        // Otherwise the caller could remove the topic and register it again without its limits.
        assert_eq!(manager.check_removal(&before).unwrap_err().named_field(), Some("max_pending"));
        let own = Topic { tenant: "ci".into(), ..Topic::new(before.name.clone(), "http://h/") };
        assert!(
            manager.check_removal(&own).is_ok()
                && AdminSettingsAccess::Changed.check_removal(&before).is_ok()
        );
        let mut unchecked = Topic { tls_verify: false, ..before.clone() };
        assert_eq!(
            manager.check(Some(&before), &mut unchecked).unwrap_err().named_field(),
            Some("tls_verify")
        );
        let mut shown = Topic { job_hosts: vec!["evil.example".into()], ..before.clone() };
        assert_eq!(manager.check(Some(&before), &mut shown).unwrap_err().named_field(), Some("job_hosts"));
        // This caller cannot send the receiver's answers to another address. It can send events without answers
        // anywhere.
        let own = |with_answer| Topic {
            on_done: "http://own.example/".into(),
            on_done_answer: with_answer,
            ..before.clone()
        };
        assert!(manager.check(Some(&before), &mut own(false)).is_ok());
        assert_eq!(
            manager.check(Some(&before), &mut own(true)).unwrap_err().named_field(),
            Some("on_done_answer")
        );
        let sent = Topic { on_done: "http://h/".into(), ..own(true) };
        assert_eq!(manager.check(Some(&sent), &mut own(true)).unwrap_err().named_field(), Some("on_done"));
        assert!(manager.check(Some(&sent), &mut Topic { title: "new".into(), ..sent.clone() }).is_ok());
        assert!(manager.check(Some(&sent), &mut own(false)).is_err());
        let reader = AdminSettingsAccess::Kept { tenant: "ci".into(), topics: 0, sees_answers: true };
        assert!(reader.check(Some(&before), &mut own(true)).is_ok());
        // A new topic has no limits, and belongs to the tenant of its maker.
        let mut new = Topic::new(before.name.clone(), "http://h/");
        assert!(manager.check(None, &mut new).is_ok() && new.tenant == "ci");
        let many = AdminSettingsAccess::Kept { tenant: "ci".into(), topics: TOPICS_MAX, sees_answers: false };
        assert!(many.check(None, &mut Topic::new(before.name.clone(), "http://h/")).is_err());
        assert!(many.check(Some(&before), &mut before.clone()).is_ok());
        let mut new = Topic { tenant: "another".into(), ..Topic::new(before.name, "http://h/") };
        assert_eq!(manager.check(None, &mut new).unwrap_err().named_field(), Some("tenant"));
    }
}
