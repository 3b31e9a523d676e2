//! A node of the PHP daemon, as the daemon's table `dq_redis` describes it. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A row of the table `dq_redis`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhpNode {
    /// The number of the node. The PHP daemon orders its nodes by this number.
    pub id: i64,
    /// The name of the node.
    pub name: String,
    /// The address: `host:port:password`, or two addresses with a comma between them: master and slave.
    pub content: String,
}

/// Hides the password.
impl fmt::Debug for PhpNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhpNode").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

/// Returns the host, the port and the password (empty: none) of the master from the content of a row. None: the content
/// has another form.
pub fn master(content: &str) -> Option<(&str, u16, &str)> {
    let endpoints = content.split(',').map(|part| endpoint(part.trim()));
    // All parts must have the right form. Otherwise a password with a comma in it would be cut off.
    endpoints.collect::<Option<Vec<_>>>()?.into_iter().next()
}

/// Parses `host:port` or `host:port:password`.
fn endpoint(text: &str) -> Option<(&str, u16, &str)> {
    let mut parts = text.splitn(3, ':');
    let host = parts.next().filter(|h| !h.is_empty() && !h.contains(['/', '@', ' ', '[']))?;
    let port = parts.next()?.parse().ok().filter(|port| *port > 0)?;
    Some((host, port, parts.next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_row_is_the_master() {
        assert_eq!(master("10.0.0.1:6379"), Some(("10.0.0.1", 6379, "")));
        assert_eq!(master("h:1:a:b"), Some(("h", 1, "a:b")));
        assert_eq!(master(" h:1:pw , g:2:pw "), Some(("h", 1, "pw")));
        for wrong in ["", "h", "h:0", "h:x:pw", ":1", "redis://h:1", "h:1:p,w"] {
            assert_eq!(master(wrong), None, "{wrong}");
        }
    }
}
