//! Tokens: what a client shows, what of it is kept, and whether that may do something. Pure: no I/O, no clock, no chance.
//!
//! A secret has 256 random bits, so that a plain SHA-256 of it is as good as a keyed one: nobody finds it by guessing, with the
//! digest or without. A key would have to lie where the digests lie, or on every host.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::job::TopicName;
use crate::password::Hashed;
use crate::scope::{Need, Scope};

/// What each secret begins with, so that those who look for leaked ones know it.
const PREFIX: &str = "dq_";

/// The letters of a secret, five bits each (RFC 4648, base32).
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// How many of them: 256 bits.
const LENGTH: usize = 52;

/// What a client shows. It is never kept, and never logged.
pub struct Secret(String);

impl Secret {
    /// That of these random bytes.
    pub fn of(random: [u8; 32]) -> Secret {
        let mut text = String::with_capacity(PREFIX.len() + LENGTH);
        text.push_str(PREFIX);
        let (mut bits, mut count) = (0_u32, 0);
        for byte in random.into_iter().chain([0]) {
            (bits, count) = (bits << 8 | u32::from(byte), count + 8);
            while count >= 5 && text.len() < PREFIX.len() + LENGTH {
                count -= 5;
                text.push(LETTERS[(bits >> count & 31) as usize].into());
            }
        }
        Secret(text)
    }

    /// To be shown to who asked for it, once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    pub fn digest(&self) -> Digest {
        Digest(Sha256::digest(self.0.as_bytes()).into())
    }
}

/// What a client shows, whatever it is. It is not to be seen anywhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Shown(pub String);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown(..)")
    }
}

/// What is kept of a secret: its SHA-256. Compared in constant time.
#[derive(Clone, Copy)]
pub struct Digest([u8; 32]);

impl Digest {
    /// That of what a client shows; none: it is no secret of ours.
    pub fn of(shown: &str) -> Option<Digest> {
        let letters = shown.strip_prefix(PREFIX)?;
        let fits = letters.len() == LENGTH && letters.bytes().all(|b| LETTERS.contains(&b));
        fits.then(|| Digest(Sha256::digest(shown.as_bytes()).into()))
    }

    /// From its 64 hexadecimal digits.
    pub fn from_hex(hex: &str) -> Option<Digest> {
        if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Digest(bytes))
    }
}

impl PartialEq for Digest {
    fn eq(&self, other: &Digest) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Digest {}

/// Its 64 hexadecimal digits.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(..)")
    }
}

impl TryFrom<String> for Digest {
    type Error = &'static str;
    fn try_from(hex: String) -> Result<Digest, &'static str> {
        Digest::from_hex(&hex).ok_or("a digest is 64 hexadecimal digits")
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        String::deserialize(from)?.try_into().map_err(serde::de::Error::custom)
    }
}

/// By what the holder of a token shows that it is his.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Proof {
    /// A client, by a secret of ours.
    Secret(Digest),
    /// A person, by a password of his own, at the console's sign-in alone.
    Password(Hashed),
}

impl TryFrom<String> for Proof {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Proof, &'static str> {
        Hashed::parse(&text).map(Proof::Password).map_or_else(|| text.try_into().map(Proof::Secret), Ok)
    }
}

impl From<Proof> for String {
    fn from(proof: Proof) -> String {
        match proof {
            Proof::Secret(digest) => digest.into(),
            Proof::Password(hashed) => hashed.as_str().to_owned(),
        }
    }
}

/// A text that is no name of a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not 1 to 128 of letters, digits, `_`, `.`, `-`")]
pub struct NoName(String);

/// What people call a token: as a topic's name. Accounts have names of their own: one may be called as a client's token is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenName {
    name: TopicName,
    is_account: bool,
}

/// What is kept of the name of an account begins with it. (Older releases take such a row for none of theirs.)
const ACCOUNT: char = '@';

impl TokenName {
    /// Checks and takes the name of a client's token.
    pub fn new(name: &str) -> Result<TokenName, NoName> {
        TokenName::of(name, false)
    }

    /// Checks and takes the name of an account.
    pub fn of_account(name: &str) -> Result<TokenName, NoName> {
        TokenName::of(name, true)
    }

    fn of(name: &str, is_account: bool) -> Result<TokenName, NoName> {
        let no_name = || NoName(name.chars().take(128).collect());
        // With its letter before it, it is not longer than others.
        let fits = !is_account || name.len() < 128;
        let name = TopicName::new(name).ok().filter(|_| fits).ok_or_else(no_name)?;
        Ok(TokenName { name, is_account })
    }

    /// The name as text, for people.
    pub fn as_str(&self) -> &str {
        self.name.as_str()
    }

    /// The name as it is kept.
    pub fn kept(&self) -> String {
        if self.is_account { format!("{ACCOUNT}{}", self.name) } else { self.name.to_string() }
    }
}

impl TryFrom<String> for TokenName {
    type Error = NoName;
    fn try_from(kept: String) -> Result<TokenName, NoName> {
        kept.strip_prefix(ACCOUNT).map_or_else(|| TokenName::new(&kept), TokenName::of_account)
    }
}

impl From<TokenName> for String {
    fn from(name: TokenName) -> String {
        name.kept()
    }
}

impl fmt::Display for TokenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A token as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// What people call it.
    pub name: TokenName,
    /// By what it is shown. (Older releases know secrets alone, and call it so.)
    #[serde(rename = "digest")]
    pub proof: Proof,
    /// What it is for.
    pub scopes: Vec<Scope>,
    /// When it was made, Unix milliseconds.
    pub created_ms: i64,
    /// From when it is nothing any more; none: never.
    pub expires_ms: Option<i64>,
    /// Who made it.
    pub creator: String,
}

impl Token {
    /// Whether it has not expired at that moment, Unix milliseconds.
    pub fn is_good_at(&self, now_ms: i64) -> bool {
        self.expires_ms.is_none_or(|expires_ms| now_ms < expires_ms)
    }

    /// Whether it is a person's, who signs in by a password.
    pub fn is_account(&self) -> bool {
        matches!(self.proof, Proof::Password(_))
    }

    /// Whether one of its scopes is enough.
    pub fn permits(&self, need: Need<'_>) -> bool {
        self.scopes.iter().any(|scope| scope.permits(need))
    }
}

/// By which token somebody has come in. Whether it still is one is asked each time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pass {
    name: TokenName,
    #[serde(rename = "digest")]
    proof: Proof,
}

/// All tokens of one moment, by name. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens(Arc<Vec<Token>>);

impl FromIterator<Token> for Tokens {
    fn from_iter<I: IntoIterator<Item = Token>>(tokens: I) -> Tokens {
        let mut tokens: Vec<Token> = tokens.into_iter().collect();
        tokens.sort_by(|a, b| a.name.cmp(&b.name));
        tokens.dedup_by(|a, b| a.name == b.name);
        Tokens(Arc::new(tokens))
    }
}

impl Tokens {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Token> {
        self.0.iter()
    }

    /// The one of that name.
    pub fn named(&self, name: &TokenName) -> Option<&Token> {
        self.0.binary_search_by(|token| token.name.cmp(name)).ok().map(|at| &self.0[at])
    }

    /// The one whose secret a client shows, if it is good now. How long this takes does not depend on which one that is, nor on
    /// how much of it is right.
    pub fn shown(&self, secret: &str, now_ms: i64) -> Option<&Token> {
        let digest = Digest::of(secret)?;
        let (mut found, mut at) = (Choice::from(0), 0_u64);
        for (n, token) in (0_u64..).zip(self.0.iter()) {
            let same = match &token.proof {
                Proof::Secret(kept) => kept.0.ct_eq(&digest.0),
                Proof::Password(_) => Choice::from(0),
            };
            at.conditional_assign(&n, same);
            found |= same;
        }
        let token = self.0.get(usize::try_from(at).ok()?)?;
        (bool::from(found) && token.is_good_at(now_ms)).then_some(token)
    }

    /// The one by which somebody has come in, if it is still good.
    pub fn passed(&self, pass: &Pass, now_ms: i64) -> Option<&Token> {
        self.named(&pass.name).filter(|token| token.proof == pass.proof && token.is_good_at(now_ms))
    }
}

impl From<&Token> for Pass {
    fn from(token: &Token) -> Pass {
        Pass { name: token.name.clone(), proof: token.proof.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str, random: u8, expires_ms: Option<i64>) -> Token {
        Token {
            name: TokenName::new(name).unwrap(),
            proof: Proof::Secret(Secret::of([random; 32]).digest()),
            scopes: vec![Scope::Read],
            created_ms: 1,
            expires_ms,
            creator: String::new(),
        }
    }

    #[test]
    fn a_secret_is_known_by_its_look_and_kept_by_its_digest_alone() {
        assert_eq!(Secret::of([0; 32]).reveal(), format!("dq_{}", "a".repeat(52)));
        assert_eq!(Secret::of([255; 32]).reveal(), format!("dq_{}q", "7".repeat(51)));
        let mut one = [0; 32];
        one[0] = 0b0000_1000;
        assert!(Secret::of(one).reveal().starts_with("dq_ba"));
        let secret = Secret::of([7; 32]);
        assert_eq!(Digest::of(secret.reveal()).unwrap(), secret.digest());
        assert_eq!(Digest::from_hex(&secret.digest().to_string()).unwrap(), secret.digest());
        for wrong in ["", "dq_", "dq_A", &secret.reveal()[1..], &secret.reveal().to_uppercase(), "Bearer x"] {
            assert!(Digest::of(wrong).is_none(), "{wrong}");
        }
        assert!(Digest::from_hex("zz").is_none());
        assert!(!format!("{:?}", token("a", 7, None)).contains(&secret.digest().to_string()));
    }

    #[test]
    fn an_account_and_a_token_of_one_name_are_two() {
        let (account, client) = (TokenName::of_account("ann").unwrap(), TokenName::new("ann").unwrap());
        assert!(account != client && account.to_string() == client.to_string());
        assert_eq!((account.kept().as_str(), client.kept().as_str()), ("@ann", "ann"));
        for name in [account, client] {
            assert_eq!(TokenName::try_from(name.kept()), Ok(name));
        }
        assert!(TokenName::new("@ann").is_err() && TokenName::of_account("@ann").is_err());
        let long = "x".repeat(128);
        assert!(TokenName::new(&long).is_ok() && TokenName::of_account(&long).is_err());
    }

    #[test]
    fn a_token_is_found_by_its_secret_until_it_expires_or_goes() {
        let tokens: Tokens =
            [token("b", 2, Some(100)), token("a", 1, None), token("c", 3, None)].into_iter().collect();
        let secret = |n| Secret::of([n; 32]);
        for (random, name) in [(1, "a"), (2, "b"), (3, "c")] {
            assert_eq!(tokens.shown(secret(random).reveal(), 99).unwrap().name.as_str(), name);
        }
        assert!(tokens.shown(secret(2).reveal(), 100).is_none(), "expired");
        assert!(tokens.shown(secret(4).reveal(), 0).is_none());
        assert!(Tokens::default().shown(secret(1).reveal(), 0).is_none());
        let pass = Pass::from(tokens.shown(secret(2).reveal(), 0).unwrap());
        assert!(tokens.passed(&pass, 99).is_some() && tokens.passed(&pass, 100).is_none());
        // Another one of that name is another.
        let others: Tokens = [token("b", 5, None)].into_iter().collect();
        assert!(others.passed(&pass, 0).is_none());
        assert!(Tokens::default().passed(&pass, 0).is_none());
    }
}
