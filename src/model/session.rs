//! The sessions of people who have signed in to the console: what their cookie says, and how dq recognizes its own
//! cookies. dq does not store sessions. A cookie is signed with a key that is made from a secret file, from the hash of
//! the password and from the moment at which the password was set. So each dq-http-server that has the file recognizes
//! the cookie, even after a restart. A new password ends all sessions of the old password. The sessions of an account
//! can also be ended without a new password: the registry then adds one millisecond to the stored moment of the
//! password. Someone who can read only the registry cannot sign a cookie, because the file is not in the registry.
//! Pure: the current time is an argument.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::token::{Token, TokenCredential, TokenName, Tokens};

/// The secret that signs all sessions. The secret is not in the registry.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey(Vec<u8>);

/// The least number of bytes of a [`SessionKey`].
pub const KEY_LEAST: usize = 32;

impl SessionKey {
    /// Makes the key from the content of its file. None: the file has too few bytes.
    pub fn new(bytes: Vec<u8>) -> Option<SessionKey> {
        (bytes.len() >= KEY_LEAST).then_some(SessionKey(bytes))
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(..)")
    }
}

/// Returns the name of the cookie. Browsers store cookies by host and not by port. So the name contains the port, and
/// the cookies of two daemons of one host have different names. With TLS the name begins with `__Host-`: a browser then
/// accepts the cookie only from this host.
pub fn cookie(listen: Option<SocketAddr>, has_tls: bool) -> String {
    let host = if has_tls { "__Host-" } else { "" };
    let port = listen.map_or_else(String::new, |address| format!("_{}", address.port()));
    format!("{host}dq_session{port}")
}

/// How long a session lasts.
pub const LIFE: Duration = Duration::from_secs(12 * 3600);

/// The clocks of two hosts may differ by this time, and the hosts still accept each other's sessions.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(300);

/// A fixed text. dq hashes this text together with the hash of the password, and each signature of a session covers the
/// result.
const PURPOSE: &[u8] = b"dq console session 2\0";

/// A fixed text. The token against cross-site requests (CSRF) is a signature of this text and of the value of the
/// cookie. A page sends this token with each change, in addition to the cookie, which browsers send by themselves.
const CSRF: &[u8] = b"dq console csrf\0";

/// Signs `what` and `of` with `key`, for the account `token`. None: the token is not an account, because it has no
/// password.
fn signed(key: &SessionKey, token: &Token, what: &[u8], of: &[u8]) -> Option<Hmac<Sha256>> {
    let TokenCredential::Password(hashed) = &token.proof else { return None };
    let hash = Sha256::new().chain_update(PURPOSE).chain_update(hashed.as_str()).finalize();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).ok()?;
    mac.update(&hash);
    mac.update(&token.created_ms.to_be_bytes());
    mac.update(what);
    mac.update(of);
    Some(mac)
}

/// Returns the value of the cookie for an account. `now_ms` is the time when the password was entered, in Unix
/// milliseconds. None: the token is not an account.
pub fn begin(key: &SessionKey, token: &Token, now_ms: i64) -> Option<String> {
    let text = format!("{}.{}", token.name, now_ms + LIFE.as_millis() as i64);
    let mac = signed(key, token, b"cookie\0", text.as_bytes())?;
    Some(format!("{text}.{}", BASE64.encode(mac.finalize().into_bytes())))
}

/// Returns the account of a cookie with this value, if its session is still valid.
pub fn holder<'a>(key: &SessionKey, tokens: &'a Tokens, value: &str, now_ms: i64) -> Option<&'a Token> {
    let (text, mac) = value.rsplit_once('.')?;
    let (name, expires_ms) = text.rsplit_once('.')?;
    let token = tokens.named(&TokenName::of_account(name).ok()?)?;
    signed(key, token, b"cookie\0", text.as_bytes())?.verify_slice(&BASE64.decode(mac).ok()?).ok()?;
    // Anyone who knows the key could sign a cookie that never ends, so the time is checked.
    let left_ms = expires_ms.parse::<i64>().ok()?.checked_sub(now_ms)?;
    let longest_ms = (LIFE + CLOCK_DIFFERENCE).as_millis() as i64;
    ((1..=longest_ms).contains(&left_ms) && token.is_good_at(now_ms)).then_some(token)
}

/// Returns the CSRF token that the pages of a session send with each change.
pub fn csrf(key: &SessionKey, token: &Token, value: &str) -> Option<String> {
    Some(BASE64.encode(signed(key, token, CSRF, value.as_bytes())?.finalize().into_bytes()))
}

/// Returns whether `shown`, which a page sent, is the CSRF token of its session.
pub fn is_csrf(key: &SessionKey, token: &Token, value: &str, shown: &str) -> bool {
    let verify =
        || signed(key, token, CSRF, value.as_bytes())?.verify_slice(&BASE64.decode(shown).ok()?).ok();
    verify().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::password::StoredPassword;
    use crate::token::TokenSecret;

    fn key() -> SessionKey {
        SessionKey::new(vec![7; 32]).unwrap()
    }

    fn account(name: &str, password: &str) -> Token {
        Token {
            name: TokenName::of_account(name).unwrap(),
            proof: TokenCredential::Password(StoredPassword::new(password, [3; 16]).unwrap()),
            scopes: vec!["admin".parse().unwrap()],
            created_ms: 1,
            expires_ms: None,
            creator: String::new(),
            add_rate: None,
        }
    }

    #[test]
    fn a_session_is_valid_until_it_ends_or_its_account_changes() {
        let ann = account("ann.b-1", "password of ann");
        let tokens: Tokens = [ann.clone(), account("bob", "password of bob")].into_iter().collect();
        let value = begin(&key(), &ann, 1000).unwrap();
        let end_ms = 1000 + LIFE.as_millis() as i64;
        assert_eq!(holder(&key(), &tokens, &value, end_ms - 1), Some(&ann));
        assert_eq!(holder(&key(), &tokens, &value, end_ms), None);
        let others: Tokens = [account("ann.b-1", "another password")].into_iter().collect();
        assert_eq!(holder(&key(), &others, &value, 1000), None);
        assert_eq!(holder(&key(), &Tokens::default(), &value, 1000), None);
        // The cookie is not valid with another key, or after all sessions of the account were ended.
        let other = SessionKey::new(vec![8; 32]).unwrap();
        assert_eq!(holder(&other, &tokens, &value, 1000), None);
        let ended: Tokens = [Token { created_ms: 2, ..ann.clone() }].into_iter().collect();
        assert_eq!(holder(&key(), &ended, &value, 1000), None);
        assert_eq!(SessionKey::new(vec![7; 31]), None);
        // No part of the cookie can be changed.
        for (from, to) in [("ann.b-1", "bob"), (&*end_ms.to_string(), "99999999999999")] {
            assert_eq!(holder(&key(), &tokens, &value.replacen(from, to, 1), 1000), None, "{to}");
        }
        for wrong in [
            "",
            ".",
            "..",
            "ann.b-1",
            "ann.b-1.9.",
            "ann.b-1.9.zz",
            "ann.b-1.9.é0",
            &value[..value.len() - 1],
        ] {
            assert_eq!(holder(&key(), &tokens, wrong, 1000), None, "{wrong}");
        }
    }

    #[test]
    fn a_session_that_is_longer_than_any_is_refused() {
        let ann = account("ann", "password of ann");
        let tokens: Tokens = [ann.clone()].into_iter().collect();
        let forged = |expires_ms: i64| {
            let text = format!("ann.{expires_ms}");
            let mac = signed(&key(), &ann, b"cookie\0", text.as_bytes()).unwrap();
            format!("{text}.{}", BASE64.encode(mac.finalize().into_bytes()))
        };
        let longest = (LIFE + CLOCK_DIFFERENCE).as_millis() as i64;
        assert_eq!(holder(&key(), &tokens, &forged(1000 + longest), 1000), Some(&ann));
        for expires_ms in [1000 + longest + 1, 10 * 365 * 86_400_000, i64::MAX, i64::MIN] {
            assert_eq!(holder(&key(), &tokens, &forged(expires_ms), 1000), None, "{expires_ms}");
        }
    }

    #[test]
    fn what_is_shown_with_a_change_is_of_one_session() {
        let ann = account("ann", "password of ann");
        let (one, two) = (begin(&key(), &ann, 1000).unwrap(), begin(&key(), &ann, 2000).unwrap());
        let shown = csrf(&key(), &ann, &one).unwrap();
        assert!(is_csrf(&key(), &ann, &one, &shown) && !is_csrf(&key(), &ann, &two, &shown));
        assert!(
            !is_csrf(&key(), &ann, &one, "") && !is_csrf(&key(), &ann, &one, one.rsplit_once('.').unwrap().1)
        );
        assert!(!is_csrf(&key(), &account("ann", "another password"), &one, &shown));
    }

    #[test]
    fn a_token_without_a_password_has_no_session() {
        let token = Token {
            proof: TokenCredential::Secret(TokenSecret::new([1; 32]).digest()),
            ..account("a", "password of a")
        };
        assert_eq!(begin(&key(), &token, 0), None);
    }
}
