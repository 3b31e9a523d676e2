//! A token as the databases store it.

use serde::{Deserialize, Serialize};

use super::InvalidRow;
use model::scope::Scope;
use model::token::{Token, TokenName};

/// The beginning of the word that holds [`Token::add_rate`]. This word stands among the scopes. (An older release does
/// not know the word, and refuses the token. So with an older release, no client can add jobs faster than the token
/// allows.)
const ADD_RATE: &str = "add_rate=";

/// A row: texts and numbers that are not checked yet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct TokenRow {
    pub name: String,
    /// The digest of the token's secret, or the hash of a password.
    pub digest: String,
    pub scopes: String,
    pub created_ms: i64,
    pub expires_ms: Option<i64>,
    pub creator: String,
}

impl TokenRow {
    pub(super) fn new(token: &Token) -> TokenRow {
        let scopes = token.scopes.iter().map(Scope::to_string);
        let words: Vec<String> =
            scopes.chain(token.add_rate.map(|rate| format!("{ADD_RATE}{rate}"))).collect();
        TokenRow {
            name: token.name.stored(),
            digest: token.proof.clone().into(),
            scopes: words.join(" "),
            created_ms: token.created_ms,
            expires_ms: token.expires_ms,
            creator: token.creator.clone(),
        }
    }

    /// Returns the token. A token with an unknown scope is refused, because dq could apply only a part of its scopes.
    pub(super) fn into_token(self) -> Result<Token, InvalidRow> {
        let unusable = |why: String| InvalidRow { which: format!("token {:?}", self.name), why };
        Ok(Token {
            name: TokenName::try_from(self.name.clone()).map_err(|e| unusable(e.to_string()))?,
            proof: self.digest.clone().try_into().map_err(|_| {
                unusable("digest is neither 64 hexadecimal digits nor the hash of a password".to_owned())
            })?,
            scopes: self
                .scopes
                .split_ascii_whitespace()
                .filter(|word| !word.starts_with(ADD_RATE))
                .map(str::parse)
                .collect::<Result<_, _>>()
                .map_err(|e: model::scope::InvalidScope| unusable(e.to_string()))?,
            created_ms: self.created_ms,
            expires_ms: self.expires_ms,
            creator: self.creator.clone(),
            add_rate: self
                .scopes
                .split_ascii_whitespace()
                .find_map(|word| word.strip_prefix(ADD_RATE))
                .map(str::parse)
                .transpose()
                .map_err(unusable)?,
        })
    }
}

/// Separates the rows that are tokens from the rows that dq cannot use.
pub(super) fn sorted(rows: Vec<TokenRow>) -> (Vec<Token>, Vec<InvalidRow>) {
    let (mut tokens, mut unusable) = (Vec::new(), Vec::new());
    for row in rows {
        match row.into_token() {
            Ok(token) => tokens.push(token),
            Err(why) => unusable.push(why),
        }
    }
    (tokens, unusable)
}
