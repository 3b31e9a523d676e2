//! Notices that a token is not valid any more while its client waits.

use std::future::pending;

use tokio::time::timeout;

use super::api::Api;
use host::now_ms;
use model::token::{Token, VerifiedToken};

impl Api {
    /// Waits until a token is not valid any more: it is revoked, or it expires. Waits for ever if there is no token.
    pub(super) async fn until_revoked(&self, token: Option<&Token>) {
        let Some(token) = token else { return pending().await };
        let (pass, mut tokens) = (VerifiedToken::from(token), self.tokens.clone());
        loop {
            let left = match tokens.borrow_and_update().passed(&pass, now_ms()) {
                Some(token) => token.valid_for(now_ms()),
                None => return,
            };
            let changed = match left {
                Some(left) => timeout(left, tokens.changed()).await,
                None => Ok(tokens.changed().await),
            };
            if let Ok(Err(_)) = changed {
                return;
            }
        }
    }
}
