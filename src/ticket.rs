//! The ticket of an attempt, by which a receiver that answers later says what came of it: signed, so that it needs no other proof,
//! and so that one that is forged is known without a look at the store. Pure: no I/O, no clock.
//!
//! Its text is base64url of a version, what [`Ticket`] says, and HMAC-SHA256 over both.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as TEXT;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::job::{ID_MAX, JobId, JobKey, TOPIC_MAX, TopicName};

/// What a ticket begins with; another layout takes another number.
const VERSION: u8 = 1;

/// The length of a signature.
const SIGNATURE: usize = 32;

/// No ticket's text is longer: the longest names, the longest token, and what else is in it.
const TEXT_MAX: usize = (TOPIC_MAX + ID_MAX + 512) * 2;

/// What tickets are signed with: of each lane of the store its own, which lies there. Never to be seen.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// That of these bytes; none: there are not as many as it has.
    pub fn of(bytes: &[u8]) -> Option<Secret> {
        bytes.try_into().ok().map(Secret)
    }

    fn over(&self, signed: &[u8]) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key may have any length");
        mac.chain_update(b"dq-ack\0").chain_update(signed)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// An attempt that may be settled by whoever has this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The job.
    pub key: JobKey,
    /// The lease's token.
    pub token: Box<[u8]>,
    /// Which attempt it is, from 1.
    pub attempt: u32,
    /// How many there may be.
    pub limit: u32,
    /// When it began, Unix milliseconds.
    pub began_ms: i64,
    /// When it ends at the latest.
    pub until_ms: i64,
}

impl Ticket {
    /// The ticket's text, which may stand in a path.
    pub fn sign(&self, secret: &Secret) -> String {
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

    fn of(bytes: &[u8]) -> Option<Ticket> {
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

/// A ticket that somebody shows; whether it is one, its signature tells.
#[derive(Debug)]
pub struct Shown {
    ticket: Ticket,
    signed: Vec<u8>,
    signature: [u8; SIGNATURE],
}

impl Shown {
    /// Reads a ticket's text; none: it is not the text of one.
    pub fn read(text: &str) -> Option<Shown> {
        if text.len() > TEXT_MAX {
            return None;
        }
        let mut signed = TEXT.decode(text).ok()?;
        let signature = *signed.last_chunk()?;
        signed.truncate(signed.len() - SIGNATURE);
        Some(Shown { ticket: Ticket::of(&signed)?, signed, signature })
    }

    /// The token of the lease that it is about. By it the secret is found that it should be signed with.
    pub fn token(&self) -> &[u8] {
        &self.ticket.token
    }

    /// What it is told from others by.
    pub fn signature(&self) -> [u8; SIGNATURE] {
        self.signature
    }

    /// The ticket, if this is what it was signed with. Takes as long whatever is wrong.
    pub fn proved(&self, secret: &Secret) -> Option<&Ticket> {
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
        let (own, other) = (Secret::of(&[1; 32]).unwrap(), Secret::of(&[2; 32]).unwrap());
        let text = ticket().sign(&own);
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{text}");
        let shown = Shown::read(&text).unwrap();
        assert_eq!((shown.proved(&own), shown.token()), (Some(&ticket()), &[0, 255, 7][..]));
        assert_eq!(shown.proved(&other), None);
        assert!(!format!("{own:?}").contains('1'));
    }

    #[test]
    fn a_ticket_of_which_anything_is_changed_is_none() {
        let secret = Secret::of(&[1; 32]).unwrap();
        let bytes = TEXT.decode(ticket().sign(&secret)).unwrap();
        for i in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[i] ^= 1;
            let shown = Shown::read(&TEXT.encode(&changed));
            assert!(shown.is_none_or(|shown| shown.proved(&secret).is_none()), "byte {i}");
            assert!(Shown::read(&TEXT.encode(&bytes[..i])).is_none_or(|s| s.proved(&secret).is_none()));
        }
        for text in ["", "a", "中", &"A".repeat(10_000)] {
            assert!(Shown::read(text).is_none());
        }
    }

    #[test]
    fn the_longest_names_make_a_ticket() {
        let secret = Secret::of(&[1; 32]).unwrap();
        let topic = TopicName::new(&"t".repeat(TOPIC_MAX)).unwrap();
        let key = JobKey { topic, id: JobId::new("i".repeat(ID_MAX)).unwrap() };
        let ticket = Ticket { key, token: vec![7; 300].into(), ..ticket() };
        assert_eq!(Shown::read(&ticket.sign(&secret)).unwrap().proved(&secret), Some(&ticket));
    }
}
