//! The ticket of an attempt. A receiver that answers later uses the ticket to report the outcome. The ticket is signed.
//! So the receiver needs no other proof, and dq recognizes a forged ticket without the store. Pure: no I/O, no clock.
//!
//! The text of a ticket is the base64url form of a version, the fields of [`Ticket`], and HMAC-SHA256 over the version
//! and the fields.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as TEXT;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::job::{ID_MAX, JobId, JobKey, TOPIC_MAX, TopicName};

/// The first byte of a ticket. If the layout of tickets changes, this number changes too.
const VERSION: u8 = 1;

/// The length of a signature, in bytes.
const SIGNATURE: usize = 32;

/// The longest text of a ticket, in bytes. It has room for the longest names, the longest token and the other fields.
const TEXT_MAX: usize = (TOPIC_MAX + ID_MAX + 512) * 2;

/// The secret that tickets are signed with. Each lane of the store has its own secret. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketSecret([u8; 32]);

impl TicketSecret {
    /// Makes a secret from these bytes. None: the number of bytes is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<TicketSecret> {
        bytes.try_into().ok().map(TicketSecret)
    }

    fn over(&self, signed: &[u8]) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key may have any length");
        mac.chain_update(b"dq-ack\0").chain_update(signed)
    }
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The ticket of an attempt. Anyone who presents the ticket may settle the attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The job.
    pub key: JobKey,
    /// The lease token.
    pub token: Box<[u8]>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// How many attempts the job may have.
    pub limit: u32,
    /// When the attempt began, in Unix milliseconds.
    pub began_ms: i64,
    /// When the attempt ends at the latest, in Unix milliseconds. [`Ticket::RESERVED`] or less: a client has reserved
    /// the job, and the lease tells when the attempt ends. Less than `RESERVED`: the job also has a `ttr` of its own,
    /// and the value is minus this `ttr`, in milliseconds.
    pub until_ms: i64,
}

impl Ticket {
    /// The value of `until_ms` in the ticket of a job that a client has reserved.
    pub const RESERVED: i64 = 0;

    /// Returns whether a client has reserved the job. If not, the receiver of the job answers later.
    pub fn is_reserved(&self) -> bool {
        self.until_ms <= Ticket::RESERVED
    }

    /// Returns the value of `until_ms` for a job that a client has reserved, and that may have a `ttr` of its own.
    pub fn reserved(ttr: Option<Duration>) -> i64 {
        Ticket::RESERVED - ttr.map_or(0, |ttr| i64::try_from(ttr.as_millis()).unwrap_or(0))
    }

    /// Returns the own `ttr` of a job that a client has reserved. None: the job has no `ttr` of its own.
    pub fn own_ttr(&self) -> Option<Duration> {
        let ms = u64::try_from(self.until_ms.checked_neg()?).ok()?;
        (ms > 0).then(|| Duration::from_millis(ms))
    }

    /// Returns the signed text of the ticket, which is safe in the path of a URL.
    pub fn sign(&self, secret: &TicketSecret) -> String {
        let (topic, id) = (self.key.topic.as_str(), self.key.id.as_str());
        let mut bytes = vec![VERSION];
        bytes.extend(self.attempt.to_be_bytes());
        bytes.extend(self.limit.to_be_bytes());
        bytes.extend(self.began_ms.to_be_bytes());
        bytes.extend(self.until_ms.to_be_bytes());
        for part in [topic.as_bytes(), id.as_bytes()] {
            bytes.extend((part.len() as u16).to_be_bytes());
            bytes.extend(part);
        }
        bytes.extend(&*self.token);
        let signature = secret.over(&bytes).finalize().into_bytes();
        bytes.extend(signature);
        TEXT.encode(bytes)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Ticket> {
        fn number<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
            let (first, behind) = rest.split_first_chunk::<N>()?;
            *rest = behind;
            Some(*first)
        }
        fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
            let length = usize::from(u16::from_be_bytes(number(rest)?));
            let (text, behind) = rest.split_at_checked(length)?;
            *rest = behind;
            std::str::from_utf8(text).ok()
        }
        let mut rest = bytes.strip_prefix(&[VERSION])?;
        let attempt = u32::from_be_bytes(number(&mut rest)?);
        let limit = u32::from_be_bytes(number(&mut rest)?);
        let began_ms = i64::from_be_bytes(number(&mut rest)?);
        let until_ms = i64::from_be_bytes(number(&mut rest)?);
        let topic = TopicName::new(text(&mut rest)?).ok()?;
        let id = JobId::new(text(&mut rest)?).ok()?;
        Some(Ticket { key: JobKey { topic, id }, token: rest.into(), attempt, limit, began_ms, until_ms })
    }
}

/// A ticket that somebody presents. Only its signature tells whether it is valid.
#[derive(Debug, Clone)]
pub struct PresentedTicket {
    ticket: Ticket,
    signed: Vec<u8>,
    signature: [u8; SIGNATURE],
}

impl PresentedTicket {
    /// Parses the text of a ticket. None: the text does not have the form of a ticket.
    pub fn read(text: &str) -> Option<PresentedTicket> {
        if text.len() > TEXT_MAX {
            return None;
        }
        let mut signed = TEXT.decode(text).ok()?;
        let signature = *signed.last_chunk()?;
        signed.truncate(signed.len() - SIGNATURE);
        Some(PresentedTicket { ticket: Ticket::from_bytes(&signed)?, signed, signature })
    }

    /// Returns the lease token. The token shows from which lane the job is leased. Each lane has its own secret, so the
    /// token also shows which secret must have signed the ticket.
    pub fn token(&self) -> &[u8] {
        &self.ticket.token
    }

    /// Returns the topic that the ticket names. The signature of the ticket is not checked yet.
    pub fn topic(&self) -> &TopicName {
        &self.ticket.key.topic
    }

    /// Returns the signature, which is different for each ticket.
    pub fn signature(&self) -> [u8; SIGNATURE] {
        self.signature
    }

    /// Returns the ticket if it was signed with this secret. The check takes the same time for every wrong signature.
    pub fn proved(&self, secret: &TicketSecret) -> Option<&Ticket> {
        secret.over(&self.signed).verify_slice(&self.signature).ok().map(|()| &self.ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        Ticket {
            key: JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new("a/b 中").unwrap() },
            token: vec![0, 255, 7].into(),
            attempt: 3,
            limit: 10,
            began_ms: 1_796_140_250_000,
            until_ms: 1_796_143_850_000,
        }
    }

    #[test]
    fn a_ticket_is_proved_by_its_secret_alone() {
        let (own, other) =
            (TicketSecret::from_bytes(&[1; 32]).unwrap(), TicketSecret::from_bytes(&[2; 32]).unwrap());
        let text = ticket().sign(&own);
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{text}");
        let shown = PresentedTicket::read(&text).unwrap();
        assert_eq!((shown.proved(&own), shown.token()), (Some(&ticket()), &[0, 255, 7][..]));
        assert_eq!(shown.proved(&other), None);
        assert!(!format!("{own:?}").contains('1'));
    }

    #[test]
    fn the_ticket_of_a_reserved_job_has_its_own_ttr() {
        let reserved = |ttr: Option<Duration>| Ticket { until_ms: Ticket::reserved(ttr), ..ticket() };
        for ttr in [None, Some(Duration::from_millis(1500))] {
            assert_eq!((reserved(ttr).is_reserved(), reserved(ttr).own_ttr()), (true, ttr));
        }
        assert_eq!((ticket().is_reserved(), ticket().own_ttr()), (false, None));
    }

    #[test]
    fn a_ticket_of_which_anything_is_changed_is_none() {
        let secret = TicketSecret::from_bytes(&[1; 32]).unwrap();
        let bytes = TEXT.decode(ticket().sign(&secret)).unwrap();
        for i in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[i] ^= 1;
            let shown = PresentedTicket::read(&TEXT.encode(&changed));
            assert!(shown.is_none_or(|shown| shown.proved(&secret).is_none()), "byte {i}");
            assert!(
                PresentedTicket::read(&TEXT.encode(&bytes[..i])).is_none_or(|s| s.proved(&secret).is_none())
            );
        }
        for text in ["", "a", "中", &"A".repeat(10_000)] {
            assert!(PresentedTicket::read(text).is_none());
        }
    }

    #[test]
    fn the_longest_names_make_a_ticket() {
        let secret = TicketSecret::from_bytes(&[1; 32]).unwrap();
        let topic = TopicName::new(&"t".repeat(TOPIC_MAX)).unwrap();
        let key = JobKey { topic, id: JobId::new("i".repeat(ID_MAX)).unwrap() };
        let ticket = Ticket { key, token: vec![7; 300].into(), ..ticket() };
        assert_eq!(PresentedTicket::read(&ticket.sign(&secret)).unwrap().proved(&secret), Some(&ticket));
    }
}
