//! Notices that a token is not valid any more while its client waits.

use std::future::pending;
use std::time::Duration;

use super::api::Api;
use host::now_ms;
use model::token::{Token, Tokens, VerifiedToken};

impl Api {
    /// Waits until a token is not valid any more: it is revoked, or it expires. Waits for ever if there is no token.
    pub(super) async fn until_revoked(&self, token: Option<&Token>) {
        let Some(token) = token else { return pending().await };
        let (pass, mut tokens) = (VerifiedToken::from(token), self.tokens.clone());
        let present = |tokens: &Tokens| tokens.passed(&pass, now_ms()).map(|token| token.expires_ms);
        loop {
            let found = present(&tokens.borrow_and_update());
            let Some(expires_ms) = found else { return };
            let expired = async {
                match expires_ms {
                    None => pending().await,
                    Some(expires_ms) => {
                        let left_ms = u64::try_from(expires_ms - now_ms()).unwrap_or(0);
                        tokio::time::sleep(Duration::from_millis(left_ms)).await;
                    }
                }
            };
            tokio::select! {
                changed = tokens.changed() => if changed.is_err() {
                    return;
                },
                () = expired => {}
            }
        }
    }
}
