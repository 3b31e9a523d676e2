//! The hosts that a setting names: hosts for jobs with URLs of their own (`job_hosts`), and hosts with limits
//! (`callback.host`). Pure.

use std::net::Ipv6Addr;

use http::Uri;
use serde::{Deserialize, Serialize};

use crate::guard::literal;

/// A host, with or without a port, or `*.` and the end of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPattern {
    /// Whether the first label of the host may be any label.
    is_wildcard: bool,
    /// The host, in lower case. An IPv6 address is in brackets.
    host: String,
    /// The port. None: the default port of the URL's scheme.
    port: Option<u16>,
}

impl HostPattern {
    /// Reads a pattern. None: the text cannot be used as a pattern.
    pub fn parse(text: &str) -> Option<HostPattern> {
        let text = text.to_ascii_lowercase();
        let (is_wildcard, rest) = text.strip_prefix("*.").map_or((false, text.as_str()), |rest| (true, rest));
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (rest, None),
        };
        let port = match port {
            Some(port) if port.starts_with(|c: char| c.is_ascii_digit()) => {
                Some(port.parse().ok().filter(|port| *port > 0)?)
            }
            Some(_) => return None,
            None => None,
        };
        let is_address = literal(host).is_some();
        let is_usable = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => address.parse::<Ipv6Addr>().is_ok() && !is_wildcard,
            // A wildcard directly before a last label such as `com` would stand for the hosts of everybody. So the part
            // after the wildcard must have a dot.
            None if is_wildcard => !is_address && host.contains('.') && host.split('.').all(is_label),
            None => host.split('.').all(is_label),
        };
        is_usable.then(|| HostPattern { is_wildcard, host: host.to_owned(), port })
    }

    /// Returns whether the pattern stands for more than one host.
    pub fn is_wildcard(&self) -> bool {
        self.is_wildcard
    }

    /// Returns whether the pattern stands for the host and the port of a URL.
    pub fn matches(&self, url: &Uri) -> bool {
        let default = if url.scheme_str() == Some("https") { 443 } else { 80 };
        let host = url.host().unwrap_or_default().to_ascii_lowercase();
        let is_host = match self.is_wildcard {
            false => host == self.host,
            true => host.split_once('.').is_some_and(|(first, rest)| is_label(first) && rest == self.host),
        };
        is_host && url.port_u16().unwrap_or(default) == self.port.unwrap_or(default)
    }
}

fn is_label(label: &str) -> bool {
    !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stands_for_its_host_and_port_alone() {
        for (entry, url, is_match) in [
            ("shop.example", "https://shop.example/hook", true),
            ("shop.example", "https://shop.example", true),
            ("shop.example", "https://SHOP.example:443/", true),
            ("Shop.Example", "http://shop.example/", true),
            ("shop.example", "http://shop.example:443/", false),
            ("shop.example", "https://shop.example:8443/", false),
            ("shop.example", "https://shop.example./", false),
            ("shop.example", "https://a.shop.example/", false),
            ("shop.example", "https://shop.example.evil.example/", false),
            ("shop.example", "https://evilshop.example/", false),
            ("shop.example:8443", "https://shop.example:8443/", true),
            ("shop.example:8443", "https://shop.example/", false),
            ("*.example.com", "https://shop7.example.com/hook?x", true),
            ("*.example.com:8443", "https://shop7.example.com:8443/", true),
            ("*.example.com", "https://example.com/", false),
            ("*.example.com", "https://a.b.example.com/", false),
            ("*.example.com", "https://.example.com/", false),
            ("*.example.com", "https://evilexample.com/", false),
            ("*.example.com", "https://a.example.com.evil.example/", false),
            ("*.example.com", "https://a%2f.example.com/", false),
            ("127.0.0.1:9000", "http://127.0.0.1:9000/", true),
            ("127.0.0.1:9000", "http://127.0.0.2:9000/", false),
            ("127.0.0.1:9000", "http://2130706433:9000/", false),
            ("[::1]:9000", "http://[::1]:9000/", true),
            ("[::1]", "http://[::1]/", true),
        ] {
            let Ok(uri) = url.parse() else { continue };
            assert_eq!(HostPattern::parse(entry).unwrap().matches(&uri), is_match, "{entry} {url}");
        }
    }

    #[test]
    fn an_entry_that_means_too_much_is_refused() {
        for entry in [
            "",
            "*",
            "*.",
            "*.com",
            "*.*.example.com",
            "a.*.example.com",
            "shop*.example.com",
            "*.0.0.1",
            "*.1.2.3.4",
            "*.[::1]",
            "https://shop.example",
            "shop.example/hook",
            "u@shop.example",
            "shop.example:",
            "shop.example:0",
            "shop.example:+80",
            "shop.example:65536",
            "shop.example:8443:1",
            "shop..example",
            ".shop.example",
            "shop example",
            "[::1",
            "::1",
            "中.example",
        ] {
            assert_eq!(HostPattern::parse(entry), None, "{entry}");
        }
    }
}
