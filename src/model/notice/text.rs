//! The words of a message. Text that a client or receiver can influence, such as ids and answers, becomes one line of
//! visible characters.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{AlertPhase, Notice};
use crate::excerpt::is_escaped;

/// How many alerts a message describes. For all other alerts, the message gives only their number.
const NAMED: usize = 50;

/// The greatest number of characters of a reason (also of a title and an id), of a subject and of a detail.
const REASON_MAX: usize = 200;
const SUBJECT_MAX: usize = 150;
const DETAIL_MAX: usize = 1000;

/// A message to a recipient: one or more alerts, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The host that sends the message.
    pub host: String,
    /// The content in one line.
    pub subject: String,
    /// The content in several lines.
    pub text: String,
    /// The alerts.
    pub notices: Vec<Notice>,
}

impl Message {
    /// Makes the message of a host. The times in the message are in `zone`.
    pub fn new(host: &str, notices: Vec<Notice>, zone: &TimeZone) -> Message {
        let host = line(host, SUBJECT_MAX);
        let subject = line(&format!("[dq {host}] {}", summary(&notices)), SUBJECT_MAX);
        let mut text = String::new();
        for notice in notices.iter().take(NAMED) {
            tell(&mut text, notice, zone);
        }
        if notices.len() > NAMED {
            let _ = writeln!(text, "and {} more\n", notices.len() - NAMED);
        }
        let _ = write!(text, "sent by {host}");
        Message { host, subject, text, notices }
    }
}

/// Returns the title of an alert. If the alert is over, `over: ` comes before the title.
fn headline(notice: &Notice) -> String {
    let over = if notice.state == AlertPhase::Over { "over: " } else { "" };
    format!("{over}{}", line(&notice.title, REASON_MAX))
}

fn summary(notices: &[Notice]) -> String {
    match notices {
        [] => String::new(),
        [one] => headline(one),
        [first, ..] => format!("{} alerts: {}, …", notices.len(), headline(first)),
    }
}

fn tell(text: &mut String, notice: &Notice, zone: &TimeZone) {
    let since = moment(notice.since_ms, zone);
    let _ = writeln!(text, "{}", headline(notice));
    let detail = line(&notice.detail, DETAIL_MAX);
    match notice.state {
        AlertPhase::Over => {
            let held = Duration::from_secs((notice.at_ms - notice.since_ms).max(0) as u64 / 1000);
            let _ = writeln!(text, "  after {}, since {since}", humantime::format_duration(held));
        }
        AlertPhase::Open | AlertPhase::Event => {
            if !detail.is_empty() {
                let _ = writeln!(text, "  {detail}");
            }
            let _ = writeln!(text, "  since {since}");
        }
    }
    for job in &notice.jobs {
        let (id, reason) = (line(&job.id, REASON_MAX), line(&job.reason, REASON_MAX));
        let _ = writeln!(text, "  job {id}, attempt {}: {reason}", job.attempts);
    }
    let named = notice.jobs.len() as u64;
    if notice.count > named && named > 0 {
        let _ = writeln!(text, "  and {} more", notice.count - named);
    }
    text.push('\n');
}

/// Returns a time in `zone`, with its offset. `ms` is in Unix milliseconds.
pub(super) fn moment(ms: i64, zone: &TimeZone) -> String {
    let at = Timestamp::from_millisecond(ms).unwrap_or_default().to_zoned(zone.clone());
    at.strftime("%Y-%m-%d %H:%M:%S %:z").to_string()
}

/// Returns a text as one line of at most `longest` characters.
fn line(text: &str, longest: usize) -> String {
    let mut out = String::new();
    for (n, c) in text.trim().chars().enumerate() {
        if n == longest {
            out.push('…');
            break;
        }
        out.push(if is_escaped(c) { ' ' } else { c });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::DeadJob;
    use super::*;

    fn open(title: &str) -> Notice {
        Notice {
            kind: "node_down".into(),
            state: AlertPhase::Open,
            title: title.into(),
            ..Notice::test(1_000)
        }
    }

    #[test]
    fn a_message_names_topic_job_reason_and_the_number_of_others() {
        let job = |id: &str| DeadJob {
            id: id.into(),
            attempts: 10,
            reason: "500\r\nBcc: all@example.com".into(),
            died_ms: 2_000,
        };
        let dead = Notice::dead("orders", 7, vec![job("a\nb"), job("中文\"\u{200f}\u{202e}")], 3_000);
        let message = Message::new("host-a", vec![dead], &TimeZone::UTC);
        assert_eq!(message.subject, "[dq host-a] 7 dead letters of topic orders");
        assert_eq!(
            message.text,
            "7 dead letters of topic orders\n  since 1970-01-01 00:00:02 +00:00\n  \
             job a b, attempt 10: 500  Bcc: all@example.com\n  job 中文\"  , attempt 10: 500  Bcc: all@example.com\n  \
             and 5 more\n\nsent by host-a"
        );
    }

    #[test]
    fn what_is_over_says_for_how_long_it_was_so() {
        let over = open("node r1 is down").over(62_000);
        let message = Message::new("h", vec![over.clone()], &TimeZone::UTC);
        assert_eq!(message.subject, "[dq h] over: node r1 is down");
        assert!(
            message.text.contains("  after 1m 1s, since 1970-01-01 00:00:01 +00:00\n"),
            "{}",
            message.text
        );
        let many = Message::new("h\r\nTo: x", vec![over; 60], &TimeZone::UTC);
        assert!(many.subject.starts_with("[dq h  To: x] 60 alerts: over: node r1 is down, …"));
        assert!(many.text.contains("and 10 more\n"), "{}", many.text);
    }
}
