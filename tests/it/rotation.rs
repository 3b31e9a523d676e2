//! The rotation of a topic's secret: real daemons, the real command line, and the signatures that receivers get.

use std::process::{Command, Output};

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually, topic};
use cli::ReceivedRequest;
use delivery::callback::signatures;
use serde_json::{Value, json};

fn rotate(daemon: &Daemon, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dq"))
        .args(["topics", "rotate-secret"])
        .args(words)
        .args(["--run-dir", daemon.dir.path().join("var/run").to_str().unwrap()])
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap().trim_end().to_owned()
}

/// Adds a job, and returns which of the secrets have signed its callback, in the order of the signatures.
fn signers<'a>(daemon: &Daemon, sink: &Sink, id: &str, secrets: &[&'a str]) -> Vec<&'a str> {
    Http::tcp(daemon).ask("POST", "/v1/topics/t/jobs", &json!({"id": id, "body": 1})).is(201);
    let call: ReceivedRequest = eventually(20 * SECOND, "the call", || {
        sink.calls().into_iter().find(|call| call.header("dq-job-id") == id)
    });
    let at_s = call.header("webhook-timestamp").parse().unwrap();
    let signer = |signature: &str| {
        *secrets
            .iter()
            .find(|secret| {
                let wanted =
                    signatures(&[(**secret).to_owned()], call.header("webhook-id"), at_s, &call.bytes);
                wanted.as_deref() == Some(signature)
            })
            .unwrap_or_else(|| panic!("nobody's signature: {signature}"))
    };
    call.header("webhook-signature").split(' ').map(signer).collect()
}

#[test]
fn an_old_secret_signs_for_the_stated_time_and_then_ends() {
    let sink = Sink::start();
    let mut daemon = Daemon::start("");
    let fields = json!({"name": "t", "callback": sink.url(), "secrets": ["the old secret"]});
    Http::tcp(&daemon).ask("POST", "/v1/topics", &fields).is(201);
    let rotated = rotate(&daemon, &["t", "--keep", "15s"]);
    assert!(rotated.status.success(), "{rotated:?}");
    let new = text(&rotated.stdout);
    assert!(new.starts_with("whsec_") && new.len() == 50, "{new}");
    assert!(text(&rotated.stderr).contains("the old one signs until 20"), "{rotated:?}");
    // All processes know the new secret within two seconds.
    let secrets = [new.as_str(), "the old secret"];
    let mut n = 0;
    eventually(5 * SECOND, "both signatures", || {
        n += 1;
        (signers(&daemon, &sink, &format!("both-{n}"), &secrets) == secrets).then_some(())
    });
    // After a restart, the old secret still ends at the stated time, although nobody changes the topic.
    daemon.stop();
    let daemon = Daemon::again(&daemon);
    let mut http = Http::tcp(&daemon);
    let shown = eventually(30 * SECOND, "the end of the old secret", || {
        let shown: Value = http.get("/v1/topics/t").is(200);
        (shown["secrets"] == 1).then_some(shown)
    });
    assert_eq!(shown["old_secrets_until"], Value::Null);
    // The timestamps of signatures are in whole seconds, so the old secret may still sign for a moment.
    eventually(5 * SECOND, "one signature", || {
        n += 1;
        (signers(&daemon, &sink, &format!("one-{n}"), &secrets) == [new.as_str()]).then_some(())
    });
    // A change of another setting does not bring the old secret back.
    http.ask("PATCH", "/v1/topics/t", &json!({"title": "x", "old_secrets_until": null})).is(200);
    assert_eq!(http.get("/v1/topics/t").is(200)["secrets"], 1);
    // With `--keep 0s`, the old secret ends at once. The audit log has the rotation, and not the secret.
    let rotated = rotate(&daemon, &["t", "--keep", "0s", "--json"]);
    let answer: Value = serde_json::from_slice(&rotated.stdout).unwrap();
    assert_eq!((&answer["secrets"], &answer["old_secrets_until"]), (&json!(1), &Value::Null));
    let audit = http.get("/v1/audit").is(200).to_string();
    assert!(audit.contains("topic.rotate") && !audit.contains("whsec_"), "{audit}");
}

#[test]
fn a_topic_of_the_file_is_rotated_in_the_file() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, "secrets = [\"the old secret\"]"));
    let refused = rotate(&daemon, &["t"]);
    assert_eq!(refused.status.code(), Some(4));
    assert!(
        text(&refused.stderr).contains("as the configuration file has it: change its secrets there"),
        "{refused:?}"
    );
    assert_eq!(rotate(&daemon, &["unknown"]).status.code(), Some(3));
}

#[test]
fn a_rotation_that_is_sent_again_gives_the_same_secret() {
    let daemon = Daemon::start("");
    let mut http = Http::tcp(&daemon);
    let fields = json!({"name": "t", "callback": "http://127.0.0.1:9/", "secrets": ["the old secret"]});
    http.ask("POST", "/v1/topics", &fields).is(201);
    for bad in [json!({"keep": "soon"}), json!({"kept": 1}), json!({"keep": null})] {
        assert_eq!(http.ask("POST", "/v1/topics/t/rotate-secret", &bad).status, 422, "{bad}");
    }
    let again = |http: &mut Http| {
        http.send("POST", "/v1/topics/t/rotate-secret", "idempotency-key: a\r\n", b"").is(200)
    };
    let mut root = Http::unix(&daemon);
    let rotated = [again(&mut root), again(&mut root)];
    assert_eq!(rotated[0], rotated[1]);
    assert_eq!(http.get("/v1/topics/t").is(200)["secrets"], 2);
    // Clients without a token may be different clients. So no client gets the secret of another client.
    let rotated = [again(&mut http), again(&mut http)];
    assert_ne!(rotated[0]["secret"], rotated[1]["secret"]);
    assert_eq!(http.get("/v1/topics/t").is(200)["secrets"], 4);
}

#[test]
fn too_many_rotations_are_refused_with_advice() {
    let daemon = Daemon::start("");
    let mut http = Http::tcp(&daemon);
    http.ask("POST", "/v1/topics", &json!({"name": "t", "callback": "http://127.0.0.1:9/"})).is(201);
    let mut rotate = |body: &Value| http.ask("POST", "/v1/topics/t/rotate-secret", body);
    (0..32).for_each(|_| drop(rotate(&Value::Null).is(200)));
    let refused = rotate(&Value::Null).is(422);
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("more than 32. Wait until 2") && detail.contains("--keep 0s"), "{detail}");
    assert_eq!(rotate(&json!({"keep": "0s"})).is(200)["secrets"], 1);
}
