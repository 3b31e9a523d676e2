//! Says which jobs the PHP daemon can deliver as dq does. Pure.

use super::super::import::known::TopicsAndPhpNodes;
use model::job::TopicName;
use model::topic::{DONE_SUFFIX, DeliveryMode, Method, Payload};
use store::StoredJob;

/// The topics that the PHP daemon knows, and whether jobs may lose data.
pub struct PhpCompatibility {
    known: TopicsAndPhpNodes,
    /// Whether jobs may lose the data that the PHP daemon cannot store.
    may_reduce: bool,
}

impl PhpCompatibility {
    pub fn new(known: TopicsAndPhpNodes, may_reduce: bool) -> PhpCompatibility {
        PhpCompatibility { known, may_reduce }
    }

    /// Fails with the reason if a job has to stay in dq.
    pub fn check(&self, job: &StoredJob) -> Result<(), &'static str> {
        self.check_topic(&job.key.topic)?;
        let headers = &job.headers;
        if headers.destination().is_some() {
            return Err(
                "it has its own path or URL, and the PHP daemon would call the callback of its topic",
            );
        }
        if self.may_reduce {
            return Ok(());
        }
        if !headers.by_name().is_empty() {
            return Err("its headers would be lost (--reduce moves it without them)");
        }
        if !headers.then().is_empty() {
            return Err("the jobs that follow it would be lost (--reduce moves it without them)");
        }
        if headers.expires_ms().is_some() {
            return Err("its end of life would be lost (--reduce moves it without that)");
        }
        if job.priority.level().is_none() {
            return Err("its priority, a number, would be lost (--reduce moves it without that)");
        }
        Ok(())
    }

    fn check_topic(&self, name: &TopicName) -> Result<(), &'static str> {
        if name.as_str().ends_with(DONE_SUFFIX) {
            return Err("it is an event about an ended job, and the PHP daemon has no such events");
        }
        if self.known.php_topics.as_ref().is_some_and(|topics| !topics.contains(name.as_str())) {
            return Err("its topic is in no row of dq_topic, so the PHP daemon would drop it");
        }
        let Some(topic) = self.known.topics.get(name) else { return Ok(()) };
        if topic.mode == DeliveryMode::Pull {
            return Err("its topic is a pull topic, and the PHP daemon has no such topics");
        }
        if topic.callback.is_empty() {
            return Err("its topic has no callback, so the PHP daemon would drop it");
        }
        Ok(())
    }

    /// Returns what the receiver of a topic should expect from the PHP daemon. `None`: nothing new.
    pub fn note(&self, name: &TopicName) -> Option<String> {
        let topic = self.known.topics.get(name)?;
        let is_form = topic.payload == Payload::Form || matches!(topic.method, Method::Get);
        (!is_form && topic.mode == DeliveryMode::Push).then(|| {
            format!("topic {name}: its receiver gets JSON from dq, and will get the fields of a form from the PHP daemon")
        })
    }
}

/// Returns whether a job loses something when it is moved.
pub fn is_reduced(job: &StoredJob) -> bool {
    !job.headers.is_empty() || job.max_attempts.is_some() || job.priority.level().is_none()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use model::destination::Destination;
    use model::headers::Headers;
    use model::job::{Body, JobId, JobKey, State};
    use model::job_priority::JobPriority;
    use model::topic::Topic;

    fn job(topic: &str) -> StoredJob {
        StoredJob {
            key: JobKey { topic: TopicName::new(topic).unwrap(), id: JobId::new("1").unwrap() },
            state: State::Delayed,
            body: Body::trusted("{}"),
            due_ms: 1,
            until_ms: None,
            stamp_us: 1,
            priority: JobPriority::default(),
            attempts: 0,
            max_attempts: None,
            attempts_log: Vec::new(),
            headers: Headers::default(),
            reserver: None,
            is_spooled: false,
        }
    }

    fn known() -> TopicsAndPhpNodes {
        let name = |name: &str| TopicName::new(name).unwrap();
        let push = Topic::new(name("push"), "http://h/");
        let pull = Topic { mode: DeliveryMode::Pull, ..Topic::new(name("pull"), "") };
        let topics = [push, pull, Topic::new(name("bare"), "")];
        TopicsAndPhpNodes {
            topics: topics.into_iter().map(|topic| (topic.name.clone(), topic)).collect(),
            ..TopicsAndPhpNodes::default()
        }
    }

    #[test]
    fn jobs_that_php_cannot_deliver_stay() {
        let fit = PhpCompatibility::new(known(), true);
        let reason = |topic: &str| fit.check(&job(topic)).err().unwrap_or_default();
        assert_eq!((reason("push"), reason("unknown")), ("", ""));
        assert!(reason("pull").contains("pull topic") && reason("bare").contains("no callback"));
        assert!(reason("push.on_done").contains("no such events"));
        let path = Destination::from_path("/a").unwrap();
        let own = StoredJob { headers: Headers::default().with_destination(Some(path)), ..job("push") };
        assert!(fit.check(&own).unwrap_err().contains("path or URL"));
        let php_topics = Some(HashSet::from(["push".to_owned(), "unusable for dq".to_owned()]));
        let fit = PhpCompatibility::new(TopicsAndPhpNodes { php_topics, ..known() }, false);
        assert_eq!(fit.check(&job("push")), Ok(()));
        assert!(fit.check(&job("unknown")).unwrap_err().contains("dq_topic"));
    }

    #[test]
    fn what_would_be_lost_is_lost_only_on_request() {
        let headers = Headers::new([("x-a".to_owned(), "1".to_owned())]).unwrap();
        let expires = Headers::default().with_expires_ms(Some(5));
        let jobs = [
            StoredJob { headers, ..job("push") },
            StoredJob { headers: expires, ..job("push") },
            StoredJob { priority: JobPriority::from_number(7), ..job("push") },
        ];
        for (one, lost) in jobs.iter().zip(["headers", "end of life", "priority"]) {
            let why = PhpCompatibility::new(known(), false).check(one).unwrap_err();
            assert!(why.contains(lost) && is_reduced(one), "{why}");
            assert_eq!(PhpCompatibility::new(known(), true).check(one), Ok(()));
        }
        let ttr = Headers::default().with_ttr(Some(Duration::from_secs(1)));
        assert_eq!(
            PhpCompatibility::new(known(), false).check(&StoredJob { headers: ttr, ..job("push") }),
            Ok(())
        );
    }
}
