//! Tokens: the secret that a client presents, the digest that dq keeps, and the check of its scopes. Pure: no I/O, no
//! clock, no random numbers.
//!
//! A secret has 256 random bits. So nobody can guess the secret, not even somebody who knows its digest. For such a
//! secret, a plain SHA-256 is as safe as a keyed SHA-256. And for a keyed SHA-256, dq would have to store a key, beside
//! the digests or on every host.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::job_parts::TopicName;
use crate::password::StoredPassword;
use crate::scope::{RequiredAccess, Scope};
use crate::topic::Rate;

/// Each secret begins with this text, so that scanners for leaked secrets recognize the secret.
const PREFIX: &str = "dq_";

/// The letters of a secret, five bits each (RFC 4648, base32).
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// How many characters follow the prefix of a secret: enough for 256 bits.
const LENGTH: usize = 52;

/// The secret of a new token. It is never stored and never logged.
pub struct TokenSecret(String);

impl TokenSecret {
    /// Makes the secret from random bytes.
    pub fn new(random: [u8; 32]) -> TokenSecret {
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
        TokenSecret(text)
    }

    /// Returns the secret as text. It is shown once, to the person who created the token.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the digest, which is what dq stores.
    pub fn digest(&self) -> Digest {
        Digest(Sha256::digest(self.0.as_bytes()).into())
    }
}

/// The text that a client presents as its token. The token may be wrong. The text must not appear in any log or
/// message, so `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct PresentedToken(pub String);

impl fmt::Debug for PresentedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresentedToken(..)")
    }
}

/// The SHA-256 of a secret, which is what dq stores. Digests are compared in constant time.
#[derive(Clone, Copy)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the digest of what a client presents. None: the text does not have the form of a dq secret.
    pub fn from_secret(shown: &str) -> Option<Digest> {
        let letters = shown.strip_prefix(PREFIX)?;
        let fits = letters.len() == LENGTH && letters.bytes().all(|b| LETTERS.contains(&b));
        fits.then(|| Digest(Sha256::digest(shown.as_bytes()).into()))
    }

    /// Reads a digest from its 64 hexadecimal digits.
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

/// Writes the 64 hexadecimal digits.
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

/// How somebody proves to be the holder of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TokenCredential {
    /// A client presents a secret that dq made.
    Secret(Digest),
    /// A person enters a password to sign in to the console. The password is valid only for the console.
    Password(StoredPassword),
}

impl TryFrom<String> for TokenCredential {
    type Error = &'static str;
    fn try_from(text: String) -> Result<TokenCredential, &'static str> {
        StoredPassword::parse(&text)
            .map(TokenCredential::Password)
            .map_or_else(|| text.try_into().map(TokenCredential::Secret), Ok)
    }
}

impl From<TokenCredential> for String {
    fn from(proof: TokenCredential) -> String {
        match proof {
            TokenCredential::Secret(digest) => digest.into(),
            TokenCredential::Password(hashed) => hashed.as_str().to_owned(),
        }
    }
}

/// The error for a text that is not a valid name of a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not 1 to 128 letters, digits, `_`, `.` or `-`")]
pub struct InvalidTokenName(String);

/// The name of a token, with the same rules as the name of a topic. The names of accounts are separate from the names
/// of clients' tokens. So an account and a client's token may have the same name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenName {
    name: TopicName,
    is_account: bool,
}

/// The stored name of an account begins with this character. (Older releases ignore a row with such a name.)
const ACCOUNT: char = '@';

impl TokenName {
    /// Checks a text and makes the name of a client's token from it.
    pub fn new(name: &str) -> Result<TokenName, InvalidTokenName> {
        TokenName::checked(name, false)
    }

    /// Checks a text and makes the name of an account from it.
    pub fn of_account(name: &str) -> Result<TokenName, InvalidTokenName> {
        TokenName::checked(name, true)
    }

    fn checked(name: &str, is_account: bool) -> Result<TokenName, InvalidTokenName> {
        let invalid = || InvalidTokenName(name.chars().take(128).collect());
        // The stored name of an account begins with `ACCOUNT`. This stored name must not be longer than other stored
        // names.
        let fits = !is_account || name.len() < 128;
        let name = TopicName::new(name).ok().filter(|_| fits).ok_or_else(invalid)?;
        Ok(TokenName { name, is_account })
    }

    /// Returns the name as text, for people.
    pub fn as_str(&self) -> &str {
        self.name.as_str()
    }

    /// Returns the name as it is stored.
    pub fn stored(&self) -> String {
        if self.is_account { format!("{ACCOUNT}{}", self.name) } else { self.name.to_string() }
    }
}

impl TryFrom<String> for TokenName {
    type Error = InvalidTokenName;
    fn try_from(kept: String) -> Result<TokenName, InvalidTokenName> {
        kept.strip_prefix(ACCOUNT).map_or_else(|| TokenName::new(&kept), TokenName::of_account)
    }
}

impl From<TokenName> for String {
    fn from(name: TokenName) -> String {
        name.stored()
    }
}

impl fmt::Display for TokenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A token as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// The name of the token.
    pub name: TokenName,
    /// How somebody proves to be the holder of the token. (Older releases know only secrets. So the field is called
    /// `digest` where it is stored.)
    #[serde(rename = "digest")]
    pub proof: TokenCredential,
    /// What the token allows.
    pub scopes: Vec<Scope>,
    /// When the token was created, in Unix milliseconds.
    pub created_ms: i64,
    /// When the token expires, in Unix milliseconds. None: never.
    pub expires_ms: Option<i64>,
    /// Who created the token.
    pub creator: String,
    /// How many jobs clients may add with the token in a given time. `None`: there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_rate: Option<Rate>,
}

impl Token {
    /// Returns whether the token is still valid at this time, in Unix milliseconds.
    pub fn is_good_at(&self, now_ms: i64) -> bool {
        self.expires_ms.is_none_or(|expires_ms| now_ms < expires_ms)
    }

    /// Returns for how long the token is still valid, unless somebody revokes it. None: it never expires.
    pub fn valid_for(&self, now_ms: i64) -> Option<Duration> {
        let left_ms = self.expires_ms?.saturating_sub(now_ms);
        Some(Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)))
    }

    /// Returns whether the token is an account of a person, who signs in with a password.
    pub fn is_account(&self) -> bool {
        matches!(self.proof, TokenCredential::Password(_))
    }

    /// Returns whether one of the scopes allows the request.
    pub fn permits(&self, need: RequiredAccess<'_>) -> bool {
        self.scopes.iter().any(|scope| scope.permits(need))
    }
}

/// The token with which a client was authenticated. Each request checks again whether that token is still valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedToken {
    name: TokenName,
    #[serde(rename = "digest")]
    proof: TokenCredential,
}

/// All tokens at one time, sorted by name. Cheap to clone.
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
    /// Returns all tokens.
    pub fn iter(&self) -> impl Iterator<Item = &Token> {
        self.0.iter()
    }

    /// Returns the token with this name.
    pub fn named(&self, name: &TokenName) -> Option<&Token> {
        self.0.binary_search_by(|token| token.name.cmp(name)).ok().map(|at| &self.0[at])
    }

    /// Returns the token whose secret a client presents, if the token is valid now. The time of the search does not
    /// depend on which token is found, or on how much of the secret is right.
    pub fn find_by_secret(&self, secret: &str, now_ms: i64) -> Option<&Token> {
        let digest = Digest::from_secret(secret)?;
        let (mut found, mut at) = (Choice::from(0), 0_u64);
        for (n, token) in (0_u64..).zip(self.0.iter()) {
            let same = match &token.proof {
                TokenCredential::Secret(kept) => kept.0.ct_eq(&digest.0),
                TokenCredential::Password(_) => Choice::from(0),
            };
            at.conditional_assign(&n, same);
            found |= same;
        }
        let token = self.0.get(usize::try_from(at).ok()?)?;
        (bool::from(found) && token.is_good_at(now_ms)).then_some(token)
    }

    /// Returns the token with which a client was authenticated, if the token is still valid.
    pub fn passed(&self, pass: &VerifiedToken, now_ms: i64) -> Option<&Token> {
        self.named(&pass.name).filter(|token| token.proof == pass.proof && token.is_good_at(now_ms))
    }
}

impl From<&Token> for VerifiedToken {
    fn from(token: &Token) -> VerifiedToken {
        VerifiedToken { name: token.name.clone(), proof: token.proof.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str, random: u8, expires_ms: Option<i64>) -> Token {
        Token {
            name: TokenName::new(name).unwrap(),
            proof: TokenCredential::Secret(TokenSecret::new([random; 32]).digest()),
            scopes: vec![Scope::Read(crate::scope::ScopeTopics::All)],
            created_ms: 1,
            expires_ms,
            creator: String::new(),
            add_rate: None,
        }
    }

    #[test]
    fn a_secret_is_known_by_its_look_and_kept_by_its_digest_alone() {
        assert_eq!(TokenSecret::new([0; 32]).reveal(), format!("dq_{}", "a".repeat(52)));
        assert_eq!(TokenSecret::new([255; 32]).reveal(), format!("dq_{}q", "7".repeat(51)));
        let mut one = [0; 32];
        one[0] = 0b0000_1000;
        assert!(TokenSecret::new(one).reveal().starts_with("dq_ba"));
        let secret = TokenSecret::new([7; 32]);
        assert_eq!(Digest::from_secret(secret.reveal()).unwrap(), secret.digest());
        assert_eq!(Digest::from_hex(&secret.digest().to_string()).unwrap(), secret.digest());
        for wrong in ["", "dq_", "dq_A", &secret.reveal()[1..], &secret.reveal().to_uppercase(), "Bearer x"] {
            assert!(Digest::from_secret(wrong).is_none(), "{wrong}");
        }
        assert!(Digest::from_hex("zz").is_none());
        assert!(!format!("{:?}", token("a", 7, None)).contains(&secret.digest().to_string()));
    }

    #[test]
    fn an_account_and_a_token_of_one_name_are_two() {
        let (account, client) = (TokenName::of_account("ann").unwrap(), TokenName::new("ann").unwrap());
        assert!(account != client && account.to_string() == client.to_string());
        assert_eq!((account.stored().as_str(), client.stored().as_str()), ("@ann", "ann"));
        for name in [account, client] {
            assert_eq!(TokenName::try_from(name.stored()), Ok(name));
        }
        assert!(TokenName::new("@ann").is_err() && TokenName::of_account("@ann").is_err());
        let long = "x".repeat(128);
        assert!(TokenName::new(&long).is_ok() && TokenName::of_account(&long).is_err());
    }

    #[test]
    fn a_token_is_found_by_its_secret_until_it_expires_or_goes() {
        let tokens: Tokens =
            [token("b", 2, Some(100)), token("a", 1, None), token("c", 3, None)].into_iter().collect();
        let secret = |n| TokenSecret::new([n; 32]);
        for (random, name) in [(1, "a"), (2, "b"), (3, "c")] {
            assert_eq!(tokens.find_by_secret(secret(random).reveal(), 99).unwrap().name.as_str(), name);
        }
        assert!(tokens.find_by_secret(secret(2).reveal(), 100).is_none(), "expired");
        assert!(tokens.find_by_secret(secret(4).reveal(), 0).is_none());
        assert!(Tokens::default().find_by_secret(secret(1).reveal(), 0).is_none());
        let pass = VerifiedToken::from(tokens.find_by_secret(secret(2).reveal(), 0).unwrap());
        assert!(tokens.passed(&pass, 99).is_some() && tokens.passed(&pass, 100).is_none());
        // Another token with the same name does not count.
        let others: Tokens = [token("b", 5, None)].into_iter().collect();
        assert!(others.passed(&pass, 0).is_none());
        assert!(Tokens::default().passed(&pass, 0).is_none());
    }
}
