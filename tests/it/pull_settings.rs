//! The settings of topics for clients that reserve. Two of them do what KMQueue calls the plain mode and the end of a
//! job's life. `expire_after` holds for push topics too.

use std::time::{Duration, Instant};

use crate::pull::{pulled, put};
use crate::support::http::Http;
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, Sink, add, eventually, now_ms, on_redis, topic};
use serde_json::{Value, json};

fn reserve(http: &mut Http, topic: &str, what: &Value) -> Vec<Value> {
    let answer = http.ask("POST", &format!("/v1/topics/{topic}/reserve"), what).is(200);
    answer["jobs"].as_array().unwrap().clone()
}

fn ids(jobs: &[Value]) -> Vec<&str> {
    jobs.iter().map(|job| job["id"].as_str().unwrap()).collect()
}

fn records(http: &mut Http, topic: &str, id: &str) -> Value {
    http.get(&format!("/v1/topics/{topic}/jobs/{id}/records")).is(200)["records"].clone()
}

#[test]
fn a_removed_job_is_done_when_it_is_reserved() {
    let topics = pulled("plain", "on_reserve = \"remove\"\nkeep_done = \"1h\"") + &pulled("safe", "");
    let daemon = Daemon::start(&topics);
    let (mut http, mut tcp) = (Http::unix(&daemon), daemon.client());
    let then = json!({"ttr": "1h", "then": {"topic": "safe", "id": "next", "body": 1, "ttr": "5m"}});
    put(&mut http, "plain", "1", &then);
    let jobs = reserve(&mut http, "plain", &json!({"wait": "10s"}));
    assert_eq!((ids(&jobs), &jobs[0]["body"]), (vec!["1"], &json!({"of": "1"})));
    assert!(jobs[0].get("token").is_none() && jobs[0].get("lease_until_ms").is_none(), "{jobs:?}");
    http.get("/v1/topics/plain/jobs/1").is_problem(404, "not_found", None);
    let kept = records(&mut http, "plain", "1");
    assert_eq!((&kept[0]["outcome"], kept.as_array().unwrap().len()), (&json!("delivered"), 1));
    assert_eq!(kept[0]["log"][0]["answer"], "removed when it was reserved", "{kept}");
    // The follower of the job is added, and gets its own lease. The job itself does not come again.
    let next = reserve(&mut http, "safe", &json!({"wait": "10s"}));
    let left_ms = next[0]["lease_until_ms"].as_i64().unwrap() - now_ms();
    assert!(next[0]["token"].is_string() && (290_000..=300_001).contains(&left_ms), "{next:?}");
    assert!(reserve(&mut http, "plain", &json!({"wait": "300ms"})).is_empty());
    // A client reserves over TCP, with topics of both kinds in one reserve.
    put(&mut http, "plain", "2", &json!({}));
    put(&mut http, "safe", "3", &json!({}));
    let both = json!({"cmd": "reserve", "topics": ["plain", "safe"], "max": 2, "wait": "10s"});
    let mut found: Vec<Value> = Vec::new();
    while found.len() < 2 {
        let answer = tcp.ask(&both).unwrap();
        let jobs = answer["data"].as_array().unwrap();
        assert!(!jobs.is_empty(), "{answer}");
        found.extend(jobs.clone());
    }
    let with_token = |job: &Value| (job["id"].as_str().unwrap().to_owned(), job.get("token").is_some());
    let shown: Vec<_> = found.iter().map(with_token).collect();
    assert!(shown.contains(&("2".into(), false)) && shown.contains(&("3".into(), true)), "{shown:?}");
    let counted = http.get("/v1/stats").is(200);
    let plain = counted["topics"].as_array().unwrap().iter().find(|t| t["topic"] == "plain").unwrap().clone();
    assert_eq!(["ready", "leased", "delayed", "dead"].map(|state| plain[state].as_u64()), [Some(0); 4]);
}

#[test]
fn a_job_that_expired_is_a_dead_letter_and_no_client_gets_it() {
    let more = "expire_after = \"700ms\"\nretry = [\"1s\"]";
    let daemon = Daemon::start(&(pulled("t", more) + &pulled("u", "")));
    let mut http = Http::unix(&daemon);
    (0..40).for_each(|n| put(&mut http, "t", &format!("old-{n}"), &json!({})));
    put(&mut http, "t", "long", &json!({"expire_after": "1h"}));
    put(&mut http, "t", "never", &json!({"expire_after": 0}));
    put(&mut http, "u", "own", &json!({"expire_after": "200ms"}));
    let shown = http.get("/v1/topics/t/jobs/old-39").is(200);
    let expires_ms = shown["expires_ms"].as_i64().unwrap();
    let alive_ms = expires_ms - shown["due_ms"].as_i64().unwrap();
    assert!((500..=700).contains(&alive_ms), "{shown}");
    assert!(http.get("/v1/topics/t/jobs/never").is(200).get("expires_ms").is_none());
    eventually(10 * SECOND, "the moment", || (now_ms() > expires_ms + 100).then_some(()));
    // Expired jobs come before the live jobs. Even a client that does not wait gets the live jobs.
    let mut found: Vec<String> = Vec::new();
    eventually(20 * SECOND, "the live jobs", || {
        found.extend(ids(&reserve(&mut http, "t", &Value::Null)).into_iter().map(str::to_owned));
        (found.len() == 2).then_some(())
    });
    found.sort();
    assert_eq!(found, ["long", "never"]);
    assert!(reserve(&mut http, "u", &Value::Null).is_empty());
    for (topic, id) in [("t", "old-0"), ("t", "old-39"), ("u", "own")] {
        let dead = http.get(&format!("/v1/topics/{topic}/jobs/{id}")).is(200);
        assert_eq!(dead["state"], "dead", "{dead}");
        assert!(dead["log"][0]["error"].as_str().unwrap().starts_with("expired at 20"), "{dead}");
    }
    // A dead letter that is redriven has one more attempt. Its retry comes too late.
    http.ask("POST", "/v1/topics/t/dead/redrive", &json!({"ids": ["old-7"]})).is(200);
    let jobs = reserve(&mut http, "t", &json!({"wait": "10s"}));
    assert_eq!(ids(&jobs), ["old-7"]);
    let nack = json!({"token": jobs[0]["token"], "delay": 0});
    http.ask("POST", "/v1/topics/t/jobs/old-7/nack", &nack).is(200);
    assert!(reserve(&mut http, "t", &json!({"wait": "1s"})).is_empty());
    assert_eq!(http.get("/v1/topics/t/jobs/old-7").is(200)["state"], "dead");
}

#[test]
fn a_retry_of_a_callback_never_begins_after_the_expiry() {
    let sink = Sink::answering(|_| cli::HandlerAnswer::new(500, "no"));
    let more = "expire_after = \"1500ms\"\nretry = [\"500ms\"]\nmax_attempts = 50";
    let daemon = Daemon::start(&topic("t", &sink, more));
    let mut http = Http::unix(&daemon);
    let begun = Instant::now();
    let mut job = add("t", "1", 0);
    job["expire_after"] = Value::Null;
    assert_eq!(daemon.client().ask(&job).unwrap()["code"], 1);
    let dead = eventually(20 * SECOND, "the dead letter", || {
        let job = http.get("/v1/topics/t/jobs/1").is(200);
        (job["state"] == "dead").then_some(job)
    });
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
    let log = dead["log"].as_array().unwrap();
    let last = log.last().unwrap();
    assert!(last["error"].as_str().unwrap().starts_with("expired at 20"), "{dead}");
    let made = log.iter().filter(|attempt| attempt["status"] == 500).count();
    assert!((1..=4).contains(&made) && log.len() == made + 1, "{dead}");
    let expires_ms = dead["expires_ms"].as_i64().unwrap();
    let late = |attempt: &&Value| attempt["at_ms"].as_i64().unwrap() > expires_ms + 20;
    assert_eq!(log[..made].iter().filter(late).count(), 0, "{dead}");
}

#[test]
fn a_leased_job_says_who_has_it_and_since_when() {
    let daemon = Daemon::start(&pulled("t", ""));
    let (mut unix, mut http, mut tcp) = (Http::unix(&daemon), Http::tcp(&daemon), daemon.client());
    (0..4).for_each(|n| put(&mut unix, "t", &n.to_string(), &json!({})));
    let before = now_ms();
    let named = reserve(&mut http, "t", &json!({"wait": "10s", "consumer": "shop 7"}));
    let asked = json!({"cmd": "reserve", "topic": "t", "wait": "10s", "consumer": "tcp"});
    assert_eq!(tcp.ask(&asked).unwrap()["data"].as_array().unwrap().len(), 1);
    reserve(&mut unix, "t", &json!({"wait": "10s", "consumer": "local"}));
    reserve(&mut unix, "t", &json!({"wait": "10s"}));
    let shown = eventually(10 * SECOND, "three names", || {
        let page = unix.get("/v1/topics/t/jobs?state=leased").is(200);
        let all = page["jobs"].as_array().unwrap().clone();
        let names = all.iter().filter(|job| job["consumer"]["name"].is_string()).count();
        (all.len() == 4 && names == 3).then_some(all)
    });
    let of = |name: &str| shown.iter().find(|job| job["consumer"]["name"] == name).unwrap();
    let addresses = ["shop 7", "tcp", "local"].map(|name| of(name)["consumer"]["address"].clone());
    assert_eq!(addresses, [json!("127.0.0.1"), json!("127.0.0.1"), Value::Null]);
    let job = of("shop 7");
    assert_eq!((&job["id"], &job["attempts"]), (&named[0]["id"], &json!(1)));
    let since = job["consumer"]["since_ms"].as_i64().unwrap();
    assert!((before - 1000..=now_ms()).contains(&since) && job["until_ms"].is_i64(), "{job}");
    for name in ["", "a\nb", &"x".repeat(129)] {
        let refused = http.ask("POST", "/v1/topics/t/reserve", &json!({"consumer": name}));
        refused.is_problem(422, "bad_field", Some("consumer"));
        let refused = tcp.ask(&json!({"cmd": "reserve", "topic": "t", "consumer": name})).unwrap();
        assert_eq!(refused["err"], "bad_field", "{refused}");
    }
}

#[test]
fn attempts_and_lateness_of_reserved_jobs_are_counted() {
    let daemon = Daemon::start(&(pulled("t", "") + &pulled("plain", "on_reserve = \"remove\"")));
    let (mut http, mut tcp) = (Http::unix(&daemon), daemon.client());
    (0..3).for_each(|n| put(&mut http, "t", &n.to_string(), &json!({})));
    put(&mut http, "plain", "1", &json!({}));
    for verb in ["ack", "nack"] {
        let job = reserve(&mut http, "t", &json!({"wait": "10s"})).remove(0);
        let path = format!("/v1/topics/t/jobs/{}/{verb}", job["id"].as_str().unwrap());
        let report = json!({"token": job["token"]});
        http.ask("POST", &path, &report).is(200);
        // A report that is repeated is counted once.
        http.ask("POST", &path, &report).is(200);
    }
    let answer = tcp.ask(&json!({"cmd": "reserve", "topic": "t", "wait": "10s"})).unwrap();
    let job = &answer["data"][0];
    let ack = json!({"cmd": "ack", "topic": "t", "id": job["id"], "token": job["token"]});
    assert_eq!(tcp.ask(&ack).unwrap()["data"]["outcome"], "done");
    assert_eq!(reserve(&mut http, "plain", &json!({"wait": "10s"})).len(), 1);
    let text = http.get("/metrics").is(200).as_str().unwrap().to_owned();
    for line in [
        "dq_attempts_total{topic=\"t\",outcome=\"accepted\",code_class=\"none\"} 2",
        "dq_attempts_total{topic=\"t\",outcome=\"failed\",code_class=\"none\"} 1",
        "dq_attempts_total{topic=\"plain\",outcome=\"accepted\",code_class=\"none\"} 1",
        "dq_schedule_lateness_seconds_count{topic=\"t\"} 3",
        "dq_schedule_lateness_seconds_count{topic=\"plain\"} 1",
        "dq_attempt_duration_seconds_count{topic=\"t\"} 3",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let health = http.get("/v1/topics/t/health").is(200);
    assert_eq!((&health["accepted"], &health["failed"]), (&json!(2), &json!(1)), "{health}");
}

#[test]
fn a_host_at_its_limit_postpones_no_job_beyond_its_expiry() {
    let (own, limited) = (Sink::start(), Sink::start());
    let host = limited.address;
    let limit = format!("[[callback.host]]\nname = \"{host}\"\nrate = \"1/m\"\n");
    let more = format!("expire_after = \"2s\"\njob_hosts = [\"{host}\"]");
    let daemon = Daemon::start(&(topic("t", &own, &more) + &limit));
    let mut http = Http::unix(&daemon);
    (0..5).for_each(|n| put(&mut http, "t", &n.to_string(), &json!({"url": limited.url()})));
    // One job gets the permit of this minute. The other jobs would begin only after they have expired, so they become
    // dead letters.
    eventually(20 * SECOND, "the dead letters", || {
        let page = http.get("/v1/topics/t/jobs?state=dead").is(200);
        (page["jobs"].as_array().unwrap().len() == 4).then_some(())
    });
    assert_eq!((limited.count(), own.count()), (1, 0));
}

#[test]
fn a_refused_job_comes_first_where_the_topic_says_so() {
    // The store has one shard, so that all jobs have one order.
    let server = on_redis().then(RedisServer::start);
    let store = server.as_ref().map_or(String::new(), |server| {
        let url = server.url();
        format!("[store]\nbackend = \"redis\"\nshards_per_node = 1\n[[store.node]]\nname = \"a\"\nurl = \"{url}\"\n")
    });
    let daemon = Daemon::start(&(store + &pulled("first", "retried_first = true") + &pulled("last", "")));
    let (mut http, mut tcp) = (Http::unix(&daemon), daemon.client());
    for (topic, expected) in [("first", 0), ("last", 2)] {
        for id in ["a", "b", "c"] {
            put(&mut http, topic, id, &json!({}));
        }
        let refused = reserve(&mut http, topic, &json!({"wait": "10s"}));
        let token = refused[0]["token"].as_str().unwrap();
        let nack =
            json!({"cmd": "nack", "topic": topic, "id": refused[0]["id"], "token": token, "delay": "10ms"});
        assert_eq!(tcp.ask(&nack).unwrap()["code"], 1);
        let again = refused[0]["id"].as_str().unwrap();
        eventually(10 * SECOND, "its next attempt", || {
            let job = http.get(&format!("/v1/topics/{topic}/jobs/{again}")).is(200);
            (job["state"] == "ready").then_some(())
        });
        let jobs = reserve(&mut http, topic, &json!({"max": 3, "wait": "10s"}));
        let position = ids(&jobs).iter().position(|id| *id == again).unwrap();
        assert_eq!(position, expected, "{topic}: {jobs:?}");
    }
}
