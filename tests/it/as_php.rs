//! dq reads dates, flags and answers as PHP does: the same questions are put to both. The tables were made with PHP
//! 8.2.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::support::Sink;
use cli::HandlerAnswer;
use delivery::callback::{Caller, Delivery, Verdict};
use jiff::tz::TimeZone;
use model::expression::{Answer as ExpressionAnswer, Expression};
use model::job::{Body, Due, JobId, JobKey, LATEST_MS, TopicName};
use model::settings::{CallbackSettings, GuardLevel, TlsClientSettings};
use model::topic::{Success, Topic};
use protocol::LocalClock;
use protocol::dq::{Command as Request, parse};
use serde_json::{Value, json};

/// Puts questions to PHP, and returns its answers.
fn php(questions: &[Value]) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/eval.php");
    let child = Command::new("php").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("php is missing: run `make tools`");
    let mut stdin = child.stdin.take().unwrap();
    let text: String = questions.iter().map(|question| format!("{question}\n")).collect();
    // The script answers while it still reads. So another thread writes the questions.
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let out = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let mut lines =
        std::str::from_utf8(&out.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap());
    let version: Value = lines.next().unwrap();
    println!("PHP {version}");
    assert!(version.as_str().unwrap().starts_with("8."), "the tables were made with PHP 8.2: {version}");
    let answers: Vec<Value> = lines.collect();
    assert_eq!(answers.len(), questions.len());
    answers
}

/// Tuesday, 2025-11-25 17:47:10 in UTC.
const NOW: i64 = 1_764_092_830;

const ZONES: [&str; 4] = ["Asia/Shanghai", "UTC", "Europe/Berlin", "America/New_York"];

/// Returns the moment that dq reads from a `fix_time`, in Unix seconds. None: dq refuses the text.
fn dq_time(text: &str, zone: &TimeZone) -> Option<i64> {
    let add = json!({"cmd": "add", "topic": "t", "id": 1, "body": 1, "fix_time": text}).to_string();
    let clock = LocalClock { zone, now_ms: || NOW * 1000 };
    match parse(add.as_bytes(), clock) {
        Ok(Request::Add(add)) => Some(match add.due.expect("a due time") {
            Due::At(ms) => ms.div_euclid(1000),
            Due::In(span) => NOW + span.as_secs() as i64,
        }),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => {
            assert_eq!(refusal.err, "bad_field", "{text}: {}", refusal.msg);
            None
        }
    }
}

/// Lets dq and PHP read the texts, in all zones. Returns both results for each text and zone.
fn compare<'a>(texts: &[&'a str]) -> Vec<(&'a str, &'static str, Option<i64>, Option<i64>)> {
    let all = || texts.iter().flat_map(|text| ZONES.map(|zone| (*text, zone)));
    let questions: Vec<Value> = all()
        .map(|(text, zone)| json!({"what": "strtotime", "text": text, "zone": zone, "now": NOW}))
        .collect();
    let zones = ZONES.map(|zone| (zone, TimeZone::get(zone).unwrap()));
    let zone_of = |name| &zones.iter().find(|(zone, _)| *zone == name).unwrap().1;
    let row = |((text, zone), php): ((&'a str, &'static str), Value)| {
        let dq = dq_time(text, zone_of(zone));
        // In dq, a text that is only a shift into the past, such as `-1 day`, means now. Also, in dq no time is later
        // than the year 9999 in UTC.
        let meant = |at: i64| if dq == Some(NOW) { at.max(NOW) } else { at.min(LATEST_MS / 1000) };
        (text, zone, dq, php.as_i64().map(meant))
    };
    all().zip(php(&questions)).map(row).collect()
}

/// Texts that PHP reads in a surprising way, or not at all. dq refuses them, so that nobody is surprised.
const REFUSED: [&str; 21] = [
    "0000-00-00 00:00:00",
    "10:00 11:00",
    "10000-01-01",
    "12-25-2026",
    "13:00 pm",
    "1796140250",
    "1999",
    "2026-12-01 2026-12-02",
    "2026-12-01 23:60",
    "2026-12-01 25:00",
    "2026-13-01",
    "2147483648",
    "+1 foo",
    "+1.5 days",
    "3 weekdays ago",
    "@-5",
    "Z",
    "a.m.",
    "back of 7pm",
    "foo",
    "soon",
];

#[test]
fn texts_that_would_surprise_are_refused() {
    for (text, zone, dq, php) in compare(&REFUSED) {
        assert_eq!(dq, None, "{text} in {zone}: PHP says {php:?}");
    }
}

/// At the end of summer time, the clock shows an hour twice. PHP takes the first or the second of these two hours,
/// depending on the zone. dq takes the second hour, so that no job is early.
#[test]
fn an_hour_that_comes_twice_is_the_second_one() {
    let texts = [
        "2026-10-25 02:30:00",
        "2026-10-25 02:30:00 Europe/Berlin",
        "2026-11-01 01:30:00",
        "2027-10-31 02:30:15",
    ];
    let mut twice = 0;
    for (text, zone, dq, php) in compare(&texts) {
        let (dq, php) = (dq.unwrap(), php.unwrap());
        assert!(dq == php || dq == php + 3600, "{text} in {zone}: {dq}, PHP {php}");
        twice += u32::from(dq != php);
    }
    assert!(twice > 0);
}

/// Words of dates. Each text of the test is a random series of these words.
const WORDS: [&str; 60] = [
    "+1 day",
    "-1 day",
    "+2 weeks",
    "1 month",
    "+1 year",
    "90 minutes",
    "+36 hours",
    "-30 sec",
    "ago",
    "now",
    "today",
    "tomorrow",
    "yesterday",
    "noon",
    "midnight",
    "monday",
    "sunday",
    "tue",
    "next",
    "last",
    "this",
    "first",
    "third",
    "week",
    "month",
    "day",
    "day of",
    "monday of",
    "friday of",
    "saturday",
    "2027-01-31",
    "2026/2/30",
    "12/25/2026",
    "25.12.2026",
    "20270228",
    "20270301T0203",
    "31 December 2026",
    "Feb 3, 2028",
    "March 2027",
    "May",
    "10:00",
    "23:59:59",
    "24:00",
    "5 pm",
    "11:30am",
    "12.30",
    "0815",
    "2028",
    "UTC",
    "EST",
    "Europe/Berlin",
    "+0800",
    "-05:00",
    "GMT+2",
    "2026-W53-7",
    "+3 fri",
    "4",
    ",",
    "26-12-01",
    "2029-02",
];

/// A text that dq and PHP both accept has the same meaning in both. So the jobs of clients that used the PHP daemon
/// before are not early or late. (The test leaves out texts that PHP refuses. dq accepts a few of them, because PHP
/// reads their time of day as a year.)
#[test]
fn no_text_means_one_thing_here_and_another_in_php() {
    let mut random = fastrand::Rng::with_seed(22);
    let text = |_| {
        let words: Vec<&str> = (0..random.usize(1..5)).map(|_| WORDS[random.usize(..WORDS.len())]).collect();
        words.join(" ")
    };
    let texts: Vec<String> = (0..10_000).map(text).collect();
    let all = compare(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    let accepted: Vec<_> = all.iter().filter(|(_, _, dq, _)| dq.is_some()).collect();
    let wrong: Vec<_> = accepted.iter().filter(|(_, _, dq, php)| php.is_some() && dq != php).collect();
    println!("{} of {} are accepted, {} of them wrong", accepted.len(), all.len(), wrong.len());
    assert!(wrong.is_empty(), "{:#?}", &wrong[..wrong.len().min(20)]);
    assert!(accepted.len() > all.len() / 4, "{}", accepted.len());
}

#[test]
fn fix_time_means_what_strtotime_makes_of_it() {
    let texts: Vec<&str> =
        include_str!("support/fix_times.txt").lines().filter(|l| !l.starts_with('#')).collect();
    assert!(texts.len() > 150);
    let wrong: Vec<_> =
        compare(&texts).into_iter().filter(|(_, _, dq, php)| dq.is_none() || dq != php).collect();
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), texts.len() * ZONES.len());
}

/// Flags, each with answers that it is applied to. A flag has the meaning that it has in PHP 8, even where PHP 7
/// compared in another way (`0 == "wait"` was true).
const FLAGS: [(&str, &[&str]); 24] = [
    (
        "{res.code} != 0",
        &[r#"{"code":0}"#, r#"{"code":1}"#, r#"{"code":"0"}"#, r#"{"code":"x"}"#, "{}", "[]"],
    ),
    (
        r#"{res.code}==1 && {res.data.state}=="wait""#,
        &[
            r#"{"code":1,"data":{"state":"wait"}}"#,
            r#"{"code":"1","data":{"state":"done"}}"#,
            r#"{"code":1}"#,
        ],
    ),
    (
        r#"{res.code} == "wait""#,
        &[r#"{"code":0}"#, r#"{"code":"wait"}"#, r#"{"code":null}"#, r#"{"code":true}"#],
    ),
    (
        "{res.ok}",
        &[
            r#"{"ok":"0"}"#,
            r#"{"ok":"0.0"}"#,
            r#"{"ok":[]}"#,
            r#"{"ok":[0]}"#,
            r#"{"ok":""}"#,
            r#"{"ok":"false"}"#,
        ],
    ),
    ("!{res.ok}", &[r#"{"ok":1}"#, r#"{"ok":0.0}"#, "{}"]),
    ("{res.n} > 10", &[r#"{"n":9}"#, r#"{"n":"11"}"#, r#"{"n":"abc"}"#, r#"{"n":10.5}"#, r#"{"n":null}"#]),
    ("{res.n} === 1", &[r#"{"n":1}"#, r#"{"n":"1"}"#, r#"{"n":1.0}"#, r#"{"n":true}"#]),
    ("{res.n} !== null", &[r#"{"n":0}"#, r#"{"n":null}"#, "{}"]),
    ("{res.n} <> 2", &[r#"{"n":2}"#, r#"{"n":"2"}"#, r#"{"n":3}"#]),
    ("{res.a} == 1 and {res.b} == 1", &[r#"{"a":1,"b":0}"#, r#"{"a":0,"b":1}"#]),
    ("{res.a} == 1 or {res.b} == 1", &[r#"{"a":1,"b":0}"#, r#"{"a":0,"b":1}"#]),
    ("({res.a} == 1 or {res.b} == 1)", &[r#"{"a":0,"b":1}"#, r#"{"a":0,"b":0}"#]),
    ("{res.a} || {res.b} && {res.c}", &[r#"{"a":0,"b":1,"c":0}"#, r#"{"a":1,"b":0,"c":0}"#]),
    ("{res.n} % 2", &[r#"{"n":4}"#, r#"{"n":5}"#, r#"{"n":"7"}"#, r#"{"n":-3}"#]),
    ("{res.n} % 3 == 1;", &[r#"{"n":4}"#, r#"{"n":5}"#]),
    (
        "strlen({res.s}) > 2",
        &[r#"{"s":"abc"}"#, r#"{"s":"ab"}"#, r#"{"s":"中"}"#, r#"{"s":123}"#, r#"{"s":null}"#],
    ),
    ("count({res.l}) == 2", &[r#"{"l":[1,2]}"#, r#"{"l":[]}"#, r#"{"l":{"a":1,"b":2}}"#]),
    (
        "in_array({res.n}, {res.l})",
        &[r#"{"n":1,"l":[1,2]}"#, r#"{"n":"1","l":[1,2]}"#, r#"{"n":"x","l":[0]}"#],
    ),
    ("isset({res.a.b})", &[r#"{"a":{"b":0}}"#, r#"{"a":{"b":null}}"#, r#"{"a":1}"#, "{}"]),
    ("empty({res.a})", &[r#"{"a":"0"}"#, r#"{"a":"0.0"}"#, r#"{"a":{}}"#, r#"{"a":[0]}"#, "{}"]),
    ("intval({res.s}) == 12", &[r#"{"s":"12abc"}"#, r#"{"s":" 12"}"#, r#"{"s":"abc"}"#, r#"{"s":12.9}"#]),
    (r#"strpos({res.s}, "b") === 1"#, &[r#"{"s":"abc"}"#, r#"{"s":"bbc"}"#, r#"{"s":"xyz"}"#]),
    (r#"strpos({res.s}, "b") == false"#, &[r#"{"s":"abc"}"#, r#"{"s":"bbc"}"#, r#"{"s":"xyz"}"#]),
    (r#"{res.l.0.x} == "1e1""#, &[r#"{"l":[{"x":10}]}"#, r#"{"l":[{"x":"10"}]}"#, r#"{"l":[{"x":"1E1"}]}"#]),
];

#[test]
fn flags_mean_what_php_makes_of_them() {
    let all: Vec<(&str, &str)> =
        FLAGS.iter().flat_map(|(flag, answers)| answers.iter().map(|res| (*flag, *res))).collect();
    let questions: Vec<Value> =
        all.iter().map(|(flag, res)| json!({"what": "flag", "flag": flag, "res": res})).collect();
    let mut wrong = Vec::new();
    for ((flag, res), php) in all.iter().zip(php(&questions)) {
        let expression = Expression::parse_flag(flag).unwrap_or_else(|e| panic!("{flag}: {e}"));
        let json = serde_json::from_str(res).unwrap();
        let dq = expression.holds(ExpressionAnswer { status: 200, res: Some(&json) });
        if php != json!(dq) {
            wrong.push(format!("{flag} of {res}: dq says {dq}, PHP says {php}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// `non_empty` refuses exactly the bodies of answers for which PHP's `empty` is true.
#[test]
fn a_body_is_empty_where_php_says_so() {
    let bodies = ["", "0", "00", "0.0", "ok", " ", "\n", "0\n", "false", "null", "[]", "{}", "\u{0}"];
    let questions: Vec<Value> = bodies.iter().map(|body| json!({"what": "empty", "body": body})).collect();
    let next = Arc::new(Mutex::new(String::new()));
    let answer = Arc::clone(&next);
    let sink = Sink::answering(move |_| HandlerAnswer::new(200, answer.lock().unwrap().as_str()));
    let settings = CallbackSettings {
        guard: GuardLevel::Metadata,
        allow: Vec::new(),
        tls: TlsClientSettings::default(),
    };
    let caller = Caller::new(1, &settings, TimeZone::UTC).unwrap();
    let name = TopicName::new("t").unwrap();
    let topic = Topic { success: Success::NonEmpty, ..Topic::new(name.clone(), sink.url()) };
    let delivery = Delivery {
        key: JobKey { topic: name, id: JobId::new("1").unwrap() },
        body: Body::parse("1").unwrap(),
        attempt: 1,
        due_ms: 0,
        stamp_us: 0,
        headers: Vec::new(),
        destination: None,
        ack_url: None,
    };
    for (body, php) in bodies.iter().zip(php(&questions)) {
        (*body).clone_into(&mut next.lock().unwrap());
        let (verdict, _) = caller.call(&topic, &delivery);
        assert_eq!(json!(verdict != Verdict::Accepted), php, "{body:?}: {verdict:?}");
    }
}
