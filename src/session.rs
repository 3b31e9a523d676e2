//! The sessions of people who have signed in to the console: what their cookie says, and how it is known to be ours. Nothing is kept of a session: it is
//! signed under a key that is made of the hash of the password. So each dq-http-server of each host knows it, also after a restart,
//! and a new password ends all sessions of the one before. Pure: moments are given.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};
use std::net::SocketAddr;
use std::time::Duration;

use crate::token::{Proof, Token, TokenName, Tokens};

/// The name of the cookie. Browsers keep cookies by host and not by port: each daemon of a host has one of its own.
pub fn cookie(listen: Option<SocketAddr>) -> String {
    listen.map_or_else(|| "dq_session".to_owned(), |address| format!("dq_session_{}", address.port()))
}

/// For how long somebody is signed in.
pub const LIFE: Duration = Duration::from_secs(12 * 3600);

/// What the key of sessions is made with, beside the hash.
const PURPOSE: &[u8] = b"dq console session 1\0";

/// What a page sends with each change, beside the cookie that browsers send by themselves.
const CSRF: &[u8] = b"dq console csrf\0";

/// Signs what a cookie says; none: who has the token has no password.
fn signed(token: &Token, what: &[u8], of: &[u8]) -> Option<Hmac<Sha256>> {
    let Proof::Password(hashed) = &token.proof else { return None };
    let key = Sha256::new().chain_update(PURPOSE).chain_update(hashed.as_str()).finalize();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).ok()?;
    mac.update(what);
    mac.update(of);
    Some(mac)
}

/// The value of the cookie of somebody who has shown his password at that moment, Unix milliseconds.
pub fn begin(token: &Token, now_ms: i64) -> Option<String> {
    let told = format!("{}.{}", token.name, now_ms + LIFE.as_millis() as i64);
    let mac = signed(token, b"cookie\0", told.as_bytes())?;
    Some(format!("{told}.{}", BASE64.encode(mac.finalize().into_bytes())))
}

/// Who has a cookie with that value, if he is still signed in.
pub fn holder<'a>(tokens: &'a Tokens, value: &str, now_ms: i64) -> Option<&'a Token> {
    let (told, mac) = value.rsplit_once('.')?;
    let (name, expires_ms) = told.rsplit_once('.')?;
    let token = tokens.named(&TokenName::of_account(name).ok()?)?;
    signed(token, b"cookie\0", told.as_bytes())?.verify_slice(&BASE64.decode(mac).ok()?).ok()?;
    (now_ms < expires_ms.parse().ok()? && token.is_good_at(now_ms)).then_some(token)
}

/// What that session's pages show with each change.
pub fn csrf(token: &Token, value: &str) -> Option<String> {
    Some(BASE64.encode(signed(token, CSRF, value.as_bytes())?.finalize().into_bytes()))
}

/// Whether a page has shown it.
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
            proof: Proof::Password(Hashed::of(password, [3; 16]).unwrap()),
            scopes: vec!["admin".parse().unwrap()],
            created_ms: 1,
            expires_ms: None,
            creator: String::new(),
        }
    }

    #[test]
    fn a_session_is_known_until_it_ends_its_holder_goes_or_has_another_password() {
        let ann = account("ann.b-1", "password of ann");
        let tokens: Tokens = [ann.clone(), account("bob", "password of bob")].into_iter().collect();
        let value = begin(&ann, 1000).unwrap();
        let end_ms = 1000 + LIFE.as_millis() as i64;
        assert_eq!(holder(&tokens, &value, end_ms - 1), Some(&ann));
        assert_eq!(holder(&tokens, &value, end_ms), None);
        let others: Tokens = [account("ann.b-1", "another password")].into_iter().collect();
        assert_eq!(holder(&others, &value, 1000), None);
        assert_eq!(holder(&Tokens::default(), &value, 1000), None);
        // Nothing of it can be changed.
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
            Token { proof: Proof::Secret(Secret::of([1; 32]).digest()), ..account("a", "password of a") };
        assert_eq!(begin(&token, 0), None);
    }
}
