//! The secrets that callbacks are signed with, and how the key of a secret is made from its text. Pure.

use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::setting::LONGEST;
use super::{Moment, Topic};

/// The prefix of secrets of Standard Webhooks. Base64 follows the prefix.
const PREFIX: &str = "whsec_";

/// How many bytes the key of a secret with this prefix has, by the specification of Standard Webhooks.
const KEY: std::ops::RangeInclusive<usize> = 24..=64;

/// The least number of bytes of a secret that does not begin with `whsec_`.
const TEXT_MIN: usize = 8;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Topic {
    /// Returns the secrets that sign callbacks at a moment.
    pub fn signing_secrets(&self, now_ms: i64) -> &[String] {
        match self.old_secrets_until {
            Some(Moment(until_ms)) if until_ms <= now_ms => &self.secrets[..self.secrets.len().min(1)],
            _ => &self.secrets,
        }
    }

    /// Removes the secrets that no longer sign.
    pub fn drop_ended_secrets(&mut self, now_ms: i64) {
        if self.old_secrets_until.is_some_and(|Moment(until_ms)| until_ms <= now_ms) {
            self.secrets.truncate(1);
            self.old_secrets_until = None;
        }
    }

    /// Puts a new secret before the old secrets. The old secrets continue to sign for `keep` from now (at most ten
    /// years). If `old_secrets_until` is already later, it does not change. If `keep` is zero, the old secrets are
    /// removed.
    pub fn rotate_secret(&mut self, secret: String, keep: Duration, now_ms: i64) {
        self.drop_ended_secrets(now_ms);
        if keep.is_zero() {
            self.secrets.clear();
        }
        let until_ms = now_ms.saturating_add(keep.min(LONGEST).as_millis() as i64);
        let until = self.old_secrets_until.max(Some(Moment(until_ms)));
        self.old_secrets_until = until.filter(|_| !self.secrets.is_empty());
        self.secrets.insert(0, secret);
    }
}

/// Returns a secret of Standard Webhooks, made from random bytes.
pub fn new_secret(random: [u8; 32]) -> String {
    format!("{PREFIX}{}", BASE64.encode(random))
}

/// Returns the key of a secret: the decoded base64 after `whsec_`, or the bytes of any other text. An error says what
/// is wrong, but contains no part of the secret.
pub fn signing_key(secret: &str) -> Result<Vec<u8>, String> {
    let Some(encoded) = secret.strip_prefix(PREFIX) else {
        if secret.starts_with("whsk_") || secret.starts_with("whpk_") {
            return Err(
                "is a key of an asymmetric signature, which dq does not support; use \"whsec_…\"".into()
            );
        }
        return match secret.len() {
            TEXT_MIN.. => Ok(secret.as_bytes().to_vec()),
            _ => Err(format!(
                "is shorter than {TEXT_MIN} bytes; use \"whsec_\" and the base64 of 32 random bytes"
            )),
        };
    };
    let wanted = "\"whsec_\" must be followed by the base64 of 24 to 64 random bytes";
    let key = BASE64.decode(encoded).map_err(|_| format!("is not base64; {wanted}"))?;
    if !KEY.contains(&key.len()) {
        return Err(format!("holds {} bytes; {wanted}", key.len()));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::TopicName;

    #[test]
    fn an_old_secret_signs_until_its_end() {
        let mut topic = Topic::new(TopicName::new("t").unwrap(), "http://h/");
        let hour = Duration::from_secs(3600);
        topic.rotate_secret("first".into(), hour, 0);
        assert_eq!((topic.signing_secrets(0), topic.old_secrets_until), (&["first".to_owned()][..], None));
        topic.rotate_secret("second".into(), hour, 1000);
        assert_eq!(topic.signing_secrets(3_600_999), ["second", "first"]);
        assert_eq!(topic.signing_secrets(3_601_000), ["second"]);
        // The first rotation keeps the old secrets for a time. A second rotation does not shorten this time.
        topic.rotate_secret("third".into(), hour / 2, 2000);
        assert_eq!(topic.signing_secrets(3_600_999), ["third", "second", "first"]);
        assert_eq!(topic.signing_secrets(3_601_000), ["third"]);
        topic.rotate_secret("fourth".into(), hour, 3_601_000);
        assert_eq!(topic.secrets, ["fourth", "third"]);
        topic.rotate_secret("fifth".into(), Duration::ZERO, 3_601_000);
        assert_eq!((&topic.secrets[..], topic.old_secrets_until), (&["fifth".to_owned()][..], None));
        topic.rotate_secret("sixth".into(), Duration::MAX, 3_601_000);
        let mut read = Topic::try_from(serde_json::Map::from(topic.clone())).unwrap();
        assert_eq!(read, topic);
        // The end of the earlier secrets does not apply to new secrets.
        let secrets = serde_json::json!({"secrets": ["seventh one", "eighth one"]});
        read.assign(secrets.as_object().unwrap()).unwrap();
        assert_eq!(read.signing_secrets(i64::MAX), ["seventh one", "eighth one"]);
    }

    #[test]
    fn a_new_secret_can_be_used() {
        let secret = new_secret([7; 32]);
        assert_eq!(signing_key(&secret), Ok(vec![7; 32]));
    }

    #[test]
    fn a_standard_webhooks_secret_is_decoded_and_others_stay_as_is() {
        // This secret is the example in the specification of Standard Webhooks.
        let key = signing_key("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap();
        assert_eq!((key.len(), key[0], key[23]), (24, 0x0b, 0x03));
        assert_eq!(signing_key("correct horse").unwrap(), b"correct horse");
        // Base64 of 32 bytes is accepted with and without padding.
        for padding in ["=", ""] {
            let secret = format!("whsec_{}{padding}", "A".repeat(43));
            assert_eq!(signing_key(&secret).unwrap(), [0; 32]);
        }
    }

    #[test]
    fn what_is_no_secret_is_refused_without_being_told() {
        let [short, long] = [31, 88].map(|n| format!("whsec_{}A", "A".repeat(n)));
        for secret in ["short", "", "whsec_", "whsec_hush!", &short[..20], &long, "whsk_AAAAAAAA"] {
            let why = signing_key(secret).unwrap_err();
            assert!(why.contains("whsec_") && !why.contains("hush") && !why.contains("AAAA"), "{why}");
        }
        assert!(signing_key(&short).is_ok());
    }
}
