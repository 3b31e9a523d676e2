//! Operations on many jobs in the console, in a real browser: from a filter to its end.

use serde_json::{Value, json};

use crate::console_browser::{good, signed_in};
use crate::support::browser::Setting;
use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually};

#[test]
fn all_jobs_of_a_filter_are_shifted_cancelled_and_replayed() {
    let sink = Sink::start();
    let daemon = Daemon::start("");
    let mut http = Http::unix(&daemon);
    let topic = json!({"name": "orders", "callback": sink.url(), "keep_done_body": true});
    http.ask("POST", "/v1/topics", &topic).is(201);
    let job = |n: usize| json!({"id": format!("j{n}"), "delay": "2h", "body": n});
    let jobs: Vec<Value> = (0..120).map(job).collect();
    http.ask("POST", "/v1/topics/orders/jobs/batch", &json!({"jobs": jobs})).is(200);
    let mut due = |id: &str| http.get(&format!("/v1/topics/orders/jobs/{id}")).json["due_ms"].as_i64();
    let before = due("j100");

    let browser = signed_in(&daemon, Setting::default());
    browser.run("location.hash = '#/topics/orders/jobs?state=delayed'");
    browser.see("main", "j0");
    browser.press("Change all that match");
    browser.see(".bulk-found", "120 jobs match");
    assert_eq!(browser.barriers(), Vec::<String>::new());
    // The jobs that the filter selects are rescheduled.
    browser.fill("#f-bulk-id_prefix", "j10");
    browser.see(".bulk-found", "11 jobs match");
    browser.fill("#f-bulk-by", "-10m");
    browser.see(".bulk-found", "11 jobs match");
    browser.press("Start");
    browser.see("dialog", "11 jobs match");
    browser.click("dialog button[type=submit]");
    browser.see(".toasts", "Operation 1 has begun.");
    browser.see("tbody", "11 changed");
    browser.see("tbody .badge", "done");
    assert_eq!(due("j100"), before.map(|ms| ms - 600_000));
    assert_eq!(due("j99").unwrap() / 60_000, before.unwrap() / 60_000);

    // An operation that cancels jobs is stopped before its end.
    browser.press("Cancel");
    browser.press("Clear the filter");
    browser.see(".bulk-found", "120 jobs match");
    browser.fill("#f-bulk-rate", "5");
    browser.see(".bulk-found", "120 jobs match");
    browser.press("Start");
    browser.see("dialog", "not delivered");
    browser.click("dialog button[type=submit]");
    browser.see("tbody .badge", "running");
    browser.press("Stop");
    browser.see("tbody .badge", "stopped");
    let shown = Http::unix(&daemon).get("/v1/jobs/bulk/2").is(200);
    let (state, changed) = (&shown["state"], shown["changed"].as_u64().unwrap());
    assert!(state == "stopped" && changed > 0 && changed < 120, "{shown}");
    assert_eq!((&shown["by"], sink.count()), (&json!("account admin"), 0));

    // A job that has ended is added again.
    let mut http = Http::unix(&daemon);
    http.ask("POST", "/v1/topics/orders/jobs", &json!({"id": "x1", "body": "again"})).is(201);
    sink.wait_for(1, 20 * SECOND);
    browser.run("location.hash = '#/topics/orders/records?outcome=delivered'");
    browser.see("main", "x1");
    browser.press("Change all that match");
    browser.see(".bulk-found", "1 job match");
    browser.press("Start");
    browser.click("dialog button[type=submit]");
    eventually(20 * SECOND, "the job again", || (sink.count() == 2).then_some(()));
    browser.see("tbody", "Replay");

    // The page can also be read in Chinese.
    browser.press("中文");
    browser.see("main", "批量处理任务");
    browser.see("tbody", "重放");
    good(&browser);
}
