//! The client that has reserved a job. A store keeps the name and the address of the client with the lease. They are
//! only shown to people: no decision of dq depends on them.

/// How many bytes the name of a client may have.
pub const RESERVER_NAME_MAX: usize = 128;

/// A client that has reserved a job, and has named itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserver {
    /// The name that the client gave itself.
    pub name: String,
    /// The address of the client. Empty: the client used the Unix socket. An address has no space.
    pub address: String,
    /// When the client got the job, Unix milliseconds.
    pub since_ms: i64,
}

impl Reserver {
    /// Returns whether a client may have this name: 1 to 128 bytes, no control characters.
    pub fn is_name(name: &str) -> bool {
        (1..=RESERVER_NAME_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
    }

    /// Returns the text that a store keeps.
    pub(crate) fn to_text(&self) -> String {
        format!("{} {} {}", self.since_ms, self.address, self.name)
    }

    /// Reads the text that a store keeps. None: the text has another form.
    pub(crate) fn parse(text: &str) -> Option<Reserver> {
        let mut parts = text.splitn(3, ' ');
        let (since_ms, address, name) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
        Some(Reserver { name: name.to_owned(), address: address.to_owned(), since_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_reserved_is_read_as_it_is_kept() {
        for (name, address) in [("a b 中", "::1"), ("w", "")] {
            let client = Reserver { name: name.to_owned(), address: address.to_owned(), since_ms: 7 };
            assert_eq!(Reserver::parse(&client.to_text()), Some(client));
        }
        assert_eq!(
            [Reserver::parse(""), Reserver::parse("x a b"), Reserver::parse("7 a")],
            [None, None, None]
        );
        assert!(Reserver::is_name("a b") && Reserver::is_name(&"x".repeat(128)));
        assert!(!["", "a\n", &"x".repeat(129)].into_iter().any(Reserver::is_name));
    }
}
