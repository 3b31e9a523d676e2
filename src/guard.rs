//! Which addresses may be called. Pure: decides on an address, after the forms that hide another one are undone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::settings::{Callback, Guard};

/// The guard's rules.
#[derive(Debug, Clone)]
pub struct Rules {
    guard: Guard,
    allow: Vec<IpNet>,
}

impl Rules {
    /// The rules of the settings.
    pub fn new(callback: &Callback) -> Rules {
        Rules { guard: callback.guard, allow: callback.allow.clone() }
    }

    /// Why an address is not called; none: it may be.
    pub fn denies(&self, address: IpAddr) -> Option<&'static str> {
        let address = unwrapped(address);
        if self.allow.iter().any(|net| net.contains(&address)) {
            return None;
        }
        let (never, private) = match address {
            IpAddr::V4(v4) => (never_v4(v4), private_v4(v4)),
            IpAddr::V6(v6) => (never_v6(v6), private_v6(v6)),
        };
        never.or(private.filter(|_| self.guard == Guard::Strict))
    }
}

/// The address that an IPv6 form stands for: IPv4-mapped and -compatible, NAT64 (RFC 6052, RFC 8215), 6to4 (RFC 3056).
fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let s = v6.segments();
    let v4 = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match s {
        [0, 0, 0, 0, 0, 0xffff, high, low] => v4(high, low),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => v4(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x64, 0xff9b, 1, _, _, _, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        _ => address,
    }
}

fn never_v4(a: Ipv4Addr) -> Option<&'static str> {
    let [first, second, third, _] = a.octets();
    match (first, second, third) {
        (0, ..) => Some("unspecified"),
        (169, 254, _) => Some("link-local, where clouds keep their metadata"),
        (224..=239, ..) => Some("multicast"),
        (240.., ..) => Some("reserved"),
        (192, 0, 0 | 2) | (198, 51, 100) | (203, 0, 113) => Some("reserved"),
        _ => None,
    }
}

fn private_v4(a: Ipv4Addr) -> Option<&'static str> {
    let [first, second, ..] = a.octets();
    let carrier_or_bench = matches!((first, second), (100, 64..=127) | (198, 18 | 19));
    if a.is_loopback() { Some("loopback") } else { (a.is_private() || carrier_or_bench).then_some("private") }
}

fn never_v6(a: Ipv6Addr) -> Option<&'static str> {
    let s = a.segments();
    if a.is_unspecified() {
        Some("unspecified")
    } else if a.is_multicast() {
        Some("multicast")
    } else if s[0] & 0xffc0 == 0xfe80 || a == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254) {
        Some("link-local, where clouds keep their metadata")
    } else {
        (s[0] == 0x2001 && s[1] == 0xdb8 || s[0] == 0x100 && s[1..4] == [0; 3]).then_some("reserved")
    }
}

fn private_v6(a: Ipv6Addr) -> Option<&'static str> {
    let first = a.segments()[0];
    if a.is_loopback() {
        Some("loopback")
    } else {
        (first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfec0).then_some("private")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(guard: Guard, allow: &[&str], address: &str) -> bool {
        let allow = allow.iter().map(|a| a.parse().unwrap()).collect();
        Rules { guard, allow }.denies(address.parse().unwrap()).is_some()
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
            "fd00:ec2::254",
        ];
        // Hidden in other forms.
        let hidden = [
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "2002:a9fe:a9fe::1",
        ];
        for address in never.iter().chain(&hidden) {
            assert!(denied(Guard::Metadata, &[], address), "{address}");
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
            "::ffff:10.0.0.1",
        ] {
            assert!(!denied(Guard::Metadata, &[], address), "{address}");
            assert!(denied(Guard::Strict, &[], address), "{address}");
        }
        for address in ["8.8.8.8", "2606:4700::1111", "172.32.0.1"] {
            assert!(!denied(Guard::Strict, &[], address), "{address}");
        }
    }

    #[test]
    fn allowed_ranges_are_called_whatever_the_guard_says() {
        assert!(!denied(Guard::Strict, &["10.0.0.0/8"], "10.1.2.3"));
        assert!(!denied(Guard::Strict, &["10.0.0.0/8"], "::ffff:10.1.2.3"));
        assert!(denied(Guard::Strict, &["10.0.0.0/8"], "192.168.0.1"));
    }
}
