//! The secrets that callbacks are signed with: from the text of a secret to its key. Pure.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// The prefix of secrets of Standard Webhooks. Base64 follows it.
const PREFIX: &str = "whsec_";

/// How many bytes the key of such a secret has, by the specification.
const KEY: std::ops::RangeInclusive<usize> = 24..=64;

/// How many bytes a secret without this prefix must have at least.
const TEXT_MIN: usize = 8;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Returns the key of a secret: the decoded base64 after `whsec_`, or the bytes of any other text. An error says what
/// is wrong, and contains nothing of the secret.
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

    #[test]
    fn a_standard_webhooks_secret_is_decoded_and_others_stay_as_is() {
        // The example of the specification.
        let key = signing_key("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap();
        assert_eq!((key.len(), key[0], key[23]), (24, 0x0b, 0x03));
        assert_eq!(signing_key("correct horse").unwrap(), b"correct horse");
        // Thirty-two bytes, with and without padding.
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
