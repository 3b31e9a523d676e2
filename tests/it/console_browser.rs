//! The console in a real browser: what an operator does, the accessibility of each page, and pictures of all pages.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cli::HandlerAnswer;
use serde_json::{Value, json};

use crate::console::{NO_REGISTRY, first_password};
use crate::support::browser::{Browser, Setting, pictures};
use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, all_new, eventually, now_ms};

/// The maximum number of bytes that the first page may load, and the maximum time in milliseconds until something is
/// visible. The time limit is far above the usual time, because other tests run at the same time.
const FIRST_PAGE: (usize, f64) = (200_000, 3_000.0);

/// Starts a browser, and signs in as `admin`.
pub fn signed_in(daemon: &Daemon, setting: Setting) -> Browser {
    let password = first_password(daemon);
    let browser = Browser::start(setting);
    browser.go(&format!("http://127.0.0.1:{}/", daemon.http));
    browser.fill("#f-name", "admin");
    browser.fill("#f-password", &password);
    browser.click("button[type=submit]");
    browser.until("the overview", "document.querySelector('nav [aria-current=page]')");
    browser
}

/// Checks that the browser has reported no fault of the page.
pub fn good(browser: &Browser) {
    // A daemon that is overloaded by other tests answers 503, and the page asks again.
    let complaints: Vec<_> =
        browser.complaints().into_iter().filter(|line| !line.contains("status of 503")).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn without_a_registry_the_page_says_that_nobody_can_sign_in() {
    let daemon = Daemon::start(NO_REGISTRY);
    let browser = Browser::start(Setting::default());
    browser.go(&format!("http://127.0.0.1:{}/", daemon.http));
    browser.see("main", "Nobody can sign in: dq has no registry.");
    browser.see("main", "Leave registry.url out");
    assert_eq!(browser.run("return document.querySelectorAll('input, button[type=submit]').length"), 0);
    good(&browser);
}

#[test]
fn an_operator_registers_a_topic_and_redrives_its_dead_letters() {
    let is_well = Arc::new(AtomicBool::new(true));
    let well = Arc::clone(&is_well);
    let answer = move |_: &cli::ReceivedRequest| match well.load(Ordering::Relaxed) {
        true => HandlerAnswer::new(200, "ok"),
        false => HandlerAnswer::new(503, "closed for <b>today</b>"),
    };
    let sink = Sink::answering(answer);
    let daemon = Daemon::start("");
    let browser = signed_in(&daemon, Setting::default());
    browser.see("h1", "Overview");
    browser.see("main", "Nothing needs attention");
    // (This connection is opened only now, because dq closes a connection that waits longer than ten seconds for its
    // first request.)
    let mut http = Http::tcp(&daemon);
    // This is the page that a signed-in person sees.
    browser.run("location.reload()");
    browser.see("main", "Nothing needs attention");
    let named = browser.run(
        "return [...performance.getEntriesByType('resource'), ...performance.getEntriesByType('navigation')]
            .map(e => new URL(e.name).pathname).filter(path => !/\\/v1\\/|session$/.test(path))",
    );
    let named: BTreeSet<String> = serde_json::from_value(named).unwrap();
    let bytes: usize =
        named.iter().map(|path| http.get(path).headers["content-length"].parse::<usize>().unwrap()).sum();
    let painted = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1";
    let painted_ms = browser.run(painted).as_f64().unwrap();
    println!(
        "the first page has {bytes} bytes in {} files, and is painted after {painted_ms} ms",
        named.len()
    );
    assert!(bytes < FIRST_PAGE.0 && (0.0..FIRST_PAGE.1).contains(&painted_ms), "{bytes} {painted_ms}");

    // The fields of a new topic are checked while they are typed. Then the topic is registered.
    browser.run("location.hash = '#/topics'");
    browser.see("main", "No topics yet");
    browser.press("Register a topic");
    browser.fill("#f-name", "orders close");
    browser.see(".field-problem", "orders close");
    browser.fill("#f-name", "orders.close");
    browser.fill("#f-callback", &sink.url());
    browser.see("main", "gives up after 1 h 21 min");
    browser.fill("#f-max_attempts", "2");
    browser.fill("#f-retry_base", "1s");
    browser.see("main", "gives up after 1 s");
    browser.press("Register a topic");
    browser.see("h1", "orders.close");
    browser.see("main", "curl");

    // A job comes, and the page shows without a reload that it was delivered.
    let add = |http: &mut Http, id: &str| {
        let job = json!({"id": id, "body": {"note": "<img src=x onerror=alert(1)>"}});
        http.ask("POST", "/v1/topics/orders.close/jobs", &job).is(201);
    };
    add(&mut http, "1");
    sink.wait_for(1, 20 * SECOND);
    let delivered = "/Delivered\\s*1\\b/.test(document.querySelector('.figures-row').innerText)";
    browser.until("one delivered", delivered);

    // The page makes a test call. The page shows what was sent and what came back.
    browser.run("location.hash = '#/topics/orders.close/test'");
    browser.press("Call it now");
    browser.see("main", "dq-test: 1");
    browser.see("main", "A job would be done.");

    // A job fails, is tried again, and becomes a dead letter.
    is_well.store(false, Ordering::Relaxed);
    add(&mut http, "2");
    browser.run("location.hash = '#/topics/orders.close/jobs/2'");
    browser.see("h1", "2");
    browser.see("main", "<img src=x onerror=alert(1)>");
    browser.see("main", "503");
    browser.see(".badge", "Dead");
    browser.see("main", "closed for <b>today</b>");
    browser.run("location.hash = '#/dead'");
    browser.see("main", "HTTP 503");

    // The dead letter is redriven. The dialog says how many jobs this affects.
    is_well.store(true, Ordering::Relaxed);
    browser.click("tbody .check input, .cell-pick input");
    browser.press("Redrive");
    browser.see("dialog", "1 job");
    browser.see("dialog", "orders.close");
    browser.click("dialog button[type=submit]");
    sink.wait_for(3, 20 * SECOND);
    browser.see("main", "No dead letters");

    // A topic is paused: none of its jobs is delivered until it is resumed.
    browser.run("location.hash = '#/topics/orders.close'");
    browser.see("h1", "orders.close");
    browser.press("Pause");
    browser.see(".badge", "paused");
    add(&mut http, "3");
    browser.see(".tab-count", "1");
    browser.press("Resume");
    browser.see(".badge", "online");
    sink.wait_for(4, 20 * SECOND);

    // The audit log says who did it. The console can also be read in Chinese.
    browser.run("location.hash = '#/audit'");
    browser.see("main", "account admin");
    browser.press("中文");
    browser.see("nav", "概览");
    assert_eq!(browser.run("return document.documentElement.lang"), "zh-CN");
    good(&browser);
    // The daemon does a rolling restart, and the page continues by itself.
    browser.run("location.hash = '#/topics/orders.close'; window.stays = true");
    let before = daemon.children();
    daemon.signal(nix::sys::signal::Signal::SIGHUP);
    all_new(&daemon, &before);
    add(&mut Http::tcp(&daemon), "4");
    sink.wait_for(5, 20 * SECOND);
    browser.until(
        "one more delivered",
        "/投递成功\\s*4\\b/.test(document.querySelector('.figures-row')?.innerText)",
    );
    assert_eq!(browser.run("return window.stays === true"), true);
}

#[test]
fn an_unsupported_topic_is_shown_and_a_deletion_asks_about_jobs() {
    let (sink, daemon) = (Sink::start(), Daemon::start(""));
    let mut http = Http::unix(&daemon);
    for name in ["flag", "orders"] {
        http.ask("POST", "/v1/topics", &json!({"name": name, "callback": sink.url()})).is(201);
    }
    let past = now_ms() - 3_600_000;
    http.ask("POST", "/v1/topics/orders/pause", &Value::Null).is(204);
    for id in ["1", "2"] {
        http.ask("POST", "/v1/topics/orders/jobs", &json!({"id": id, "body": 1, "run_at": past})).is(201);
    }
    let set = "UPDATE topic SET spec = json_set(spec, '$.re_notify_flag', 'system({res.code})') WHERE name = 'flag'";
    let registry = rusqlite::Connection::open(daemon.dir.path().join("var/registry.db")).unwrap();
    registry.execute(set, []).unwrap();
    let browser = signed_in(&daemon, Setting::default());
    browser.see("main", "Setting that dq cannot apply: flag");
    browser.run("location.hash = '#/topics'");
    browser.see("main", "\"system({res.code})\" is no expression");
    browser.see(".badge", "setting not applied");
    browser.run("location.hash = '#/topics/flag'");
    browser.see("main .note", "dq cannot apply a setting of this topic.");
    browser.see("main .note", "until somebody edits it or clears it");
    browser.run("location.hash = '#/topics/flag/edit'");
    browser.see("main .note", "Correct it below");
    browser.run("document.querySelectorAll('details').forEach(e => { e.open = true; })");
    browser.fill("#f-re_notify_flag", "{res.code} == 7");
    browser.press("Save");
    browser.until("the topic's page", "location.hash === '#/topics/flag'");
    eventually(20 * SECOND, "a topic that is served", || {
        (http.get("/v1/topics/flag").is(200)["problem"] == Value::Null).then_some(())
    });

    // If a topic has jobs, the person must choose what happens to the jobs.
    let delete = |browser: &Browser| {
        browser.press("Actions for orders");
        browser.press("Delete");
        browser.see("dialog", "2 pending jobs, 0 dead letters");
        browser.fill("dialog #f-typed", "orders");
    };
    browser.run("location.hash = '#/topics/orders'");
    browser.see("h1", "orders");
    delete(&browser);
    let is_shut = "document.querySelector('dialog button[type=submit]').disabled";
    browser.until("that nothing is done before it is chosen", is_shut);
    browser.press("Keep: they wait until it is registered again");
    browser.click("dialog button[type=submit]");
    browser.until("the topics", "location.hash === '#/topics'");
    eventually(20 * SECOND, "a topic that is gone", || {
        (http.get("/v1/topics/orders").status == 404).then_some(())
    });
    browser.run("location.hash = '#/'");
    browser.see("main", "Nobody delivers its due jobs: orders");
    browser.see("main", "2 due jobs wait");

    // Jobs that were left behind are removed later.
    browser.run("location.hash = '#/topics/orders'");
    browser.see("h1", "orders");
    browser.press("Actions for orders");
    browser.press("Remove its jobs");
    browser.fill("dialog #f-typed", "orders");
    browser.click("dialog button[type=submit]");
    browser.until("the topics", "location.hash === '#/topics'");
    eventually(20 * SECOND, "that no job is left", || {
        let stats = http.get("/v1/stats").is(200);
        let of = stats["topics"].as_array()?.iter().find(|t| t["topic"] == "orders").cloned();
        of.is_none_or(|of| of["ready"] == 0).then_some(())
    });
    browser.run("location.hash = '#/'");
    browser.see("main", "Nothing needs attention");
    assert_eq!(sink.count(), 0);
    // The browser itself complains that the removed topic does not exist, and about nothing else.
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|line| line.contains("status of 404")), "{complaints:#?}");
}

#[test]
fn a_read_only_user_changes_nothing_and_sign_out_hides_all() {
    let sink = Sink::start();
    let daemon = Daemon::start(&crate::support::topic("orders", &sink, "delay = \"5h\""));
    let mut door = Http::unix(&daemon);
    door.ask("PUT", "/v1/accounts/eyes", &json!({"role": "read", "password": "only the eyes"})).is(204);
    door.ask("POST", "/v1/topics/orders/jobs", &json!({"id": "1", "body": 1})).is(201);
    let browser = Browser::start(Setting::default());
    browser.go(&format!("http://127.0.0.1:{}/#/topics/orders/jobs/1", daemon.http));
    browser.fill("#f-name", "eyes");
    browser.fill("#f-password", "not these eyes");
    browser.click("button[type=submit]");
    browser.see(".note, [role=alert], main", "is wrong");
    browser.fill("#f-password", "only the eyes");
    browser.click("button[type=submit]");
    browser.see("h1", "1");
    browser.see(".badge", "Delayed");
    browser.see("main", "Priority");
    let active = "return [...document.querySelectorAll('main button')].filter(e => !e.disabled && \
        !e.matches('[aria-haspopup], [aria-expanded]')).map(e => e.innerText || e.ariaLabel)";
    assert_eq!(browser.run(active), json!([]), "a button that does something");
    assert!(!browser.text("nav").contains("Tokens"), "what he is not shown he is not led to");
    // The browser itself complains that the wrong password was refused, and about nothing else.
    let refused: Vec<String> = browser.complaints();
    assert!(refused.iter().all(|line| line.contains("403")), "{refused:?}");
    browser.press("Sign out");
    browser.see("h1", "Sign in");
    browser.go(&format!("http://127.0.0.1:{}/#/topics/orders", daemon.http));
    browser.see("h1", "Sign in");
    assert!(!browser.text("body").contains("orders"));
}

#[test]
fn jobs_are_found_by_tag_state_and_beginning() {
    let sink = Sink::start();
    let topics = ["orders", "mail"].map(|name| crate::support::topic(name, &sink, ""));
    let daemon = Daemon::start(&topics.concat());
    let mut http = Http::tcp(&daemon);
    let job =
        |id: &str, delay: &str, tags: &[&str]| json!({"id": id, "body": 1, "delay": delay, "tags": tags});
    http.ask("POST", "/v1/topics/orders/jobs", &job("ended-1", "0s", &["shop:7"])).is(201);
    http.ask("POST", "/v1/topics/mail/jobs", &job("nr-2", "5h", &["shop:7", "late"])).is(201);
    eventually(10 * SECOND, "a record", || {
        (http.get("/v1/topics/orders/jobs/ended-1/records").is(200)["records"][0].is_object()).then_some(())
    });
    let browser = signed_in(&daemon, Setting::default());
    // The browsers of other tests may run first, and an idle connection is closed in the meantime.
    let mut http = Http::tcp(&daemon);

    // A job is added with tags and a path.
    browser.run("location.hash = '#/topics/orders'");
    browser.press("Add a job");
    browser.fill("#f-job-id", "nr-1");
    browser.press("Tags, path and URL");
    browser.fill("#f-job-tags", "shop:7, spring");
    browser.fill("#f-job-path", "/merchants/7");
    browser.press("in …");
    browser.fill("#f-delay", "5h");
    assert_eq!(browser.barriers(), Vec::<String>::new());
    browser.click("dialog button[type=submit]");
    let added = eventually(10 * SECOND, "the job", || {
        let answer = http.get("/v1/topics/orders/jobs/nr-1");
        (answer.status == 200).then_some(answer.json)
    });
    assert_eq!((&added["tags"], &added["path"]), (&json!(["shop:7", "spring"]), &json!("/merchants/7")));

    // The search box leads to a search by tag, which finds ended jobs too. The filter is a part of the address.
    browser.fill("#search", "shop:7");
    browser.see("#search-list", "as a tag");
    for key in ["\u{e015}", "\u{e015}", "\u{e007}"] {
        browser.key(key);
    }
    browser.until("three jobs", "document.querySelectorAll('tbody tr').length === 3");
    for part in ["nr-1", "nr-2", "ended-1", "mail", "Delivered", "late"] {
        browser.see("main", part);
    }
    assert_eq!(browser.barriers(), Vec::<String>::new());
    browser.fill("#f-find-id_prefix", "nr-");
    browser.until("two jobs", "document.querySelectorAll('tbody tr').length === 2");
    browser.until("the filter in the address", "location.hash === '#/find?id_prefix=nr-&tag=shop%3A7'");
    browser.fill("#f-find-tag", "a b");
    browser.see(".field-problem", "64 bytes");
    browser.run("location.hash = '#/find?tag=late&state=ready'");
    browser.see("main", "No job matches the filter.");
    browser.run("location.hash = '#/find?tag=late&state=delayed'");
    browser.until("one job", "document.querySelectorAll('tbody tr').length === 1");
    browser.press("nr-2");
    browser.see("main", "late");
    browser.run("location.hash = '#/topics/orders/records?tag=shop%3A7'");
    browser.see("tbody", "ended-1");
    browser.fill("#f-ended-tag", "spring");
    browser.see("main", "No record matches the filter.");
    assert_eq!(browser.barriers(), Vec::<String>::new());
    good(&browser);
}

#[test]
fn an_ended_job_is_found_and_its_story_is_shown() {
    let sink = Sink::answering(|call| match call.header("dq-attempt") {
        "1" => HandlerAnswer::new(503, "Closed for lunch"),
        _ => HandlerAnswer::new(200, "welcome <b>back</b>"),
    });
    let topics = ["orders", "mail"].map(|name| crate::support::topic(name, &sink, "retry_base = \"100ms\""));
    let daemon = Daemon::start(&topics.concat());
    let mut http = Http::tcp(&daemon);
    let job = |id: &str, delay: &str| json!({"id": id, "body": 1, "delay": delay});
    http.ask("POST", "/v1/topics/orders/jobs", &job("nr:42", "0s")).is(201);
    http.ask("POST", "/v1/topics/mail/jobs", &job("nr:42", "5h")).is(201);
    http.ask("POST", "/v1/topics/orders/jobs", &job("gone", "5h")).is(201);
    http.ask("DELETE", "/v1/topics/orders/jobs/gone", &Value::Null).is(204);
    let records = "/v1/topics/orders/jobs/nr%3A42/records";
    eventually(10 * SECOND, "a record", || {
        (http.get(records).is(200)["records"][0].is_object()).then_some(())
    });

    // The search box finds an id in all topics.
    let browser = signed_in(&daemon, Setting::default());
    browser.fill("#search", "nr:42");
    browser.see("#search-list", "as an id, in all topics");
    browser.key("\u{e007}");
    browser.see("h1", "nr:42");
    browser.see("tbody", "mail");
    browser.see("tbody", "Delayed");
    browser.see("tbody", "Delivered");
    assert_eq!(browser.barriers(), Vec::<String>::new());
    browser.press("orders");
    browser.see(".page-title .badge", "Delivered");
    browser.see(".attempts", "Closed for lunch");
    browser.see(".attempts", "welcome <b>back</b>");
    browser.see("main", "The job has ended.");
    assert_eq!(browser.barriers(), Vec::<String>::new());

    // The filter of the list stands in the address.
    browser.run("location.hash = '#/topics/orders/records'");
    browser.see("tbody", "nr:42");
    browser.see("tbody", "gone");
    browser.fill("#f-ended-text", "WELCOME");
    browser.until("one record", "document.querySelectorAll('tbody tr').length === 1");
    browser.until("the filter in the address", "location.hash === '#/topics/orders/records?text=WELCOME'");
    browser.run("location.hash = '#/topics/orders/records?outcome=deleted'");
    browser.until("the other one", "document.querySelector('tbody')?.innerText.includes('gone')");
    assert_eq!(browser.run("return document.querySelector('#f-ended-outcome').value"), "deleted");
    browser.fill("#f-ended-status", "77");
    browser.see(".field-problem", "503");
    browser.fill("#f-ended-status", "410");
    browser.see("main", "No record matches the filter.");
    assert_eq!(browser.barriers(), Vec::<String>::new());

    // The records of the job are erased. The page asks for a confirmation first.
    browser.run("location.hash = '#/topics/orders/jobs/nr%3A42'");
    browser.see("main", "The job has ended.");
    browser.press("Erase the record");
    browser.see("dialog", "nr:42");
    browser.click("dialog button[type=submit]");
    browser.see("main", "The job is gone");
    assert_eq!(http.get(records).is(200), json!({"records": []}));
    browser.press("中文");
    browser.run("location.hash = '#/topics/orders/records'");
    browser.see("main", "已删除");
    browser.run("location.hash = '#/find?id=nobody'");
    browser.see("main", "没有主题有此 ID");
    // The browser itself complains that the ended job does not exist, and about nothing else.
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|line| line.contains("status of 404")), "{complaints:#?}");
}

/// The name and the hash of each page.
const PAGES: [(&str, &str); 21] = [
    ("overview", "#/"),
    ("topics", "#/topics"),
    ("topic-new", "#/register"),
    ("topic", "#/topics/orders.close"),
    ("topic-edit", "#/topics/orders.close/edit"),
    ("topic-jobs", "#/topics/orders.close/jobs?state=delayed"),
    ("topic-test", "#/topics/orders.close/test"),
    ("topic-dead", "#/topics/invoices.pdf/dead"),
    ("topic-empty", "#/topics/stock.release"),
    ("topic-failing", "#/topics/invoices.pdf"),
    ("job", "#/topics/invoices.pdf/jobs/inv-1"),
    ("topic-records", "#/topics/invoices.pdf/records?outcome=dead"),
    ("find-jobs", "#/find?id_prefix=inv-"),
    ("find", "#/find?id=inv-1"),
    ("dead", "#/dead"),
    ("nodes", "#/nodes"),
    ("processes", "#/processes"),
    ("alerts", "#/alerts"),
    ("tokens", "#/tokens"),
    ("accounts", "#/accounts"),
    ("audit", "#/audit"),
];

/// Starts a daemon that has something to show on each page.
fn shop() -> (Sink, Daemon) {
    let sink = Sink::answering(|call| match call.header("dq-topic") {
        "invoices.pdf" => HandlerAnswer::new(503, "the printer is out of paper"),
        _ => HandlerAnswer::new(200, "ok"),
    });
    let daemon = Daemon::start("[alert]\nto = [\"ops@example.com\"]\n");
    let mut door = Http::unix(&daemon);
    for (name, title, more) in [
        ("orders.close", "Close unpaid orders", json!({"delay": "30m", "alert": ["shop@example.com"]})),
        (
            "invoices.pdf",
            "Make invoices",
            json!({"max_attempts": 2, "retry_base": "100ms", "breaker_failures": 0}),
        ),
        ("mail.remind", "Remind of an open basket", json!({"rate": "50/s", "priority": "low"})),
        ("cart.expire", "Empty carts that were left", json!({"max_in_flight": 20})),
        ("stock.release", "Give back what was reserved", json!({})),
    ] {
        let mut topic = json!({"name": name, "title": title, "callback": sink.url(), "creator": "shop"});
        topic.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        door.ask("POST", "/v1/topics", &topic).is(201);
    }
    let jobs = |topic: &str, ids: std::ops::Range<u32>, delay: &dyn Fn(u32) -> u32| -> Value {
        let job = |n: u32| {
            let id = format!("{}-{n}", if topic == "invoices.pdf" { "inv" } else { "order" });
            json!({"id": id, "delay": delay(n), "body": {"order": 20_261_122 + n, "shop": 7, "items": [{"sku": "A-1", "n": 2}]}})
        };
        json!({"jobs": ids.map(job).collect::<Vec<_>>()})
    };
    for (topic, ids, delay) in [
        ("orders.close", 1..400, &(|n: u32| 60 + n * 53 % 5000) as &dyn Fn(u32) -> u32),
        ("mail.remind", 1..60, &|n| n % 20 * 3600),
        ("invoices.pdf", 1..9, &|_| 0),
    ] {
        door.ask("POST", &format!("/v1/topics/{topic}/jobs/batch"), &jobs(topic, ids, delay)).is(200);
    }
    door.ask("POST", "/v1/topics/mail.remind/pause", &Value::Null).is(204);
    door.ask("POST", "/v1/tokens", &json!({"name": "shop", "scopes": ["produce:*"], "expires": "90d"}))
        .is(201);
    door.ask("PUT", "/v1/accounts/ann", &json!({"role": "read", "password": "the eyes of ann"})).is(204);
    eventually(30 * SECOND, "what cannot be delivered dies", || {
        let dead = door.get("/v1/topics/invoices.pdf/dead").is(200);
        (dead["jobs"].as_array()?.len() == 8).then_some(())
    });
    (sink, daemon)
}

/// Goes to a page, and waits until it shows its contents.
fn visit(browser: &Browser, hash: &str) {
    browser.run(&format!("location.hash = {}", json!(hash)));
    let shown = format!("document.getElementById('app').dataset.shown === {}", json!(hash));
    let is_whole = "!document.querySelector('.skeleton, .boot, main [aria-busy=true]')";
    browser.until(&format!("{hash} is there"), &format!("{shown} && {is_whole}"));
    // The contents must also be drawn.
    browser.run("window.drawn = false; requestAnimationFrame(() => requestAnimationFrame(() => { window.drawn = true; }))");
    browser.until("two frames", "window.drawn");
}

#[test]
fn no_page_keeps_anybody_out_light_and_dark() {
    let (_sink, daemon) = shop();
    let browser = signed_in(&daemon, Setting::default());
    let mut found = Vec::new();
    for theme in ["light", "dark"] {
        browser.run(&format!(
            "localStorage.setItem('dq.theme', '{theme}'); document.documentElement.dataset.theme = '{theme}'; dispatchEvent(new Event('dq-theme'))"
        ));
        for (name, hash) in PAGES {
            visit(&browser, hash);
            found.extend(browser.barriers().into_iter().map(|barrier| format!("{name} {theme}: {barrier}")));
            // No page is wider than the window.
            let wider = browser.run("return document.documentElement.scrollWidth - innerWidth");
            assert!(wider.as_i64() <= Some(0), "{name}: {wider} pixels too wide");
        }
    }
    browser.press("Sign out");
    browser.see("h1", "Sign in");
    found.extend(browser.barriers());
    assert!(found.is_empty(), "{found:#?}");
    good(&browser);
}

#[test]
fn the_page_of_a_topic_shows_the_health_of_its_receiver() {
    let (_sink, daemon) = shop();
    let browser = signed_in(&daemon, Setting::default());
    let part = "[aria-labelledby=card-receiver]";
    visit(&browser, "#/topics/stock.release");
    browser.see(part, "No callback has ended in this time.");
    visit(&browser, "#/topics/invoices.pdf");
    for span in ["10 minutes", "Week", "Day"] {
        browser.press(span);
        browser.until("a chart", &format!("document.querySelectorAll('{part} .bar').length === 16"));
        let pressed =
            format!("document.querySelector('{part} [aria-pressed=true]').textContent === '{span}'");
        browser.until(span, &pressed);
        for text in ["Success rate", "0%", "503", "How long callbacks take"] {
            browser.see(part, text);
        }
    }
    good(&browser);
}

/// Adds jobs as a busy shop does, until the flag is set.
fn customers(daemon: &Daemon, is_over: &AtomicBool) {
    let mut door = Http::unix(daemon);
    let mut n: u32 = 1000;
    while !is_over.load(Ordering::Relaxed) {
        for (topic, most) in [("cart.expire", 20), ("orders.close", 6)] {
            // Sometimes more jobs, sometimes fewer.
            let wave = (f64::from(n) / 200.0).sin() + 1.3;
            let jobs: Vec<Value> = (0..(wave * f64::from(most) / 2.0) as u32)
                .map(|i| json!({"id": format!("{topic}-{n}-{i}"), "delay": (n + i * 7) % 40, "body": {"cart": n}}))
                .collect();
            door.ask("POST", &format!("/v1/topics/{topic}/jobs/batch"), &json!({"jobs": jobs})).is(200);
        }
        n += 13;
        std::thread::sleep(SECOND / 4);
    }
}

/// With `make screenshots`, this test makes pictures. Otherwise it checks that each page fits on the screen of a phone,
/// in Chinese.
#[test]
fn screenshots_of_all_pages() {
    let makes = std::env::var_os("SCREENSHOTS").is_some();
    let (_sink, daemon) = shop();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if makes {
            scope.spawn(|| customers(&daemon, &is_over));
            let mut door = Http::unix(&daemon);
            eventually(300 * SECOND, "two minutes of history", || {
                let points = door.get("/v1/history").is(200)["seconds"].as_array()?.clone();
                (points.iter().filter(|p| p["delivered"].as_u64() > Some(0)).count() > 24).then_some(())
            });
        }
        look_at_all_pages(&daemon, makes);
        is_over.store(true, Ordering::Relaxed);
    });
}

fn look_at_all_pages(daemon: &Daemon, makes: bool) {
    let narrow = Setting { width: 390, height: 844, language: "zh-CN" };
    let settings = if makes {
        vec![Setting::default(), Setting { language: "en", ..narrow }, narrow]
    } else {
        vec![narrow]
    };
    for setting in settings {
        let browser = signed_in(daemon, setting);
        for (name, hash) in PAGES {
            visit(&browser, hash);
            let wider = browser.run("return document.documentElement.scrollWidth - innerWidth");
            assert!(wider.as_i64() <= Some(0), "{name}: {wider} pixels too wide at {}", setting.width);
            if makes {
                let picture = format!("{name}-{}-{}.png", setting.width, &setting.language[..2]);
                browser.picture(&pictures().join(picture));
            }
        }
        good(&browser);
    }
}
