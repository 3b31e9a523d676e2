//! A token as the databases hold it.

use super::Unusable;
use crate::scope::Scope;
use crate::token::{Token, TokenName};

/// A row: texts and numbers, of which dq has yet to see that they are a token.
#[derive(Debug)]
pub(super) struct Row {
    pub name: String,
    /// Of its secret; or the hash of a password.
    pub digest: String,
    pub scopes: String,
    pub created_ms: i64,
    pub expires_ms: Option<i64>,
    pub creator: String,
}

impl Row {
    pub(super) fn of(token: &Token) -> Row {
        let scopes: Vec<String> = token.scopes.iter().map(Scope::to_string).collect();
        Row {
            name: token.name.kept(),
            digest: token.proof.clone().into(),
            scopes: scopes.join(" "),
            created_ms: token.created_ms,
            expires_ms: token.expires_ms,
            creator: token.creator.clone(),
        }
    }

    /// The token. One that has a scope of another release's is none: whoever has it is not to be let in by a part of what was meant.
    pub(super) fn into_token(self) -> Result<Token, Unusable> {
        let unusable = |why: String| Unusable { which: format!("token {:?}", self.name), why };
        Ok(Token {
            name: TokenName::try_from(self.name.clone()).map_err(|e| unusable(e.to_string()))?,
            proof: self.digest.clone().try_into().map_err(|_| {
                unusable("digest is neither 64 hexadecimal digits nor the hash of a password".to_owned())
            })?,
            scopes: self
                .scopes
                .split_ascii_whitespace()
                .map(str::parse)
                .collect::<Result<_, _>>()
                .map_err(|e: crate::scope::NoScope| unusable(e.to_string()))?,
            created_ms: self.created_ms,
            expires_ms: self.expires_ms,
            creator: self.creator.clone(),
        })
    }
}

/// The tokens among rows, and the rest.
pub(super) fn sorted(rows: Vec<Row>) -> (Vec<Token>, Vec<Unusable>) {
    let (mut tokens, mut unusable) = (Vec::new(), Vec::new());
    for row in rows {
        match row.into_token() {
            Ok(token) => tokens.push(token),
            Err(why) => unusable.push(why),
        }
    }
    (tokens, unusable)
}
