//! Decides which addresses dq may call. If an address contains another address, the inner address is checked. Pure.
//!
//! Sources: the registries of special-purpose addresses (<https://www.iana.org/assignments/iana-ipv4-special-registry>,
//! <https://www.iana.org/assignments/iana-ipv6-special-registry>), and the documentation of the clouds about their
//! metadata servers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Uri;
use ipnet::IpNet;

use crate::settings::{CallbackSettings, GuardLevel};

/// The rules of the guard: which addresses are denied.
#[derive(Debug, Clone)]
pub struct GuardRules {
    guard: GuardLevel,
    allow: Vec<IpNet>,
}

const METADATA: &str = "the metadata server of a cloud";
const NAME_OF_LOOPBACK: &str = "loopback, which a name other than localhost does not reach";
const LINK_LOCAL: &str = "link-local, where clouds keep their metadata";

impl GuardRules {
    /// Makes the rules from the settings.
    pub fn new(callback: &CallbackSettings) -> GuardRules {
        GuardRules { guard: callback.guard, allow: callback.allow.clone() }
    }

    /// Returns why an address must not be called. None: the address may be called.
    pub fn denies(&self, address: IpAddr) -> Option<&'static str> {
        if self.is_allowed(address) {
            return None;
        }
        meant(address).into_iter().find_map(|meant| self.denies_one(meant))
    }

    /// Returns why an address of a host must not be called. The owner of a name decides which address the name has, and
    /// could choose a loopback address. Then the name would lead to a server that listens only on this host. So a
    /// loopback address is also denied if the host is a name that is not `localhost`.
    pub fn denies_host(&self, host: &str, address: IpAddr) -> Option<&'static str> {
        let is_loopback = || meant(address).into_iter().any(|meant| meant.is_loopback());
        self.denies(address).or_else(|| {
            let is_hidden = is_loopback() && !is_written_as_loopback(host) && !self.is_allowed(address);
            is_hidden.then_some(NAME_OF_LOOPBACK)
        })
    }

    fn is_allowed(&self, address: IpAddr) -> bool {
        self.allow.iter().any(|net| net.contains(&address))
    }

    fn denies_one(&self, address: IpAddr) -> Option<&'static str> {
        if self.is_allowed(address) {
            return None;
        }
        let (never, private) = match address {
            IpAddr::V4(v4) => (never_v4(v4), private_v4(v4)),
            IpAddr::V6(v6) => (never_v6(v6), private_v6(v6)),
        };
        never.or(private.filter(|_| self.guard == GuardLevel::Strict))
    }

    /// Returns why a URL must not be called, if its host is an address. None: the URL may be called, or its host is a
    /// name. A name must be resolved before it is checked.
    pub fn denies_literal(&self, url: &str) -> Option<String> {
        let uri: Uri = url.parse().ok()?;
        let address = literal(uri.host()?)?;
        self.denies(address).map(|why| refusal(url, address, why))
    }
}

/// Returns the message about a URL that must not be called.
pub fn refusal(url: &str, address: IpAddr, why: &str) -> String {
    format!(
        "{url:?} is at {address}, which is not called: {why} (callback.guard forbids it; callback.allow permits ranges)"
    )
}

/// Returns whether the text of a host shows its address without a look-up: the text is an address, or `localhost` (RFC
/// 6761, 6.3). Call this function only for a host that has a loopback address.
fn is_written_as_loopback(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    literal(host).is_some() || name == "localhost" || name.ends_with(".localhost")
}

/// Parses a host that is an address, in all forms that the system's resolver accepts without a look-up, including
/// `127.1`, `0x7f000001` and `0177.0.0.1` (inet_aton). Returns none for a name.
pub(crate) fn literal(host: &str) -> Option<IpAddr> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = host.parse() {
        return Some(address);
    }
    let number = |part: &str| {
        let lower = part.to_ascii_lowercase();
        let (digits, radix) = match (lower.strip_prefix("0x"), lower.strip_prefix('0')) {
            (Some(""), _) => ("0", 16),
            (Some(hex), _) => (hex, 16),
            (_, Some("")) | (_, None) => (lower.as_str(), 10),
            (_, Some(octal)) => (octal, 8),
        };
        u32::from_str_radix(digits, radix).ok().filter(|_| digits.bytes().all(|b| b.is_ascii_alphanumeric()))
    };
    let parts: Vec<u32> = host.split('.').map(number).collect::<Option<_>>()?;
    let (last, first) = parts.split_last()?;
    let room = 8 * (4 - u32::try_from(first.len()).ok().filter(|n| *n < 4)?);
    if first.iter().any(|n| *n > 255) || room < 32 && *last >> room > 0 {
        return None;
    }
    let high = first.iter().enumerate().fold(0, |all, (n, part)| all | part << (24 - 8 * n));
    Some(IpAddr::V4(Ipv4Addr::from(high | last)))
}

/// Returns the addresses that an address may stand for: the address itself, or the addresses that an IPv6 form
/// contains.
fn meant(address: IpAddr) -> Vec<IpAddr> {
    let IpAddr::V6(v6) = address else { return vec![address] };
    let (s, o) = (v6.segments(), v6.octets());
    let v4 = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match s {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => vec![address],
        // IPv4-compatible, IPv4-mapped (RFC 4291, 2.5.5), IPv4-translated (RFC 2765).
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => vec![v4(high, low)],
        // NAT64 (RFC 6052, 2.1).
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => vec![v4(high, low)],
        // NAT64 of a local network (RFC 8215). The position of the IPv4 address depends on the length of the prefix
        // (RFC 6052, 2.2), which is not known. So all positions are tried. No host has an address that begins with 0.
        // So a position with such an address is left out.
        [0x64, 0xff9b, 1, ..] => {
            let places = [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], [12, 13, 14, 15]];
            let forms = places.map(|place| place.map(|at: usize| o[at])).into_iter();
            forms.filter(|form| form[0] != 0).map(IpAddr::from).chain([address]).collect()
        }
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => vec![v4(high, low)],
        // Teredo (RFC 4380, 4): the address of the server, and the address of the client with inverted bits.
        [0x2001, 0, high, low, _, _, hidden_high, hidden_low] => {
            vec![v4(high, low), v4(!hidden_high, !hidden_low)]
        }
        // ISATAP (RFC 5214, 6.1), with any prefix.
        [.., 0 | 0x200, 0x5efe, high, low] => vec![v4(high, low), address],
        _ => vec![address],
    }
}

fn never_v4(a: Ipv4Addr) -> Option<&'static str> {
    match a.octets() {
        [0, ..] => Some("unspecified"),
        [169, 254, ..] => Some(LINK_LOCAL),
        // Alibaba Cloud; Oracle Cloud (its former address); Azure's WireServer.
        [100, 100, 100, 200] | [192, 0, 0, 192] | [168, 63, 129, 16] => Some(METADATA),
        [224..=239, ..] => Some("multicast"),
        [240..=255, ..] => Some("reserved"),
        // Protocol assignments, documentation (RFC 5737), 6to4 relays (RFC 7526).
        [192, 0, 0 | 2, _] | [198, 51, 100, _] | [203, 0, 113, _] | [192, 88, 99, _] => Some("reserved"),
        _ => None,
    }
}

fn private_v4(a: Ipv4Addr) -> Option<&'static str> {
    let [first, second, ..] = a.octets();
    let carrier_or_bench = matches!((first, second), (100, 64..=127) | (198, 18 | 19));
    if a.is_loopback() { Some("loopback") } else { (a.is_private() || carrier_or_bench).then_some("private") }
}

fn never_v6(a: Ipv6Addr) -> Option<&'static str> {
    match a.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("unspecified"),
        [first, ..] if first & 0xff00 == 0xff00 => Some("multicast"),
        [first, ..] if first & 0xffc0 == 0xfe80 => Some(LINK_LOCAL),
        // AWS (also its name servers and EKS), Google Cloud, Scaleway.
        [0xfd00, 0xec2, ..] | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] | [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42] => {
            Some(METADATA)
        }
        // Documentation (RFC 3849, RFC 9637), discard (RFC 6666), segment routing (RFC 9602), ORCHID (RFC 4843, RFC
        // 7343).
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] | [0x100, 0, 0, 0 | 1, ..] | [0x5f00, ..] => {
            Some("reserved")
        }
        [0x2001, 0x10..=0x2f, ..] => Some("reserved"),
        _ => None,
    }
}

fn private_v6(a: Ipv6Addr) -> Option<&'static str> {
    match a.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("loopback"),
        // Unique local, site-local (deprecated), benchmarks (RFC 5180), NAT64 of a local network.
        [first, ..] if first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfec0 => Some("private"),
        [0x2001, 2, 0, ..] | [0x64, 0xff9b, 1, ..] => Some("private"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(guard: GuardLevel, allow: &[&str], address: &str) -> bool {
        let allow = allow.iter().map(|a| a.parse().unwrap()).collect();
        GuardRules { guard, allow }.denies(address.parse().unwrap()).is_some()
    }

    #[test]
    fn metadata_multicast_unspecified_and_reserved_are_never_called() {
        let never = [
            "169.254.169.254",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "192.0.2.1",
            "::",
            "fe80::1",
            "ff02::1",
            "2001:db8::1",
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "192.88.99.1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fd00:42::42",
            "3fff::1",
            "100::1",
            "5f00::1",
            "2001:20::1",
            "::2",
        ];
        // These are addresses of the same kinds, but each is hidden in another form.
        let hidden = [
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "::ffff:0:169.254.169.254",
            // RFC 6052 with prefixes of 48, 56 and 64 bits, within the prefix of RFC 8215.
            "64:ff9b:1:a9fe:a9:fe00::",
            "64:ff9b:1:12a9:fe:a9fe::",
            "64:ff9b:1:1234:a9:fea9:fe00:0",
            // Teredo: the server, and the client with inverted bits.
            "2001:0:a9fe:a9fe::1",
            "2001:0:808:808:0:0:5601:5601",
            "2606:4700::5efe:169.254.169.254",
            "2606:4700::200:5efe:169.254.169.254",
        ];
        for address in never.iter().chain(&hidden) {
            assert!(denied(GuardLevel::Metadata, &[], address), "{address}");
        }
    }

    #[test]
    fn private_and_loopback_are_called_unless_the_guard_is_strict() {
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "::1",
            "fc00::1",
            "fec0::1",
            "fec0:0:0:ffff::1",
            "feff:ffff::1",
            "::ffff:10.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b::10.0.0.1",
            "2606:4700::5efe:10.0.0.1",
        ] {
            assert!(!denied(GuardLevel::Metadata, &[], address), "{address}");
            assert!(denied(GuardLevel::Strict, &[], address), "{address}");
        }
        let open = [
            "8.8.8.8",
            "2606:4700::1111",
            "172.32.0.1",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
            "100.128.0.1",
        ];
        for address in open {
            assert!(!denied(GuardLevel::Strict, &[], address), "{address}");
        }
    }

    #[test]
    fn allowed_ranges_are_called_whatever_the_guard_says() {
        assert!(!denied(GuardLevel::Strict, &["10.0.0.0/8"], "10.1.2.3"));
        assert!(!denied(GuardLevel::Strict, &["10.0.0.0/8"], "::ffff:10.1.2.3"));
        assert!(denied(GuardLevel::Strict, &["10.0.0.0/8"], "192.168.0.1"));
    }

    #[test]
    fn a_name_does_not_lead_to_loopback() {
        let rules = |allow: &[&str]| GuardRules {
            guard: GuardLevel::Metadata,
            allow: allow.iter().map(|a| a.parse().unwrap()).collect(),
        };
        for (host, address, denied) in [
            ("rebound.example", "127.0.0.1", true),
            ("rebound.example", "::1", true),
            ("rebound.example", "::ffff:127.0.0.1", true),
            ("notlocalhost", "127.0.0.1", true),
            ("rebound.example", "10.0.0.1", false),
            ("rebound.example", "169.254.169.254", true),
            ("localhost", "127.0.0.1", false),
            ("shop.LOCALHOST.", "::1", false),
            ("127.0.0.1", "127.0.0.1", false),
            ("[::1]", "::1", false),
            ("0x7f.1", "127.0.0.1", false),
        ] {
            let why = rules(&[]).denies_host(host, address.parse().unwrap());
            assert_eq!(why.is_some(), denied, "{host} {address}: {why:?}");
        }
        assert_eq!(rules(&["127.0.0.0/8"]).denies_host("h", "127.0.0.1".parse().unwrap()), None);
    }

    #[test]
    fn a_host_that_is_an_address_in_any_form_is_seen() {
        for (host, address) in [
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]", "::1"),
            ("2852039166", "169.254.169.254"),
            ("0xa9fea9fe", "169.254.169.254"),
            ("0x7f.1", "127.0.0.1"),
            ("0177.0.0.1", "127.0.0.1"),
            ("127.1", "127.0.0.1"),
            ("1.2.772", "1.2.3.4"),
            ("0", "0.0.0.0"),
        ] {
            assert_eq!(literal(host), Some(address.parse().unwrap()), "{host}");
        }
        for name in [
            "localhost",
            "a.1",
            "1.2.3.4.5",
            "256.1.1.1",
            "1.2.3.256",
            "1..2",
            "",
            "0x",
            "08.1.1.1",
            "1.+2",
            "4294967296",
        ] {
            // Some resolvers read a bare 0x as zero.
            assert!(literal(name).is_none_or(|a| a.is_unspecified()), "{name}");
        }
        let rules = GuardRules { guard: GuardLevel::Metadata, allow: Vec::new() };
        assert!(rules.denies_literal("http://u@2852039166:80/x").unwrap().contains("169.254.169.254"));
        assert!(rules.denies_literal("http://[::ffff:a9fe:a9fe]/").is_some());
        for url in [
            "http://169.254.169.254@example.com/",
            "http://127.0.0.1/",
            "http://169.254.169.254.example.com/",
        ] {
            assert_eq!(rules.denies_literal(url), None, "{url}");
        }
    }
}
