//! The credentials in a topic: they may be in the URLs of `callback` and `on_done`, and in the values of its headers. Only
//! administrators see them.
//!
//! A caller may be allowed to change a topic, but not to see its credentials. Such a caller could send the credentials
//! to a receiver of its own. So if a caller that is not an administrator changes the callback's host, the credentials
//! are removed.

use std::borrow::Cow;

use axum::http::Uri;
use axum::http::uri::Authority;

use super::api::CallerContext;
use model::scope::RequiredAccess;
use model::topic::Topic;

/// What is shown in place of a credential.
const MASK: &str = "***";

impl CallerContext {
    /// Whether the requester may see the credentials of topics.
    pub(super) fn sees_credentials(&self) -> bool {
        self.permits(RequiredAccess::Admin)
    }

    /// Returns a topic as the requester may see it.
    pub(super) fn shown<'a>(&self, topic: &'a Topic) -> Cow<'a, Topic> {
        let mut shown = Cow::Borrowed(topic);
        if !self.sees_credentials() {
            mask(shown.to_mut());
        }
        shown
    }
}

/// Replaces the credentials of a topic by `***`: the user and the password of its URLs, the values of their queries, and
/// the values of the headers. A part of the query without a name counts as a value.
fn mask(topic: &mut Topic) {
    for url in [&mut topic.callback, &mut topic.on_done] {
        *url = masked_url(url).into_owned();
    }
    topic.headers.values_mut().for_each(|value| MASK.clone_into(value));
}

/// Masks the credentials in a request that was sent. `request` has its method and target. The values of the query are
/// masked in the target. `own` has the names of the topic's headers. The values of these headers are masked.
pub(super) fn mask_sent(request: &mut String, headers: &mut [(String, String)], own: &[String]) {
    *request = masked_url(request).into_owned();
    for (name, value) in headers {
        if own.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            MASK.clone_into(value);
        }
    }
}

fn masked_url(url: &str) -> Cow<'_, str> {
    let (rest, query) = url.split_once('?').map_or((url, None), |(rest, query)| (rest, Some(query)));
    let user = rest.split_once("://").and_then(|(scheme, behind)| {
        let authority = behind.split('/').next().unwrap_or(behind);
        let (_, host) = authority.rsplit_once('@')?;
        Some((scheme, host, &behind[authority.len()..]))
    });
    if user.is_none() && query.is_none() {
        return url.into();
    }
    let mut masked = user
        .map_or_else(|| rest.to_owned(), |(scheme, host, path)| format!("{scheme}://{MASK}@{host}{path}"));
    if let Some(query) = query {
        let names: Vec<String> = query
            .split('&')
            .map(|part| {
                part.split_once('=').map_or_else(|| MASK.to_owned(), |(name, _)| format!("{name}={MASK}"))
            })
            .collect();
        masked += &format!("?{}", names.join("&"));
    }
    masked.into()
}

/// Returns the scheme, the host and the port of a URL. None: the text is not a complete URL.
fn place(url: &str) -> Option<(String, String, Option<u16>)> {
    let uri: Uri = url.parse().ok()?;
    let host = uri.host()?.to_ascii_lowercase();
    Some((uri.scheme_str()?.to_ascii_lowercase(), host, uri.authority().and_then(Authority::port_u16)))
}

/// Replaces each `***` in a URL by the value at the same place in another URL: the user and the password, and the
/// values of the query.
fn unmasked_url(url: &str, before: &str) -> String {
    fn query(url: &str) -> impl Iterator<Item = &str> {
        url.split_once('?').map_or("", |(_, query)| query).split('&')
    }
    fn user(url: &str) -> Option<&str> {
        let authority = url.split_once("://")?.1.split(['/', '?']).next()?;
        Some(authority.rsplit_once('@')?.0)
    }
    let (rest, own_query) = url.split_once('?').map_or((url, None), |(rest, query)| (rest, Some(query)));
    let mut unmasked = match user(before) {
        Some(known) if user(url) == Some(MASK) => {
            rest.replacen(&format!("://{MASK}@"), &format!("://{known}@"), 1)
        }
        _ => rest.to_owned(),
    };
    if let Some(own_query) = own_query {
        let mut nameless = query(before).filter(|known| !known.contains('='));
        let mut value = |part: &str| {
            if part == MASK {
                return nameless.next().map(str::to_owned);
            }
            let name = part.strip_suffix(MASK).filter(|name| name.ends_with('='))?;
            query(before).find(|known| known.starts_with(name)).map(str::to_owned)
        };
        let parts: Vec<String> =
            own_query.split('&').map(|part| value(part).unwrap_or_else(|| part.to_owned())).collect();
        unmasked += &format!("?{}", parts.join("&"));
    }
    unmasked
}

/// Completes a change of a topic by somebody who does not see its credentials. A value `***` stands for the value that
/// the topic had before. If the callback now has another scheme, host or port, the topic keeps no credentials of the
/// old callback and no old headers. The credentials in the URL of `on_done` are kept if the scheme, host and port of
/// `on_done` stay the same.
pub(super) fn restore(before: &Topic, changed: &mut Topic) {
    let stays = place(&changed.callback) == place(&before.callback);
    if stays {
        changed.callback = unmasked_url(&changed.callback, &before.callback);
    }
    if place(&changed.on_done) == place(&before.on_done) {
        changed.on_done = unmasked_url(&changed.on_done, &before.on_done);
    }
    changed.headers.retain(|name, value| {
        let own = before.headers.get(name);
        match own {
            Some(own) if *value == MASK && stays => value.clone_from(own),
            Some(own) if value == own => return stays,
            _ if *value == MASK => return false,
            _ => {}
        }
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::job::TopicName;

    fn topic(callback: &str, headers: &[(&str, &str)]) -> Topic {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Topic { headers, ..Topic::new(TopicName::new("t").unwrap(), callback) }
    }

    #[test]
    fn credentials_are_masked_and_nothing_else() {
        for (url, expected) in [
            ("http://h/p", "http://h/p"),
            ("https://u:p@h:1/a@b", "https://***@h:1/a@b"),
            ("http://h/p?key=1&sk_live_1&b=2", "http://h/p?key=***&***&b=***"),
            ("http://u@h?a=b@c", "http://***@h?a=***"),
        ] {
            let mut shown = topic(url, &[("authorization", "Bearer x")]);
            shown.on_done = url.to_owned();
            mask(&mut shown);
            assert_eq!(shown.on_done, expected);
            assert_eq!((shown.callback.as_str(), shown.headers["authorization"].as_str()), (expected, MASK));
        }
    }

    #[test]
    fn a_change_of_the_host_takes_no_credentials_along() {
        let before = topic("http://u:p@h:1/a?k=1", &[("authorization", "secret"), ("x-shop", "7")]);
        let change = |callback: &str, headers: &[(&str, &str)]| {
            let mut changed = topic(callback, headers);
            restore(&before, &mut changed);
            (
                changed.callback,
                changed.headers.into_iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>(),
            )
        };
        let masked = &[("authorization", MASK), ("x-shop", MASK)][..];
        // The topic is sent back as it was shown, or with another path.
        let whole = vec!["authorization=secret".to_owned(), "x-shop=7".to_owned()];
        assert_eq!(change("http://***@h:1/a?k=***", masked), (before.callback.clone(), whole.clone()));
        assert_eq!(change("http://H:1/other", masked), ("http://H:1/other".to_owned(), whole.clone()));
        // Each part of the URL that is still masked gets its old value back.
        let moved = change("http://***@h:1/b?new=1&k=***", masked);
        assert_eq!(moved, ("http://u:p@h:1/b?new=1&k=1".to_owned(), whole.clone()));
        let bare = topic("http://h/a?k=1&sk_live_1", &[]);
        let mut changed = topic("http://h/b?***&k=***", &[]);
        restore(&bare, &mut changed);
        assert_eq!(changed.callback, "http://h/b?sk_live_1&k=1");
        // The same rule applies to the URL of `on_done`.
        let sends = |on_done: &str| Topic { on_done: on_done.to_owned(), ..topic("http://h/", &[]) };
        let restored = |on_done: &str| {
            let mut changed = sends(on_done);
            restore(&sends("https://u:p@h/a?k=1"), &mut changed);
            changed.on_done
        };
        assert_eq!(restored("https://***@h/b?k=***"), "https://u:p@h/b?k=1");
        assert_eq!(restored("https://evil/b?k=***"), "https://evil/b?k=***");
        for elsewhere in ["http://evil:1/a", "http://h:2/a", "https://h:1/a"] {
            assert_eq!(change(elsewhere, masked).1, Vec::<String>::new(), "{elsewhere}");
            // A PATCH that does not name the old headers leaves them in the changed topic. `restore` removes the old
            // headers. It keeps a header that the topic did not have before.
            let kept = &[("authorization", "secret"), ("x-shop", "7"), ("x-new", "1")];
            assert_eq!(change(elsewhere, kept).1, ["x-new=1"], "{elsewhere}");
        }
        assert_eq!(change("http://h:1/a", &[("x-other", MASK)]).1, Vec::<String>::new());
        assert_eq!(change("http://h:1/a", &[("x-shop", "8")]).1, ["x-shop=8"]);
    }
}
