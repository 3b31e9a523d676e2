//! `dq listen`: shows the callbacks that arrive, with their headers, and checks their signatures.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Args;

use super::receiver::{CallbackReceiver, HandlerAnswer, ReceivedRequest};
use super::show::{plain, short_span};
use delivery::callback::signatures;
use model::topic::signing_key;

/// How far the time of a signature may be from now, in seconds. Standard Webhooks recommends five minutes.
const TOLERANCE_S: i64 = 300;

/// Listen for callbacks, print each with its lateness and headers, and accept it
///
/// Register a topic with the printed URL as its callback to see what dq sends. With --secret, each callback is printed
/// with a line that says whether its signature is valid, invalid or missing. The callback is answered in the same way
/// in all three cases.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dq listen
  dq listen --listen 127.0.0.1:9001 --status 503
  dq listen --secret \"$NEW_SECRET\" --secret \"$OLD_SECRET\"")]
pub struct ListenArguments {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:9000", value_name = "ADDRESS")]
    listen: SocketAddr,

    /// The status to answer with
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..=599))]
    status: u16,

    /// Check the signatures with this secret of the topic; may be given several times, such as for the new and the old
    /// secret. Other users of the host can see it
    #[arg(long = "secret", value_name = "SECRET", value_parser = secret)]
    secrets: Vec<String>,
}

/// Reads a secret. The error message contains no part of the secret.
fn secret(text: &str) -> Result<String, String> {
    signing_key(text).map(|_| text.to_owned()).map_err(|why| format!("the secret {why}"))
}

/// Runs until it is interrupted.
pub fn run(arguments: &ListenArguments) -> Result<()> {
    let (status, secrets) = (arguments.status, arguments.secrets.clone());
    let show = move |call: ReceivedRequest| {
        print!("{}", page(&call, &secrets));
        HandlerAnswer::new(status, "ok\n")
    };
    let receiver = CallbackReceiver::start(arguments.listen, Arc::new(show))
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    println!("listening: http://{}/", receiver.address);
    loop {
        std::thread::park();
    }
}

/// Returns what is printed about a callback: a line with its body, its headers, and whether it is signed.
fn page(call: &ReceivedRequest, secrets: &[String]) -> String {
    let late = call.late_ms().map_or(String::new(), |ms| format!(" {} late", short_span(ms as f64)));
    let query = if call.query.is_empty() { String::new() } else { format!("?{}", call.query) };
    let job = format!(
        "{}:{} attempt {}",
        call.header("dq-topic"),
        call.header("dq-job-id"),
        call.header("dq-attempt")
    );
    let mut text = format!("{} {}{query} {job}{late}: {}\n", call.method, call.path, call.body);
    let mut headers: Vec<_> = call.headers.iter().collect();
    headers.sort();
    for (name, value) in headers {
        text += &format!("    {name}: {}\n", plain(value));
    }
    if !secrets.is_empty() {
        text += &format!("  signature: {}\n", SignatureCheck::new(call, secrets));
    }
    text + "\n"
}

/// Whether a callback is signed with one of the secrets.
#[derive(Debug, PartialEq, Eq)]
enum SignatureCheck {
    /// The callback is signed. `numbers`: which of the given secrets have made a signature, counted from 1. `of`: how
    /// many secrets were given.
    Valid { numbers: Vec<usize>, of: usize },
    /// One of the headers of Standard Webhooks is missing.
    Missing(&'static str),
    /// The timestamp is not a number.
    NoTimestamp,
    /// The signature was made with one of the secrets, but its time differs from the present by this number of seconds.
    WrongTime(i64),
    /// None of the secrets has made a signature of the callback.
    Invalid,
}

impl SignatureCheck {
    fn new(call: &ReceivedRequest, secrets: &[String]) -> SignatureCheck {
        let names = ["webhook-signature", "webhook-id", "webhook-timestamp"];
        if let Some(missing) = names.into_iter().find(|name| call.header(name).is_empty()) {
            return SignatureCheck::Missing(missing);
        }
        let [given, id, timestamp] = names.map(|name| call.header(name));
        let Ok(timestamp_s) = timestamp.parse::<i64>() else { return SignatureCheck::NoTimestamp };
        let is_signed = |secret: &String| {
            let wanted = signatures(std::slice::from_ref(secret), id, timestamp_s, &call.bytes);
            given.split(' ').any(|given| Some(given) == wanted.as_deref())
        };
        let away_s = call.at_ms / 1000 - timestamp_s;
        let numbers: Vec<usize> = (1..).zip(secrets).filter(|(_, s)| is_signed(s)).map(|(n, _)| n).collect();
        match numbers.is_empty() {
            true => SignatureCheck::Invalid,
            false if away_s.abs() > TOLERANCE_S => SignatureCheck::WrongTime(away_s),
            false => SignatureCheck::Valid { numbers, of: secrets.len() },
        }
    }
}

impl fmt::Display for SignatureCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SignatureCheck::Valid { of: 1, .. } => write!(f, "valid"),
            SignatureCheck::Valid { numbers, of } => {
                let named: Vec<String> = numbers.iter().map(usize::to_string).collect();
                let word = if named.len() == 1 { "secret" } else { "secrets" };
                write!(f, "valid ({word} {} of {of})", named.join(" and "))
            }
            SignatureCheck::Missing(name) => write!(f, "missing (there is no header {name})"),
            SignatureCheck::NoTimestamp => write!(f, "invalid (webhook-timestamp is not in Unix seconds)"),
            SignatureCheck::WrongTime(s) => {
                write!(
                    f,
                    "invalid (its timestamp is {} s from now; at most {TOLERANCE_S} s are accepted)",
                    s.abs()
                )
            }
            SignatureCheck::Invalid => write!(f, "invalid (it was not made with this secret and this body)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    /// Returns a call with the example of the specification. `changed` has the headers that are different.
    fn call(changed: &[(&str, &str)], at_s: i64) -> ReceivedRequest {
        let mut headers: std::collections::HashMap<String, String> = [
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", "1614265330"),
            ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
            ("x-note", "a\tb"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        for (name, value) in changed {
            headers.insert((*name).to_owned(), (*value).to_owned());
        }
        let body = "{\"test\": 2432232314}".to_owned();
        ReceivedRequest {
            method: "POST".into(),
            path: "/".into(),
            query: String::new(),
            headers,
            bytes: body.clone().into_bytes(),
            body,
            at_ms: at_s * 1000,
        }
    }

    #[test]
    fn a_signature_is_valid_invalid_or_missing() {
        const NOW: i64 = 1_614_265_330;
        let check = |call: &ReceivedRequest, secrets: &[&str]| {
            let secrets: Vec<String> = secrets.iter().map(|secret| (*secret).to_owned()).collect();
            SignatureCheck::new(call, &secrets).to_string()
        };
        let signed = call(&[], NOW + 300);
        assert_eq!(check(&signed, &[SECRET]), "valid");
        assert_eq!(check(&signed, &["another one", SECRET]), "valid (secret 2 of 2)");
        assert_eq!(check(&signed, &[SECRET, SECRET, "another one"]), "valid (secrets 1 and 2 of 3)");
        assert!(check(&signed, &["another one"]).starts_with("invalid (it was not made"));
        let with_two =
            call(&[("webhook-signature", "v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")], NOW);
        assert_eq!(check(&with_two, &[SECRET]), "valid");
        let altered = ReceivedRequest { bytes: b"{}".to_vec(), ..call(&[], NOW) };
        assert!(check(&altered, &[SECRET]).starts_with("invalid (it was not made"));
        assert!(check(&call(&[], NOW + 301), &[SECRET]).starts_with("invalid (its timestamp is 301 s"));
        assert!(check(&call(&[], NOW - 301), &[SECRET]).starts_with("invalid (its timestamp is 301 s"));
        assert!(
            check(&call(&[("webhook-timestamp", "soon")], NOW), &[SECRET])
                .starts_with("invalid (webhook-time")
        );
        let unsigned = call(&[("webhook-signature", "")], NOW);
        assert_eq!(check(&unsigned, &[SECRET]), "missing (there is no header webhook-signature)");
    }

    #[test]
    fn headers_are_shown_and_signatures_only_with_a_secret() {
        let call = call(&[], 1_614_265_330);
        let text = page(&call, &[]);
        assert!(text.contains("\n    webhook-timestamp: 1614265330\n    x-note: a\\tb\n"), "{text}");
        assert!(!text.contains("signature: valid"), "{text}");
        assert!(page(&call, &[SECRET.to_owned()]).ends_with("\n  signature: valid\n\n"), "{text}");
    }

    #[test]
    fn a_secret_that_cannot_be_one_is_refused() {
        assert!(secret("whsec_short").unwrap_err().starts_with("the secret "));
        assert_eq!(secret(SECRET).unwrap(), SECRET);
    }
}
