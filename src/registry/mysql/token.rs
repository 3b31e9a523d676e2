//! Tokens: the table `dq_token`, which the PHP daemon does not know.

use ::mysql::Conn;
use ::mysql::prelude::Queryable;

use super::row::get;
use super::{Result, at_change};
use crate::RegistryError;
use crate::token::TokenRow;
use model::token::{Token, TokenName};

/// An SQL expression that computes a 64-bit number from all columns of a row, and from the word `token`. Because of
/// this word, the number differs from the number of a topic's row.
const FINGERPRINT: &str = "CAST(CONV(LEFT(MD5(CONCAT_WS(',', 'token', HEX(name), HEX(digest), HEX(scopes), created_ms, \
    IFNULL(expires_ms, '-'), HEX(creator))), 16), 16, 10) AS UNSIGNED)";

/// Returns an SQL expression, in brackets, for a number that is computed from all tokens.
pub(super) fn of_all() -> String {
    format!("(SELECT COALESCE(BIT_XOR({FINGERPRINT}), 0) FROM dq_token)")
}

/// Returns all rows, and the number that the expression of [`of_all`] gives for these rows.
pub(super) fn rows(db: &mut Conn) -> std::result::Result<(u64, Vec<TokenRow>), ::mysql::Error> {
    let query = format!(
        "SELECT {FINGERPRINT}, name, digest, scopes, created_ms, expires_ms, creator FROM dq_token ORDER BY name"
    );
    let mut all = 0;
    let rows = db.query_map(query, |mut row: ::mysql::Row| {
        all ^= get::<u64>(&mut row, 0);
        TokenRow {
            name: get(&mut row, 1),
            digest: get(&mut row, 2),
            scopes: get(&mut row, 3),
            created_ms: get(&mut row, 4),
            expires_ms: get(&mut row, 5),
            creator: get(&mut row, 6),
        }
    })?;
    Ok((all, rows))
}

pub(super) fn put(db: &mut Conn, token: &Token) -> Result<()> {
    let there: Option<u8> = db.exec_first("SELECT 1 FROM dq_token WHERE name = ?", (token.name.stored(),))?;
    if there.is_some() {
        return Err(RegistryError::TokenExists(token.name.clone()));
    }
    insert(db, "INSERT", token)
}

/// Writes an account. An account with the same name is replaced.
pub(super) fn put_account(db: &mut Conn, account: &Token) -> Result<()> {
    insert(db, "REPLACE", account)
}

/// Writes a token. `verb` decides what happens if a token with the same name exists.
fn insert(db: &mut Conn, verb: &str, token: &Token) -> Result<()> {
    let TokenRow { name, digest, scopes, created_ms, expires_ms, creator } = TokenRow::new(token);
    let write = format!(
        "{verb} INTO dq_token (name, digest, scopes, created_ms, expires_ms, creator) VALUES (?, ?, ?, ?, ?, ?)"
    );
    db.exec_drop(write, (name, digest, scopes, created_ms, expires_ms, creator)).map_err(at_change)
}

pub(super) fn end_sessions(db: &mut Conn, account: &TokenName) -> Result<()> {
    let end = "UPDATE dq_token SET created_ms = created_ms + 1 WHERE name = ?";
    db.exec_drop(end, (account.stored(),)).map_err(at_change)?;
    match db.affected_rows() {
        0 => Err(RegistryError::NoToken(account.clone())),
        _ => Ok(()),
    }
}

pub(super) fn delete(db: &mut Conn, name: &TokenName) -> Result<()> {
    db.exec_drop("DELETE FROM dq_token WHERE name = ?", (name.stored(),)).map_err(at_change)?;
    match db.affected_rows() {
        0 => Err(RegistryError::NoToken(name.clone())),
        _ => Ok(()),
    }
}
