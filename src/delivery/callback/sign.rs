//! Signatures of Standard Webhooks (<https://www.standardwebhooks.com>): `v1,` and base64 of HMAC-SHA256 over
//! `id.timestamp.body`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use model::topic::signing_key;

/// Returns the value of `webhook-signature`: one signature for each secret. So while a secret is rotated, the receiver
/// can check the request with the old secret or with the new secret. None: there is no secret.
pub fn signatures(secrets: &[String], id: &str, timestamp_s: i64, body: &[u8]) -> Option<String> {
    let keys = secrets.iter().filter_map(|secret| signing_key(secret).ok());
    let signed: Vec<String> = keys
        .map(|key| {
            let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length is a key's");
            mac.update(format!("{id}.{timestamp_s}.").as_bytes());
            mac.update(body);
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        })
        .collect();
    Some(signed.join(" ")).filter(|signed| !signed.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_secret_signs() {
        // The example of the specification.
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned();
        let sign = |secrets: &[String]| {
            signatures(secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b"{\"test\": 2432232314}")
        };
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(sign(std::slice::from_ref(&secret)).unwrap(), expected);
        let both = sign(&["another secret".to_owned(), secret]).unwrap();
        assert_eq!(both.split(' ').nth(1), Some(expected), "{both}");
        assert_eq!(sign(&[]), None);
    }
}
