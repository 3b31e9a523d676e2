//! Pull topics over the TCP port: clients reserve jobs, and report their outcomes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::metrics::{page, samples};
use crate::pull::{costs_nothing_while_clients_wait, five_thousand};
use crate::support::http::Http;
use crate::support::mariadb::MariaDb;
use crate::support::{Daemon, SECOND, SLOTS, add, all_new, eventually, now_ms, on_redis, stats};
use cli::TcpClient;
use nix::sys::signal::Signal;
use protocol::dq::Framing;
use serde_json::{Value, json};

fn pulled(name: &str, more: &str) -> String {
    format!("[[topic]]\nname = \"{name}\"\nmode = \"pull\"\n{more}\n")
}

fn reserve(topic: &str, wait: &str) -> Value {
    json!({"cmd": "reserve", "topic": topic, "wait": wait})
}

/// Returns the data of an answer, which must be a success.
fn data(answer: &Value) -> &Value {
    assert_eq!(answer["code"], 1, "{answer}");
    &answer["data"]
}

/// Returns the jobs of an answer to a reserve.
fn jobs(answer: &Value) -> Vec<Value> {
    data(answer).as_array().unwrap().clone()
}

fn ids(answer: &Value) -> Vec<String> {
    jobs(answer).iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

/// Reserves one job. It must come within some seconds.
fn one(client: &mut TcpClient, topic: &str) -> Value {
    let mut jobs = jobs(&client.ask(&reserve(topic, "10s")).unwrap());
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    jobs.remove(0)
}

/// Reports about a reserved job.
fn report(client: &mut TcpClient, job: &Value, verb: &str, more: Value) -> Value {
    let mut request = json!({"cmd": verb, "topic": job["topic"], "id": job["id"], "token": job["token"]});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    client.ask(&request).unwrap()
}

fn is_refused(answer: &Value, err: &str, hint: &str) {
    assert_eq!((&answer["code"], &answer["err"]), (&json!(0), &json!(err)), "{answer}");
    assert!(answer["msg"].as_str().unwrap().contains(hint), "{answer}");
}

#[test]
fn large_jobs_are_reserved_in_parts_and_none_is_lost() {
    let daemon = Daemon::start(&pulled("t", "max_attempts = 1\nttr = \"1m\""));
    let mut client = daemon.client();
    let body = "x".repeat(400_000);
    for n in 0..100 {
        let mut job = add("t", &n.to_string(), 0);
        job["body"] = json!(body);
        data(&client.ask(&job).unwrap());
    }
    let all = json!({"cmd": "reserve", "topic": "t", "max": 100, "wait": "10s"});
    let mut seen = BTreeSet::new();
    while seen.len() < 100 {
        let some = jobs(&client.ask(&all).unwrap());
        assert!((1..=11).contains(&some.len()), "{} jobs after {}", some.len(), seen.len());
        for job in some {
            assert_eq!(job["attempt"], 1);
            assert!(seen.insert(job["id"].to_string()));
            data(&report(&mut client, &job, "ack", json!({})));
        }
    }
    assert_eq!(stats(&mut client, "t")["dead"], 0);
}

#[test]
fn jobs_are_reserved_and_settled_over_tcp() {
    let daemon = Daemon::start(&pulled("t", "max_attempts = 2\nretry = [\"50ms\"]\nttr = \"20s\""));
    let mut client = daemon.client();
    let mut first = add("t", "1", 0);
    first["tags"] = json!(["a"]);
    first["headers"] = json!({"x-a": "7"});
    data(&client.ask(&first).unwrap());
    let job = one(&mut client, "t");
    assert_eq!((&job["topic"], &job["id"], &job["attempt"]), (&json!("t"), &json!("1"), &json!(1)));
    assert_eq!((&job["tags"], &job["headers"]), (&json!(["a"]), &json!({"x-a": "7"})));
    assert_eq!(job["body"], json!({"id": "1"}));
    let left_ms = job["lease_until_ms"].as_i64().unwrap() - now_ms();
    assert!((10_000..=20_100).contains(&left_ms), "{left_ms}");
    let extended = report(&mut client, &job, "extend", json!({"lease": "1h"}));
    assert_eq!(data(&extended)["outcome"], "extended");
    assert!(data(&extended)["until_ms"].as_i64().unwrap() > now_ms() + 3_500_000);
    let nacked = Instant::now();
    let again = json!({"delay": "1s", "reason": "no stock"});
    let answer = report(&mut client, &job, "nack", again.clone());
    assert_eq!(*data(&answer), json!({"topic": "t", "id": "1", "outcome": "retried"}));
    // The same report gets the same answer. A different report is refused.
    assert_eq!(report(&mut client, &job, "nack", again), answer);
    is_refused(&report(&mut client, &job, "ack", json!({})), "gone", "is over");
    let shown = client.ask(&json!({"cmd": "get", "topic": "t", "id": "1"})).unwrap();
    assert_eq!(shown["job"]["log"][0]["error"], "no stock", "{shown}");
    let job = one(&mut client, "t");
    assert!(nacked.elapsed() >= SECOND);
    assert_eq!(job["attempt"], 2);
    assert_eq!(data(&report(&mut client, &job, "nack", json!({})))["outcome"], "dead");
    // A client may reserve a job over one port, and report its outcome over the other port.
    data(&client.ask(&add("t", "2", 0)).unwrap());
    let job = one(&mut client, "t");
    let mut http = Http::unix(&daemon);
    let done = http.ask("POST", "/v1/topics/t/jobs/2/ack", &json!({"token": job["token"]})).is(200);
    assert_eq!(done["outcome"], "done");
    is_refused(&report(&mut client, &job, "ack", json!({})), "gone", "is over");
    let counts = stats(&mut client, "t");
    assert_eq!((counts["leased"], counts["ready"], counts["dead"]), (0, 0, 1));
}

#[test]
fn reports_of_many_jobs_share_transactions() {
    const JOBS: usize = 100;
    let daemon = Daemon::start(&pulled("t", ""));
    let mut client = daemon.client();
    client.send(&(0..JOBS).map(|n| add("t", &n.to_string(), 0)).collect::<Vec<_>>()).unwrap();
    (0..JOBS).for_each(|_| _ = data(&client.receive().unwrap()));
    let mut reserved: Vec<Value> = Vec::new();
    while reserved.len() < JOBS {
        let wanted = json!({"cmd": "reserve", "topic": "t", "max": JOBS - reserved.len(), "wait": "10s"});
        reserved.extend(jobs(&client.ask(&wanted).unwrap()));
    }
    let request =
        |verb: &str, job: &Value| json!({"cmd": verb, "topic": "t", "id": job["id"], "token": job["token"]});
    let calls = || {
        let is_settle =
            |name: &str| name.starts_with("dq_store_latency_seconds_count") && name.contains("\"settle\"");
        samples(&page(&daemon)).iter().filter(|(name, _)| is_settle(name)).map(|(_, n)| n).sum::<f64>()
    };
    let before = calls();
    // Reports about one job are carried out in their order, also in one batch with other reports.
    let first = &reserved[0];
    let mut requests: Vec<Value> = ["extend", "ack", "ack", "nack"].map(|verb| request(verb, first)).into();
    requests.extend(reserved[1..].iter().map(|job| request("ack", job)));
    client.send(&requests).unwrap();
    let mut answers = requests.iter().map(|_| client.receive().unwrap()).collect::<Vec<_>>().into_iter();
    for outcome in ["extended", "done", "done"] {
        assert_eq!(data(&answers.next().unwrap())["outcome"], outcome);
    }
    is_refused(&answers.next().unwrap(), "gone", "is over");
    for (answer, job) in answers.zip(&reserved[1..]) {
        assert_eq!((&data(&answer)["id"], &answer["data"]["outcome"]), (&job["id"], &json!("done")));
    }
    let calls = calls() - before;
    assert!((2.0..30.0).contains(&calls), "{calls} calls of the store");
    assert_eq!(stats(&mut client, "t")["leased"], 0);
}

#[test]
fn a_job_has_its_own_time_to_run() {
    let more = "ttr = \"20s\"\nretry = [\"50ms\"]";
    let daemon = Daemon::start(&pulled("t", more));
    let (mut client, mut http) = (daemon.client(), Http::unix(&daemon));
    let left_ms = |job: &Value| job["lease_until_ms"].as_i64().unwrap() - now_ms();
    let mut short = add("t", "short", 0);
    short["ttr"] = json!("700ms");
    data(&client.ask(&short).unwrap());
    let shown = client.ask(&json!({"cmd": "get", "topic": "t", "id": "short"})).unwrap();
    assert_eq!(shown["job"]["ttr_ms"], 700);
    // The lease of the job lasts for the job's own `ttr`, also after a retry. A client that names a time in `lease`
    // gets a lease of that time.
    let begun = Instant::now();
    let job = one(&mut client, "t");
    assert!(left_ms(&job) <= 5_000, "{job}");
    let job = one(&mut client, "t");
    assert!((Duration::from_millis(690)..10 * SECOND).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(job["attempt"], 2);
    report(&mut client, &job, "nack", json!({}));
    let job =
        jobs(&client.ask(&json!({"cmd": "reserve", "topic": "t", "wait": "9s", "lease": "1h"})).unwrap());
    assert!(left_ms(&job[0]) > 3_000_000, "{job:?}");
    data(&report(&mut client, &job[0], "ack", json!({})));
    // This job has a long `ttr`. A change of other fields of the job keeps this `ttr`.
    let long = json!({"id": "long", "body": 1, "ttr": "2h", "delay": "1h"});
    http.ask("POST", "/v1/topics/t/jobs", &long).is(201);
    http.ask("PATCH", "/v1/topics/t/jobs/long", &json!({"headers": {"x-a": "1"}, "delay": 0})).is(204);
    assert_eq!(http.get("/v1/topics/t/jobs/long").is(200)["ttr_ms"], 7_200_000);
    for (given, shown) in
        [(json!("3h"), json!(10_800_000)), (Value::Null, Value::Null), (json!("2h"), json!(7_200_000))]
    {
        http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "put", "body": 1, "ttr": "1h", "delay": "1h"}));
        http.ask("PATCH", "/v1/topics/t/jobs/put", &json!({"ttr": given})).is(204);
        assert_eq!(http.get("/v1/topics/t/jobs/put").is(200)["ttr_ms"], shown);
    }
    let refused = http.ask("PATCH", "/v1/topics/t/jobs/put", &json!({"ttr": "1ms"}));
    refused.is_problem(422, "bad_field", Some("ttr"));
    let job = one(&mut client, "t");
    assert!(left_ms(&job) > 7_100_000, "{job}");
    let extended = report(&mut client, &job, "extend", json!({}));
    assert!(data(&extended)["until_ms"].as_i64().unwrap() > now_ms() + 7_100_000, "{extended}");
    let refused = http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "x", "body": 1, "ttr": "25h"}));
    refused.is_problem(422, "bad_field", Some("ttr"));
}

#[test]
fn what_cannot_be_reserved_or_reported_is_refused() {
    let push = "[[topic]]\nname = \"push\"\ncallback = \"http://127.0.0.1:9/\"\n";
    let daemon = Daemon::start(&(pulled("t", "") + &pulled("u", "") + push));
    let mut client = daemon.client();
    let several = |topics: Value| json!({"cmd": "reserve", "topics": topics});
    let many: Vec<String> = (0..33).map(|n| format!("t{n}")).collect();
    for (request, err, hint) in [
        (reserve("none", "0s"), "unknown_topic", "none"),
        (several(json!(["t", "none"])), "unknown_topic", "none"),
        (reserve("push", "0s"), "not_pull", "push"),
        (several(json!(many)), "bad_field", "33 topics"),
        (reserve("t", "61s"), "bad_field", "1m"),
        (json!({"cmd": "reserve", "topic": "t", "max": 101}), "bad_field", "1 to 100"),
        (json!({"cmd": "reserve", "topic": "t", "lease": "1ms"}), "bad_field", "100ms"),
    ] {
        is_refused(&client.ask(&request).unwrap(), err, hint);
    }
    assert!(jobs(&client.ask(&several(json!(["t", "push"]))).unwrap()).is_empty());
    data(&client.ask(&add("t", "1", 0)).unwrap());
    data(&client.ask(&add("u", "1", 0)).unwrap());
    let (job, other) = (one(&mut client, "t"), one(&mut client, "u"));
    for token in [json!("AAAA"), other["token"].clone()] {
        let forged = json!({"topic": "t", "id": "1", "token": token});
        is_refused(&report(&mut client, &forged, "ack", json!({})), "no_ticket", "");
    }
    is_refused(&report(&mut client, &job, "extend", json!({"lease": "25h"})), "bad_field", "1day");
    // A frame with a length of 4 digits is too small for some answers.
    let mut digits = TcpClient::connect(daemon.address(), Framing::Digits).unwrap();
    is_refused(&digits.ask(&reserve("t", "0s")).unwrap(), "bad_frame", "4 bytes");
    assert_eq!(data(&report(&mut digits, &job, "ack", json!({})))["outcome"], "done");
}

#[test]
fn a_delay_of_a_second_is_a_second_over_tcp() {
    let daemon = Daemon::start(&pulled("t", ""));
    let (mut client, mut worker) = (daemon.client(), daemon.client());
    for n in 0..5 {
        // The client already waits when the job is added. So only the due time delays the job.
        worker.send(&[reserve("t", "20s")]).unwrap();
        let sent = Instant::now();
        data(&client.ask(&add("t", &n.to_string(), 1000)).unwrap());
        let got = jobs(&worker.receive().unwrap());
        let took = sent.elapsed();
        assert!((SECOND..10 * SECOND).contains(&took), "{took:?}");
        let nacked = Instant::now();
        let again = report(&mut worker, &got[0], "nack", json!({"delay": "1s"}));
        assert_eq!(data(&again)["outcome"], "retried");
        let job = one(&mut worker, "t");
        assert!(nacked.elapsed() >= SECOND, "{:?}", nacked.elapsed());
        data(&report(&mut worker, &job, "ack", json!({})));
    }
}

#[test]
fn a_waiting_reserve_delays_only_answers_behind_it() {
    let daemon = Daemon::start(&(pulled("a", "") + &pulled("b", "")));
    let (mut worker, mut other) = (daemon.client(), daemon.client());
    let several = json!({"cmd": "reserve", "topics": ["a", "b"], "wait": "30s", "max": 5});
    let ping = json!({"cmd": "ping"});
    // The add after the first reserve is carried out at once. The second reserve begins when the first reserve and the
    // add are answered.
    worker.send(&[several.clone(), add("b", "1", 0), several, ping.clone()]).unwrap();
    assert_eq!(ids(&worker.receive().unwrap()), ["1"]);
    assert!(worker.receive().unwrap()["due_ms"].is_i64());
    assert_eq!(other.ask(&ping).unwrap()["code"], 1);
    assert!(jobs(&other.ask(&reserve("b", "200ms")).unwrap()).is_empty(), "it is leased");
    data(&other.ask(&add("a", "2", 0)).unwrap());
    assert_eq!(ids(&worker.receive().unwrap()), ["2"]);
    assert_eq!(worker.receive().unwrap()["data"], json!([]));
    let begun = Instant::now();
    assert!(jobs(&worker.ask(&reserve("a", "400ms")).unwrap()).is_empty());
    assert!((Duration::from_millis(400)..5 * SECOND).contains(&begun.elapsed()));
}

#[test]
fn a_tcp_client_that_goes_away_while_it_waits_takes_no_job() {
    let daemon = Daemon::start(&pulled("t", ""));
    let (mut client, mut worker) = (daemon.client(), daemon.client());
    for n in 0..10 {
        // Some clients have sent a second reserve, so dq does not read from their connections.
        let gone: Vec<TcpClient> = (0..6)
            .map(|i| {
                let mut gone = daemon.client();
                gone.send(&vec![reserve("t", "60s"); 1 + i % 2]).unwrap();
                gone
            })
            .collect();
        // When this reserve is answered, the other clients wait, because their reserves came before it.
        assert!(jobs(&worker.ask(&reserve("t", "20ms")).unwrap()).is_empty());
        drop(gone);
        data(&client.ask(&add("t", &n.to_string(), 0)).unwrap());
        let job = one(&mut worker, "t");
        assert_eq!((&job["id"], &job["attempt"]), (&json!(n.to_string()), &json!(1)));
        data(&report(&mut worker, &job, "ack", json!({})));
    }
}

#[test]
fn a_tcp_client_that_sent_much_more_and_is_gone_takes_no_job() {
    let daemon = Daemon::start(&pulled("t", ""));
    let (mut client, mut worker) = (daemon.client(), daemon.client());
    let ping = json!({"cmd": "ping"});
    for (n, more) in [vec![ping; 9000], vec![reserve("t", "60s"); 9000]].into_iter().enumerate() {
        let mut gone = daemon.client();
        // The server reads only a part of these requests, so the client may fail to send them.
        let _ = gone.stream.set_write_timeout(Some(SECOND));
        let _ = gone.send(&[vec![reserve("t", "60s")], more].concat());
        drop(gone);
        data(&client.ask(&add("t", &n.to_string(), 0)).unwrap());
        let job = one(&mut worker, "t");
        assert_eq!((&job["id"], &job["attempt"]), (&json!(n.to_string()), &json!(1)));
        data(&report(&mut worker, &job, "ack", json!({})));
    }
}

#[test]
fn a_rolling_restart_answers_tcp_clients_that_wait() {
    let daemon = Daemon::start(&pulled("t", ""));
    let before = daemon.wait_all_up(SLOTS);
    let mut waiting: Vec<TcpClient> = (0..20).map(|_| daemon.client()).collect();
    // The second reserve of each client goes to the next process, together with the connection.
    for client in &mut waiting {
        client.send(&[reserve("t", "60s"), reserve("t", "20s")]).unwrap();
    }
    let begun = Instant::now();
    daemon.signal(Signal::SIGUSR2);
    for client in &mut waiting {
        assert!(jobs(&client.receive().unwrap()).is_empty());
    }
    assert!(begun.elapsed() < 30 * SECOND, "{:?}", begun.elapsed());
    all_new(&daemon, &before);
    let mut client = daemon.client();
    for n in 0..20 {
        data(&client.ask(&add("t", &n.to_string(), 0)).unwrap());
    }
    for client in &mut waiting {
        let answer = client.receive().unwrap();
        let got = jobs(&answer);
        assert_eq!((got.len(), &got[0]["attempt"]), (1, &json!(1)));
        data(&report(client, &got[0], "ack", json!({})));
    }
}

#[test]
fn one_of_five_thousand_clients_gets_the_job_over_tcp() {
    let clients = five_thousand();
    let more = "[http]\nmax_reserves = 12000\n[server]\nmax_connections_per_source = 6000\n";
    let daemon = Daemon::start(&(more.to_owned() + &pulled("t", "")));
    let before = daemon.wait_all_up(SLOTS);
    let mut waiting: Vec<TcpClient> = (0..clients).map(|_| daemon.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(&[reserve("t", "60s")]).unwrap());
    let mut client = daemon.client();
    // Clients of a topic are served in the order in which they came. So the other clients wait when this client gets
    // its answer.
    assert!(jobs(&client.ask(&reserve("t", "10ms")).unwrap()).is_empty());
    costs_nothing_while_clients_wait(&daemon);
    data(&client.ask(&add("t", "1", 0)).unwrap());
    assert!(jobs(&client.ask(&reserve("t", "300ms")).unwrap()).is_empty(), "somebody has it");
    daemon.signal(Signal::SIGUSR2);
    let got: Vec<Value> = waiting.iter_mut().flat_map(|client| jobs(&client.receive().unwrap())).collect();
    assert_eq!((got.len(), &got[0]["id"], &got[0]["attempt"]), (1, &json!("1"), &json!(1)));
    all_new(&daemon, &before);
}

#[test]
fn no_address_takes_all_places_of_tcp_clients_that_reserve() {
    let daemon = Daemon::start(&("[http]\nmax_reserves = 4\n".to_owned() + &pulled("t", "")));
    let mut waiting: Vec<TcpClient> = (0..2).map(|_| daemon.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(&[reserve("t", "60s")]).unwrap());
    let mut client = daemon.client();
    eventually(10 * SECOND, "two that wait", || {
        let answer = client.ask(&reserve("t", "0s")).unwrap();
        (answer["code"] == 0).then(|| is_refused(&answer, "busy", "http.max_reserves"))
    });
    drop(waiting.pop());
    eventually(10 * SECOND, "a free place", || {
        (client.ask(&reserve("t", "0s")).unwrap()["code"] == 1).then_some(())
    });
}

#[test]
fn a_token_reserves_over_tcp_only_topics_of_its_scope() {
    let registry = match on_redis() {
        true => format!("[registry]\nurl = \"{}\"\n", MariaDb::shared().database().url()),
        false => String::new(),
    };
    let more = "[server]\nauth = \"token\"\n".to_owned() + &registry + &pulled("a", "") + &pulled("b", "");
    let daemon = Daemon::start(&more);
    let mut admin = Http::unix(&daemon);
    let made = admin.ask("POST", "/v1/tokens", &json!({"name": "w", "scopes": ["consume:a"]})).is(201);
    let (mut client, shown) = (daemon.client(), json!({"cmd": "auth", "token": made["token"]}));
    is_refused(&client.ask(&reserve("a", "0s")).unwrap(), "unauthorized", "token");
    eventually(10 * SECOND, "the token", || (client.ask(&shown).unwrap()["code"] == 1).then_some(()));
    // An `auth` also holds for a reserve that was sent right after it.
    let mut second = daemon.client();
    second.send(&[shown, reserve("a", "0s")]).unwrap();
    assert!((0..2).all(|_| second.receive().unwrap()["code"] == 1));
    is_refused(&client.ask(&reserve("b", "0s")).unwrap(), "forbidden", "consume:b");
    let both = json!({"cmd": "reserve", "topics": ["a", "b"]});
    is_refused(&client.ask(&both).unwrap(), "forbidden", "consume:b");
    let of_b = json!({"topic": "b", "id": "1", "token": "AAAA"});
    is_refused(&report(&mut client, &of_b, "ack", json!({})), "forbidden", "consume:b");
}
