//! The sessions of people who have signed in to the console: what their cookie says, and how dq recognizes its own
//! cookies. dq does not store sessions. A cookie is signed with a key that is made from the hash of the password. So
//! each dq-http-server of each host recognizes it, even after a restart, and a new password ends all sessions of the
//! old one. Pure: the current time is an argument.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};
use std::net::SocketAddr;
use std::time::Duration;

use crate::token::{Proof, Token, TokenName, Tokens};

/// Returns the name of the cookie. Browsers store cookies by host and not by port, so each daemon of a host has a name
/// of its own.
pub fn cookie(listen: Option<SocketAddr>) -> String {
    listen.map_or_else(|| "dq_session".to_owned(), |address| format!("dq_session_{}", address.port()))
}

/// How long a session lasts.
pub const LIFE: Duration = Duration::from_secs(12 * 3600);

/// How far the clocks of two hosts may differ that accept each other's sessions.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(300);

/// What the key of sessions is made from, in addition to the hash.
const PURPOSE: &[u8] = b"dq console session 1\0";

/// What the token against cross-site requests (CSRF) is made from. A page sends it with each change, in addition to the
/// cookie, which browsers send by themselves.
const CSRF: &[u8] = b"dq console csrf\0";

/// Signs `what` and `of` with the key of an account's sessions. None: the token is not an account, because it has no
/// password.
fn signed(token: &Token, what: &[u8], of: &[u8]) -> Option<Hmac<Sha256>> {
    let Proof::Password(hashed) = &token.proof else { return None };
    let key = Sha256::new().chain_update(PURPOSE).chain_update(hashed.as_str()).finalize();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
    mac.update(what);
    mac.update(of);
    Some(mac)
}

/// Returns the value of the cookie for an account whose password was entered at this time, in Unix milliseconds. None:
/// the token is not an account.
pub fn begin(token: &Token, now_ms: i64) -> Option<String> {
    let told = format!("{}.{}", token.name, now_ms + LIFE.as_millis() as i64);
    let mac = signed(token, b"cookie\0", told.as_bytes())?;
    Some(format!("{told}.{}", BASE64.encode(mac.finalize().into_bytes())))
}

/// Returns the account of a cookie with this value, if its session is still valid.
pub fn holder<'a>(tokens: &'a Tokens, value: &str, now_ms: i64) -> Option<&'a Token> {
    let (told, mac) = value.rsplit_once('.')?;
    let (name, expires_ms) = told.rsplit_once('.')?;
    let token = tokens.named(&TokenName::of_account(name).ok()?)?;
    signed(token, b"cookie\0", told.as_bytes())?.verify_slice(&BASE64.decode(mac).ok()?).ok()?;
    // The password's hash is in the registry. Who could read it could sign a cookie that never ends.
    let left_ms = expires_ms.parse::<i64>().ok()?.checked_sub(now_ms)?;
    let longest_ms = (LIFE + CLOCK_DIFFERENCE).as_millis() as i64;
    ((1..=longest_ms).contains(&left_ms) && token.is_good_at(now_ms)).then_some(token)
}

/// Returns the CSRF token that the pages of a session send with each change.
pub fn csrf(token: &Token, value: &str) -> Option<String> {
    Some(BASE64.encode(signed(token, CSRF, value.as_bytes())?.finalize().into_bytes()))
}

/// Returns whether a page sent the right CSRF token of its session.
pub fn is_csrf(token: &Token, value: &str, shown: &str) -> bool {
    let verify = || signed(token, CSRF, value.as_bytes())?.verify_slice(&BASE64.decode(shown).ok()?).ok();
    verify().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::password::Hashed;
    use crate::token::Secret;

    fn account(name: &str, password: &str) -> Token {
        Token {
            name: TokenName::of_account(name).unwrap(),
            proof: Proof::Password(Hashed::new(password, [3; 16]).unwrap()),
            scopes: vec!["admin".parse().unwrap()],
            created_ms: 1,
            expires_ms: None,
            creator: String::new(),
        }
    }

    #[test]
    fn a_session_is_valid_until_it_ends_or_its_account_changes() {
        let ann = account("ann.b-1", "password of ann");
        let tokens: Tokens = [ann.clone(), account("bob", "password of bob")].into_iter().collect();
        let value = begin(&ann, 1000).unwrap();
        let end_ms = 1000 + LIFE.as_millis() as i64;
        assert_eq!(holder(&tokens, &value, end_ms - 1), Some(&ann));
        assert_eq!(holder(&tokens, &value, end_ms), None);
        let others: Tokens = [account("ann.b-1", "another password")].into_iter().collect();
        assert_eq!(holder(&others, &value, 1000), None);
        assert_eq!(holder(&Tokens::default(), &value, 1000), None);
        // No part of the cookie can be changed.
        for (from, to) in [("ann.b-1", "bob"), (&*end_ms.to_string(), "99999999999999")] {
            assert_eq!(holder(&tokens, &value.replacen(from, to, 1), 1000), None, "{to}");
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
            assert_eq!(holder(&tokens, wrong, 1000), None, "{wrong}");
        }
    }

    #[test]
    fn a_session_that_is_longer_than_any_is_refused() {
        let ann = account("ann", "password of ann");
        let tokens: Tokens = [ann.clone()].into_iter().collect();
        let forged = |expires_ms: i64| {
            let text = format!("ann.{expires_ms}");
            let mac = signed(&ann, b"cookie\0", text.as_bytes()).unwrap();
            format!("{text}.{}", BASE64.encode(mac.finalize().into_bytes()))
        };
        let longest = (LIFE + CLOCK_DIFFERENCE).as_millis() as i64;
        assert_eq!(holder(&tokens, &forged(1000 + longest), 1000), Some(&ann));
        for expires_ms in [1000 + longest + 1, 10 * 365 * 86_400_000, i64::MAX, i64::MIN] {
            assert_eq!(holder(&tokens, &forged(expires_ms), 1000), None, "{expires_ms}");
        }
    }

    #[test]
    fn what_is_shown_with_a_change_is_of_one_session() {
        let ann = account("ann", "password of ann");
        let (one, two) = (begin(&ann, 1000).unwrap(), begin(&ann, 2000).unwrap());
        let shown = csrf(&ann, &one).unwrap();
        assert!(is_csrf(&ann, &one, &shown) && !is_csrf(&ann, &two, &shown));
        assert!(!is_csrf(&ann, &one, "") && !is_csrf(&ann, &one, one.rsplit_once('.').unwrap().1));
        assert!(!is_csrf(&account("ann", "another password"), &one, &shown));
    }

    #[test]
    fn a_token_without_a_password_has_no_session() {
        let token =
            Token { proof: Proof::Secret(Secret::new([1; 32]).digest()), ..account("a", "password of a") };
        assert_eq!(begin(&token, 0), None);
    }
}
