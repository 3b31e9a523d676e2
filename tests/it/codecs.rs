//! For any bytes, the codecs do not panic, and they do not lose their place in the stream. A long run:
//! `PROPTEST_CASES=1000000 cargo test --test it codecs`.

use jiff::tz::TimeZone;
use model::fields::{BodyFields, DaemonFields};
use model::job::Body;
use proptest::prelude::*;
use protocol::LocalClock;
use protocol::dq::{Answer, Command, DIGITS_MAX, Framing, HEADER, parse};
use serde_json::{Map, Value, json};

const CLOCK: LocalClock<'_> = LocalClock { zone: &TimeZone::UTC, now_ms: || 0 };

const MAX: usize = 1 << 16;

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((".{0,6}", inner), 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Requests that are almost right: known fields with any values.
fn near_request() -> impl Strategy<Value = Value> {
    let names = [
        "cmd",
        "topic",
        "id",
        "body",
        "fix_time",
        "delay_ms",
        "run_at_ms",
        "priority",
        "on_conflict",
        "max_attempts",
        "jobs",
    ];
    let value = prop_oneof![
        any_json(),
        prop::sample::select(vec![
            json!("add"),
            json!("madd"),
            json!("get"),
            json!("t"),
            json!("high"),
            json!([{}])
        ]),
        "[0-9:/ -]{0,20}".prop_map(Value::from),
    ];
    prop::collection::hash_map(prop::sample::select(names.to_vec()), value, 0..8)
        .prop_map(|m| Value::Object(m.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()))
}

proptest! {
    #[test]
    fn any_bytes_are_cut_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Some(framing) = bytes.first().and_then(|b| Framing::from_first_byte(*b))
            && let Ok(Some(range)) = framing.frame(&bytes, MAX)
        {
            prop_assert!(range.start == HEADER && range.end <= bytes.len());
        }
    }

    #[test]
    fn any_bytes_are_understood_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Err(refusal) = parse(&bytes, CLOCK) {
            let answer: Value = serde_json::from_slice(&Answer::failure(&refusal).to_json()).unwrap();
            prop_assert_eq!(&answer["code"], 0);
            prop_assert!(!answer["msg"].as_str().unwrap().is_empty());
        }
    }

    #[test]
    fn nearly_right_requests_are_understood_or_refused(request in near_request()) {
        match parse(request.to_string().as_bytes(), CLOCK) {
            Ok(Command::Add(add)) => {
                let same: Value = serde_json::from_str(add.body.as_str()).unwrap();
                prop_assert_eq!(&same, &request["body"]);
            }
            Ok(_) => {}
            Err(refusal) => {
                let answer = Answer::failure(&refusal).to_json();
                prop_assert!(answer.len() <= DIGITS_MAX, "a refusal fits into either framing: {}", refusal.msg);
            }
        }
    }

    #[test]
    fn frames_come_out_as_they_went_in(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..8),
        binary in any::<bool>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let framing = if binary { Framing::Binary } else { Framing::Digits };
        let mut bytes = Vec::new();
        for body in &bodies {
            prop_assert!(framing.append(body, &mut bytes));
        }
        // Wherever the stream is cut, the complete frames come out in order.
        let cut = cut.index(bytes.len() + 1);
        let (mut rest, mut seen) = (&bytes[..cut], Vec::new());
        while let Some(range) = framing.frame(rest, MAX).unwrap() {
            seen.push(rest[range.clone()].to_vec());
            rest = &rest[range.end..];
        }
        prop_assert_eq!(&bodies[..seen.len()], &seen[..]);
        if cut == bytes.len() {
            prop_assert_eq!(seen.len(), bodies.len());
        }
    }

    #[test]
    fn any_body_makes_fields(value in any_json(), failures in 0u32..3) {
        let body = Body::parse(&value.to_string()).unwrap();
        let fields = BodyFields::from_body(&body).with(DaemonFields { due_ms: 1, added_ms: 2, failures }, &TimeZone::UTC);
        let shown: Value = serde_json::from_slice(&serde_json::to_vec(&fields).unwrap()).unwrap();
        prop_assert_eq!(&shown["notify_time"], "1970-01-01 00:00:00");
        let form = fields.url_encoded();
        prop_assert!(form.bytes().all(|b| b.is_ascii_graphic()), "{}", form);
        if let Value::Object(members) = &value {
            prop_assert!(members.keys().all(|k| shown.get(k).is_some()));
        }
    }
}
