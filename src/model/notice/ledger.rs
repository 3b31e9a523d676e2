//! The record of alerts: which alerts are open and who got them, how many dead letters there are, and what waits to be
//! sent. The record is stored in a file. So a process that takes over from another process sends nothing twice and
//! omits nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::outbox::AlertQueue;
use super::{NOT_SENT, Notice, Recipient};
use crate::metrics::{MetricSubject, PageSums};
use crate::status::Finding;

/// The record of alerts.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AlertLedger {
    open: Vec<OpenAlert>,
    /// For each page of counters: how many dead letters of each topic the page had when it was last read. None: no page
    /// was read yet.
    dead: Option<BTreeMap<u64, BTreeMap<String, u64>>>,
    /// What waits to be sent.
    pub outbox: AlertQueue,
}

/// An alert that is open.
#[derive(Debug, Serialize, Deserialize)]
struct OpenAlert {
    notice: Notice,
    /// Who got the alert. Empty: there was no recipient.
    to: Vec<Recipient>,
}

impl AlertLedger {
    /// Puts new alerts, and alerts that are over now, into the outbox. `route` returns the recipients of an alert.
    /// Returns whether anything has changed.
    pub fn conditions(
        &mut self,
        findings: &[Finding],
        now_ms: i64,
        route: impl Fn(&Notice) -> Vec<Recipient>,
    ) -> bool {
        let mut changed = false;
        let found: Vec<Notice> = findings.iter().map(Notice::from_finding).collect();
        let outbox = &mut self.outbox;
        self.open.retain(|open| {
            if found.iter().any(|notice| notice.is_of(&open.notice)) {
                return true;
            }
            let over = open.notice.clone().over(now_ms);
            open.to.iter().for_each(|to| outbox.put(to, &over, now_ms));
            changed = true;
            false
        });
        for notice in found {
            let known = self.open.iter().position(|open| open.notice.is_of(&notice));
            // If an open alert has no recipients, it is sent as soon as there are recipients. There is one exception:
            // an alert of the kind `alerts_not_sent` is not sent later to the recipients that could not be reached.
            let of_sending = notice.kind == NOT_SENT;
            if known.is_some_and(|at| of_sending || !self.open[at].to.is_empty()) {
                continue;
            }
            let mut to = route(&notice);
            to.retain(|to| !(of_sending && self.outbox.is_failing(to)));
            if known.is_some() && to.is_empty() {
                continue;
            }
            to.iter().for_each(|to| self.outbox.put(to, &notice, now_ms));
            match known {
                Some(at) => self.open[at].to = to,
                None => self.open.push(OpenAlert { notice, to }),
            }
            changed = true;
        }
        changed
    }

    /// Returns how many dead letters each topic has got since the last call, according to the pages of counters. The
    /// first call returns no dead letters, because this call only learns how many dead letters there were before. If a
    /// page cannot be read this time, its earlier count is kept, so no dead letter is missed.
    pub fn deaths(&mut self, pages: &[PageSums]) -> Vec<(String, u64)> {
        let is_first = self.dead.is_none();
        let known = self.dead.get_or_insert_default();
        let mut news: BTreeMap<String, u64> = BTreeMap::new();
        for PageSums { page, sums } in pages {
            let of_page = known.entry(*page).or_default();
            for (subject, sums) in sums {
                let MetricSubject::Topic(topic) = subject else { continue };
                if sums.dead == 0 {
                    continue;
                }
                let before = of_page.insert(topic.clone(), sums.dead).unwrap_or(0);
                if !is_first && sums.dead > before {
                    *news.entry(topic.clone()).or_default() += sums.dead - before;
                }
            }
        }
        news.into_iter().collect()
    }

    /// Returns whether dead letters were counted before.
    pub fn is_begun(&self) -> bool {
        self.dead.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AlertPhase, MessageTiming};
    use super::*;
    use crate::metrics::Sums;
    use std::time::Duration;

    fn finding(node: &str) -> Finding {
        Finding {
            name: "node_down".into(),
            what: format!("node {node} is down"),
            node: Some(node.into()),
            topic: None,
            process: None,
            loses_jobs: false,
            detail: "refused".into(),
            since_ms: 1,
        }
    }

    fn somebody(_: &Notice) -> Vec<Recipient> {
        vec![Recipient::Mail("a@example.com".into())]
    }

    fn take_states(ledger: &mut AlertLedger) -> Vec<(AlertPhase, String)> {
        let pace = MessageTiming { gather: Duration::ZERO, interval: Duration::ZERO };
        let mut states = Vec::new();
        for dispatch in ledger.outbox.take_due(pace, 1_000, |_| true) {
            ledger.outbox.sent(&dispatch.to, 1_000);
            states.extend(dispatch.notices.into_iter().map(|n| (n.state, n.node.unwrap_or_default())));
        }
        states
    }

    fn again(ledger: &AlertLedger) -> AlertLedger {
        serde_json::from_str(&serde_json::to_string(ledger).unwrap()).unwrap()
    }

    #[test]
    fn an_alert_is_sent_and_withdrawn_once_across_processes() {
        let mut ledger = AlertLedger::default();
        assert!(ledger.conditions(&[finding("r1"), finding("r2")], 5, somebody));
        assert_eq!(
            take_states(&mut ledger),
            [(AlertPhase::Open, "r1".into()), (AlertPhase::Open, "r2".into())]
        );
        let mut ledger = again(&ledger);
        assert!(!ledger.conditions(&[finding("r2"), finding("r1")], 6, somebody));
        assert!(ledger.conditions(&[finding("r2")], 7, somebody));
        // The next process sends what was not sent yet.
        let mut ledger = again(&ledger);
        assert_eq!(take_states(&mut ledger), [(AlertPhase::Over, "r1".into())]);
        assert!(!ledger.conditions(&[finding("r2")], 8, somebody));
        assert_eq!(take_states(&mut again(&ledger)), []);
    }

    #[test]
    fn a_new_recipient_gets_open_alerts_and_no_end_of_unsent_ones() {
        let mut ledger = AlertLedger::default();
        let nobody = |_: &Notice| Vec::new();
        assert!(ledger.conditions(&[finding("r1"), finding("r2")], 5, nobody));
        assert!(ledger.conditions(&[finding("r1")], 6, nobody));
        assert!(!ledger.conditions(&[finding("r1")], 6, nobody));
        assert_eq!(take_states(&mut ledger), []);
        assert!(ledger.conditions(&[finding("r1")], 7, somebody));
        assert_eq!(take_states(&mut ledger), [(AlertPhase::Open, "r1".into())]);
    }

    #[test]
    fn dead_letters_are_reported_once_from_the_first_look_on() {
        let page = |page: u64, topics: &[(&str, u64)]| {
            let sums = |(topic, dead): &(&str, u64)| {
                (MetricSubject::Topic((*topic).to_owned()), Sums { dead: *dead, ..Sums::default() })
            };
            PageSums { page, sums: topics.iter().map(sums).collect() }
        };
        let news = |topics: &[(&str, u64)]| -> Vec<(String, u64)> {
            topics.iter().map(|(topic, n)| ((*topic).to_owned(), *n)).collect()
        };
        let mut ledger = AlertLedger::default();
        assert_eq!(ledger.deaths(&[page(u64::MAX, &[("t", 7)])]), []);
        let mut ledger = again(&ledger);
        assert_eq!(
            ledger.deaths(&[page(u64::MAX, &[("t", 9)]), page(2, &[("t", 1), ("u", 1)])]),
            news(&[("t", 3), ("u", 1)])
        );
        // One page cannot be read this time.
        assert_eq!(ledger.deaths(&[page(2, &[("t", 1), ("u", 2)])]), news(&[("u", 1)]));
        assert_eq!(ledger.deaths(&[page(u64::MAX, &[("t", 9)]), page(2, &[("t", 1), ("u", 2)])]), []);
    }
}
