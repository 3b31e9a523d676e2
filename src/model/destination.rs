//! The destination of a job that does not go to the unchanged callback URL of its topic: the rules for the job's path
//! or URL, and the URL that is called. Pure.
//!
//! A job may be added by somebody who may not change its topic. So a path never leads to another host or out of the
//! path of the callback. This rule also holds if a receiver or a proxy unescapes the path several times. A URL leads
//! only to hosts that the topic lists. The rules are checked when the job is added, and again for each delivery,
//! because the topic may have changed.

use std::borrow::Cow;

use http::Uri;

use crate::topic::Topic;

/// The longest path or URL of a job, in bytes.
pub const DESTINATION_MAX: usize = 1024;

/// How often a path is unescaped to look for segments that lead out of the callback's path. A path with more layers of
/// escapes is refused.
const LAYERS_MAX: usize = 3;

/// Where a job goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A path, a query, or a path with a query. It is appended to the callback of the topic.
    Path(String),
    /// A URL that is called in place of the callback of the topic.
    Url(String),
}

/// Why a destination is refused, and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDestination {
    /// The destination has more than [`DESTINATION_MAX`] bytes.
    #[error("it has more than {DESTINATION_MAX} bytes")]
    TooLong,
    /// The path does not begin with a slash or a question mark.
    #[error("it must begin with / or ?, such as \"/merchants/7?x=1\"")]
    Beginning,
    /// A character that must be escaped in a URL, or is not allowed at all. Holds the character.
    #[error("{0:?} must be escaped: letters, digits and -._~!$&'()*+,;=:/?% are accepted")]
    Character(char),
    /// A percent sign without two hexadecimal digits.
    #[error("a % is not followed by two hexadecimal digits (a percent sign itself is %25)")]
    Escape,
    /// The path has more than [`LAYERS_MAX`] layers of escapes.
    #[error("it is escaped more than {LAYERS_MAX} times")]
    Layers,
    /// The unescaped path has a control character, a backslash, or bytes that are not UTF-8.
    #[error("its unescaped form has a control character, a backslash, or bytes that are not UTF-8")]
    Unescaped,
    /// The path has two slashes in a row.
    #[error("it has two slashes in a row")]
    EmptySegment,
    /// The path has a segment such as `..`.
    #[error("it has a segment of dots alone, which leads out of the callback's path")]
    Dots,
    /// Both a path and a URL are given.
    #[error("path and url exclude each other: give one of them")]
    Both,
    /// The URL is not an http or https URL with a host.
    #[error("it is not an http or https URL with a host, such as \"https://shop7.example/hook\"")]
    NoUrl,
    /// The URL has a user or a password.
    #[error("it has a user or a password: credentials belong into the headers of the topic")]
    User,
    /// The topic does not list the host. Holds host and port, and the topic.
    #[error("job_hosts of topic {1} does not list {0}")]
    Host(String, String),
    /// The callback of the topic is https, and the URL is http. Holds the topic.
    #[error("it is http, but the callback of topic {0} is https: use https")]
    Plain(String),
    /// The URL of the callback and the path together are not a URL, or they are a URL with another host.
    #[error("together with the callback of the topic, it is not a valid URL")]
    Joined,
}

impl Destination {
    /// Checks a path and makes a destination from it.
    pub fn from_path(path: &str) -> Result<Destination, InvalidDestination> {
        check_path(path)?;
        Ok(Destination::Path(path.to_owned()))
    }

    /// Checks a URL and makes a destination from it. Whether its host is allowed depends on the topic
    /// ([`Destination::url`]).
    pub fn from_url(url: &str) -> Result<Destination, InvalidDestination> {
        parse_url(url)?;
        Ok(Destination::Url(url.to_owned()))
    }

    /// Checks the path or the URL of a job, and makes a destination from it. None: the job has neither a path nor a
    /// URL.
    pub fn from_fields(
        path: Option<&str>,
        url: Option<&str>,
    ) -> Result<Option<Destination>, InvalidDestination> {
        match (path, url) {
            (None, None) => Ok(None),
            (Some(path), None) => Destination::from_path(path).map(Some),
            (None, Some(url)) => Destination::from_url(url).map(Some),
            (Some(_), Some(_)) => Err(InvalidDestination::Both),
        }
    }

    /// Returns the path that is appended to the callback.
    pub fn path(&self) -> Option<&str> {
        match self {
            Destination::Path(path) => Some(path),
            Destination::Url(_) => None,
        }
    }

    /// Returns the URL that is called in place of the callback.
    pub fn own_url(&self) -> Option<&str> {
        match self {
            Destination::Url(url) => Some(url),
            Destination::Path(_) => None,
        }
    }

    /// Returns the name of the field in which clients send the destination.
    pub fn field(&self) -> &'static str {
        match self {
            Destination::Path(_) => "path",
            Destination::Url(_) => "url",
        }
    }

    /// Returns the URL that is called for a job with this destination. The URL depends on the current settings of the
    /// topic.
    pub fn url(&self, topic: &Topic) -> Result<String, InvalidDestination> {
        match self {
            Destination::Path(path) => {
                check_path(path)?;
                let url = join(&topic.callback, path);
                let (ours, joined) = (topic.callback.parse::<Uri>(), url.parse::<Uri>());
                match (ours, joined) {
                    (Ok(ours), Ok(joined)) if is_same_origin(&ours, &joined) => Ok(url),
                    _ => Err(InvalidDestination::Joined),
                }
            }
            Destination::Url(url) => {
                let uri = parse_url(url)?;
                let name = || topic.name.to_string();
                if !topic.lists_host(&uri) {
                    let host = uri.authority().map_or("", |host| host.as_str()).to_owned();
                    return Err(InvalidDestination::Host(host, name()));
                }
                let is_secure = topic.callback.get(..6).is_some_and(|s| s.eq_ignore_ascii_case("https:"));
                if is_secure && uri.scheme_str() != Some("https") {
                    return Err(InvalidDestination::Plain(name()));
                }
                Ok(url.clone())
            }
        }
    }
}

impl Topic {
    /// Returns why a job of the topic may not have this destination. None: the destination is allowed.
    pub fn refuse_destination(&self, destination: &Destination) -> Option<InvalidDestination> {
        match destination {
            // A path fits the callback of every topic, so the topic is not looked at here.
            Destination::Path(path) => check_path(path).err(),
            Destination::Url(_) => destination.url(self).err(),
        }
    }

    /// Returns the URL that is called for a job with this destination. None: the callback of the topic.
    pub fn url_for(&self, destination: Option<&Destination>) -> Result<Cow<'_, str>, InvalidDestination> {
        match destination {
            None => Ok(Cow::Borrowed(&self.callback)),
            Some(destination) => destination.url(self).map(Cow::Owned),
        }
    }
}

fn is_same_origin(a: &Uri, b: &Uri) -> bool {
    a.scheme() == b.scheme() && a.authority() == b.authority()
}

/// Appends a path to a URL. The path is put after the path of the URL. The query of `path` is put after the query of
/// the URL.
fn join(callback: &str, path: &str) -> String {
    let callback = callback.split('#').next().unwrap_or(callback);
    let (place, own) = callback.split_once('?').unwrap_or((callback, ""));
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let place = if path.is_empty() { place } else { place.strip_suffix('/').unwrap_or(place) };
    let queries: Vec<&str> = [own, query].into_iter().filter(|query| !query.is_empty()).collect();
    let mark = if queries.is_empty() { "" } else { "?" };
    format!("{place}{path}{mark}{}", queries.join("&"))
}

/// Checks the URL of a job by the rules that are the same for every topic.
fn parse_url(text: &str) -> Result<Uri, InvalidDestination> {
    if text.len() > DESTINATION_MAX {
        return Err(InvalidDestination::TooLong);
    }
    let (scheme, rest) = text.split_once("://").ok_or(InvalidDestination::NoUrl)?;
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err(InvalidDestination::User);
    }
    check_text(rest)?;
    let uri: Uri = text.parse().map_err(|_| InvalidDestination::NoUrl)?;
    let is_http = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let port = authority.rsplit(']').next().and_then(|rest| rest.split_once(':')).map(|(_, port)| port);
    // Without this check, the default port would later replace an invalid port.
    let is_port = port.is_none() || uri.port_u16().is_some_and(|port| port > 0);
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    if is_http && is_port && has_host && uri.authority().is_some_and(|whole| whole.as_str() == authority) {
        Ok(uri)
    } else {
        Err(InvalidDestination::NoUrl)
    }
}

fn check_path(text: &str) -> Result<(), InvalidDestination> {
    check_text(text)?;
    if !text.starts_with(['/', '?']) {
        return Err(InvalidDestination::Beginning);
    }
    let mut path = text.split('?').next().unwrap_or(text).as_bytes().to_vec();
    for _ in 0..=LAYERS_MAX {
        check_segments(&path)?;
        let unescaped = unescape(&path);
        if unescaped.len() == path.len() {
            return Ok(());
        }
        path = unescaped;
    }
    Err(InvalidDestination::Layers)
}

/// Checks length, characters and escapes. `@` is refused, although it is a legal character of a path, because some
/// programs read the text before an `@` as a user name.
fn check_text(text: &str) -> Result<(), InvalidDestination> {
    if text.len() > DESTINATION_MAX {
        return Err(InvalidDestination::TooLong);
    }
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:/?%".contains(*c);
    if let Some(c) = text.chars().find(|c| !is_plain(c)) {
        return Err(InvalidDestination::Character(c));
    }
    let mut behind = text.split('%').skip(1).map(str::as_bytes);
    let is_escape = |part: &[u8]| part.len() >= 2 && part[..2].iter().all(u8::is_ascii_hexdigit);
    if behind.all(is_escape) { Ok(()) } else { Err(InvalidDestination::Escape) }
}

/// Checks a path in one of its unescaped forms. Some receivers drop the text after a `;` in a segment, and other
/// receivers read this text as a separate segment. Some receivers drop spaces and dots at the end of a segment.
fn check_segments(path: &[u8]) -> Result<(), InvalidDestination> {
    let path = std::str::from_utf8(path).map_err(|_| InvalidDestination::Unescaped)?;
    if path.contains(|c: char| c.is_control() || c == '\\') {
        return Err(InvalidDestination::Unescaped);
    }
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/').peekable();
    while let Some(segment) = segments.next() {
        let mut parts = segment.split(';').map(str::trim);
        let is_dots = |part: &str| !part.is_empty() && part.chars().all(|c| c == '.' || c.is_whitespace());
        if parts.clone().any(is_dots) {
            return Err(InvalidDestination::Dots);
        }
        let name = parts.next().unwrap_or_default();
        let is_dropped = segment.is_empty() || segment.contains(';');
        if name.is_empty() && is_dropped && segments.peek().is_some() {
            return Err(InvalidDestination::EmptySegment);
        }
    }
    Ok(())
}

/// Replaces the escapes of one layer. A percent sign that begins no escape stays as it is.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, more @ ..] = rest {
        let digit = |n: usize| more.get(n).and_then(|b| char::from(*b).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                rest = &more[2..];
            }
            _ => {
                out.push(*first);
                rest = more;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::TopicName;

    fn topic(callback: &str) -> Topic {
        Topic::new(TopicName::new("t").unwrap(), callback)
    }

    #[test]
    fn a_path_is_appended_to_the_callback() {
        for (callback, path, url) in [
            ("https://h", "/a", "https://h/a"),
            ("https://h/", "/a/", "https://h/a/"),
            ("https://h/hooks", "/merchants/7?x=1", "https://h/hooks/merchants/7?x=1"),
            ("https://h/hooks/", "/merchants/7", "https://h/hooks/merchants/7"),
            ("https://h/hooks/", "?x=1", "https://h/hooks/?x=1"),
            ("https://h", "?x=1", "https://h?x=1"),
            ("https://h/hooks?key=k", "/7?x=1&y", "https://h/hooks/7?key=k&x=1&y"),
            ("https://h/hooks?key=k#f", "/7", "https://h/hooks/7?key=k"),
            ("https://h/hooks?", "/7?", "https://h/hooks/7"),
            ("https://u:p%40@h:8443/hooks", "/7", "https://u:p%40@h:8443/hooks/7"),
            ("http://[::1]:9/a", "/b", "http://[::1]:9/a/b"),
            ("https://h", "/", "https://h/"),
            ("https://h", "/a%2Fb/%E4%B8%AD/%20x/100%25", "https://h/a%2Fb/%E4%B8%AD/%20x/100%25"),
            ("https://h", "/a;b=..c/d;v=1.2;x", "https://h/a;b=..c/d;v=1.2;x"),
            ("https://h", "/v1.2/...x/.well-known/a..b", "https://h/v1.2/...x/.well-known/a..b"),
            ("https://h", "?to=../a//b&x=%0a%5c", "https://h?to=../a//b&x=%0a%5c"),
        ] {
            let destination = Destination::from_path(path).unwrap_or_else(|e| panic!("{path}: {e}"));
            assert_eq!(destination.url(&topic(callback)).as_deref(), Ok(url), "{callback} {path}");
        }
    }

    #[test]
    fn a_path_cannot_leave_the_host_or_the_callbacks_path() {
        use InvalidDestination::{
            Beginning, Character, Dots, EmptySegment, Escape, Layers, TooLong, Unescaped,
        };
        let long = format!("/{}", "x".repeat(DESTINATION_MAX));
        for (path, why) in [
            ("", Beginning),
            ("a", Beginning),
            (".evil.example/", Beginning),
            (":80/", Beginning),
            ("@evil.example/", Character('@')),
            ("/@evil.example", Character('@')),
            ("http://evil.example/", Beginning),
            ("%2f..", Beginning),
            ("//evil.example", EmptySegment),
            ("/a//b", EmptySegment),
            ("///", EmptySegment),
            ("/%2fevil.example", EmptySegment),
            ("/%252fevil.example", EmptySegment),
            ("/\\evil.example", Character('\\')),
            ("/%5cevil.example", Unescaped),
            ("/a/%255c..", Unescaped),
            ("/a%255cb", Unescaped),
            ("/..", Dots),
            ("/.", Dots),
            ("/../", Dots),
            ("/a/../../b", Dots),
            ("/a/./b", Dots),
            ("/%2e%2e", Dots),
            ("/.%2e/admin", Dots),
            ("/%2E./admin", Dots),
            ("/%252e%252e/admin", Dots),
            ("/%25252e%25252e/admin", Dots),
            ("/%2525252e%2525252e/admin", Layers),
            ("/a%2f..%2fb", Dots),
            ("/a%2f%2e%2e", Dots),
            ("/..;/admin", Dots),
            ("/..;a=b/admin", Dots),
            ("/..%3b/admin", Dots),
            ("/;..", Dots),
            ("/;../admin", Dots),
            ("/a;../admin", Dots),
            ("/a;b;%2e%2e/admin", Dots),
            ("/%3b..", Dots),
            ("/;a=b/evil.example", EmptySegment),
            ("/a/;/b", EmptySegment),
            ("/..%20/admin", Dots),
            ("/%20../admin", Dots),
            ("/.../admin", Dots),
            ("/..?x", Dots),
            ("/%c0%ae%c0%ae/admin", Unescaped),
            ("/%ff", Unescaped),
            ("/a%00", Unescaped),
            ("/a%0d%0aHost:%20evil", Unescaped),
            ("/a%c2%85", Unescaped),
            ("/a b", Character(' ')),
            ("/a\nb", Character('\n')),
            ("/a\r\nHost: evil", Character('\r')),
            ("/a\0", Character('\0')),
            ("/a\t", Character('\t')),
            ("/中", Character('中')),
            ("/a#f", Character('#')),
            ("?x#f", Character('#')),
            ("?a@b", Character('@')),
            ("/{a}", Character('{')),
            ("/[a]", Character('[')),
            ("/a|b", Character('|')),
            ("/a\"b", Character('"')),
            ("/a%", Escape),
            ("/a%2", Escape),
            ("/a%zz", Escape),
            ("/%u002e%u002e/", Escape),
            ("?x=%", Escape),
            (&long, TooLong),
        ] {
            assert_eq!(Destination::from_path(path), Err(why), "{path:?}");
            // A store may hold a path that was never checked, so the rules are also checked at each delivery.
            let stored = Destination::Path(path.to_owned());
            assert!(stored.url(&topic("https://h/hooks")).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_url_leads_only_to_hosts_that_the_topic_lists() {
        let mut topic = topic("http://h/hooks?key=k");
        topic.job_hosts = ["*.example.com", "shop.example:8443", "https://broken"].map(str::to_owned).into();
        for url in
            ["https://shop7.example.com/hook?x=1&y=%20", "http://shop.example:8443", "HTTP://A.example.com/"]
        {
            let destination = Destination::from_url(url).unwrap();
            assert_eq!(destination.url(&topic).as_deref(), Ok(url));
        }
        let long = format!("https://a.example.com/{}", "x".repeat(DESTINATION_MAX));
        for (url, wrong) in [
            ("", "not an http"),
            ("a.example.com/hook", "not an http"),
            ("//a.example.com/hook", "not an http"),
            ("ftp://a.example.com/", "not an http"),
            ("file:///etc/passwd", "not an http"),
            ("https:///a.example.com", "not an http"),
            ("https://a.example.com:/", "not an http"),
            ("https://a.example.com:0/", "not an http"),
            ("https://a.example.com:99999/", "not an http"),
            ("https://a.example.com evil/", "not an http"),
            ("https://evil.example/", "does not list evil.example"),
            ("https://evil.example/a.example.com", "does not list evil.example"),
            ("https://evil.example?a.example.com", "does not list evil.example"),
            ("https://evil.example#.example.com/", "must be escaped"),
            ("https://evil.example\\.example.com/", "must be escaped"),
            ("https://a.example.com@evil.example/", "user or a password"),
            ("https://u:p@a.example.com/", "user or a password"),
            ("https://a.example.com/a#f", "must be escaped"),
            ("https://a.example.com/a b", "must be escaped"),
            ("https://a.example.com/\r\nHost: x", "must be escaped"),
            ("https://a.example.com/%", "hexadecimal"),
            ("https://169.254.169.254/", "does not list"),
            ("https://broken/", "does not list broken"),
            (&long, "bytes"),
        ] {
            let stored = Destination::Url(url.to_owned());
            let why = stored.url(&topic).expect_err(url).to_string();
            assert!(why.contains(wrong), "{url}: {why}");
            if !wrong.contains("does not list") {
                assert_eq!(Destination::from_url(url).unwrap_err().to_string(), why);
            }
        }
        // The rules use the list and the callback that the topic has at the time of the delivery.
        let stored = Destination::from_url("http://a.example.com/").unwrap();
        assert_eq!(topic.refuse_destination(&stored), None);
        topic.callback = "HTTPS://h/".to_owned();
        assert_eq!(stored.url(&topic), Err(InvalidDestination::Plain("t".to_owned())));
        (topic.callback, topic.job_hosts) = ("http://h/".to_owned(), Vec::new());
        assert!(matches!(stored.url(&topic), Err(InvalidDestination::Host(..))));
        assert_eq!(Destination::from_fields(Some("/a"), Some("http://a/")), Err(InvalidDestination::Both));
    }

    proptest! {
        #[test]
        fn any_accepted_path_stays_below_the_callback(path in "[/?a.%;:2eEfF5c@\\\\#]{0,12}") {
            if let Ok(destination) = Destination::from_path(&path) {
                for callback in ["https://h", "https://u:p@h:8443/hooks", "https://h/hooks/?key=k#f"] {
                    let url = destination.url(&topic(callback)).unwrap();
                    let parsed = url::Url::parse(&url).unwrap();
                    let base = url::Url::parse(callback).unwrap();
                    prop_assert_eq!(parsed.origin(), base.origin());
                    let prefix = base.path().trim_end_matches('/');
                    prop_assert!(parsed.path().starts_with(prefix), "{}", parsed);
                    prop_assert!(base.query().is_none_or(|q| parsed.query().unwrap().starts_with(q)));
                }
            }
        }
    }
}
