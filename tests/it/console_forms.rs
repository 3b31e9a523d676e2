//! The forms, dialogs and menus of the console in a real browser: they keep what a person enters, and ask before they
//! do something.

use cli::HandlerAnswer;
use serde_json::{Value, json};

use crate::console_browser::{good, signed_in};
use crate::support::browser::{Browser, Setting};
use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually};

/// Starts a daemon with a topic, and a browser on the topic's page. The receiver refuses the job `dead`.
fn topic_page() -> (Sink, Daemon, Browser) {
    let sink = Sink::answering(|call| match call.header("dq-job-id") {
        "dead" => HandlerAnswer::new(410, r#"{"why": "\u5173\u95ed"}"#),
        _ => HandlerAnswer::new(200, "ok"),
    });
    let daemon = Daemon::start("");
    Http::unix(&daemon)
        .ask("POST", "/v1/topics", &json!({"name": "orders", "callback": sink.url(), "delay": "5h"}))
        .is(201);
    let browser = signed_in(&daemon, Setting::default());
    browser.run("location.hash = '#/topics/orders'");
    browser.see("h1", "orders");
    (sink, daemon, browser)
}

#[test]
fn a_job_is_added_and_run_and_a_redrive_asks_first() {
    let (sink, daemon, browser) = topic_page();
    let mut http = Http::unix(&daemon);
    browser.press("Add a job");
    browser.see("dialog", "Add a job to orders");
    assert_eq!(browser.barriers(), Vec::<String>::new());
    browser.fill("#f-job-id", "中 1");
    browser.fill(
        "#f-job-body",
        r#"{"note": "\u5173\u95ed \ud83d\ude00 \u0009 \u202e", "n": 12345678901234567890}"#,
    );
    browser.click("dialog button[type=submit]");
    browser.see(".toasts", "中 1 is added");
    let id = "%E4%B8%AD%201";
    let shown = http.get(&format!("/v1/topics/orders/jobs/{id}")).is(200);
    assert_eq!((&shown["state"], &shown["body"]["note"]), (&json!("delayed"), &json!("关闭 😀 \t \u{202e}")));
    // A second job with the same id is refused, and the dialog stays open.
    browser.press("Add a job");
    browser.fill("#f-job-id", "中 1");
    browser.click("dialog button[type=submit]");
    browser.see("dialog .note", "中 1");
    browser.press("Cancel");
    browser.see("dialog", "What you entered is not saved");
    browser.press("Leave");
    browser.until("no dialog", "!document.querySelector('dialog')");

    // Visible characters are shown unchanged. Invisible characters are shown as escapes, and numbers keep their digits.
    browser.run(&format!("location.hash = '#/topics/orders/jobs/{id}'"));
    browser.see("main", r#""note": "关闭 😀 \u0009 \u202e""#);
    browser.see("main", "12345678901234567890");
    browser.press("Run now");
    browser.see("dialog", "becomes due now");
    assert_eq!(sink.count(), 0, "it asks first");
    browser.press("Cancel");
    browser.until("no dialog", "!document.querySelector('dialog')");
    assert_eq!(http.get(&format!("/v1/topics/orders/jobs/{id}")).is(200)["state"], "delayed");
    browser.press("Run now");
    browser.click("dialog button[type=submit]");
    sink.wait_for(1, 20 * SECOND);

    http.ask("POST", "/v1/topics/orders/jobs", &json!({"id": "dead", "body": 1, "delay": 0})).is(201);
    browser.run("location.hash = '#/topics/orders/jobs/dead'");
    browser.see(".badge", "Dead");
    browser.see("main", r#"{"why": "关闭"}"#);
    let calls = sink.count();
    browser.press("Redrive");
    browser.see("dialog", "is delivered again at once");
    assert_eq!(sink.count(), calls, "it asks first");
    browser.click("dialog button[type=submit]");
    eventually(20 * SECOND, "another call", || (sink.count() > calls).then_some(()));
    // The browser itself complains about the refused add and about a job that is gone.
    let complaints = browser.complaints();
    let is_known = |line: &String| line.contains("status of 409") || line.contains("status of 404");
    assert!(complaints.iter().all(is_known), "{complaints:#?}");
}

#[test]
fn an_edit_keeps_a_job_that_was_replaced_meanwhile() {
    let (sink, daemon, browser) = topic_page();
    let mut http = Http::unix(&daemon);
    let add = |http: &mut Http, body: &str| {
        let job = format!(r#"{{"id": "a", "body": {body}, "delay": "5h"}}"#);
        let answer =
            http.send("POST", "/v1/topics/orders/jobs", "Content-Type: application/json\r\n", job.as_bytes());
        assert!(matches!(answer.status, 200 | 201), "{}", answer.json);
    };
    add(&mut http, r#"{ "v" :  1.0 }"#);
    browser.run("location.hash = '#/topics/orders/jobs/a'");
    browser.see("main", r#""v": 1.0"#);
    // A change of the TTR does not change the bytes of the body.
    browser.press("Edit");
    browser.fill("#f-job-ttr", "7s");
    browser.click("dialog button[type=submit]");
    browser.see(".toasts", "The job is changed");
    http.ask("POST", "/v1/topics/orders/jobs/a/run", &Value::Null).is(204);
    sink.wait_for(1, 20 * SECOND);
    assert_eq!(sink.calls()[0].body, r#"{ "v" :  1.0 }"#);
    add(&mut http, r#"{"v": 2}"#);
    browser.see("main", r#""v": 2"#);
    // A client replaces the job while the dialog is open.
    browser.press("Edit");
    browser.fill("#f-body", r#"{"v": 4}"#);
    add(&mut http, r#"{"v": 3}"#);
    browser.click("dialog button[type=submit]");
    browser.see("dialog .note", "A client has replaced or changed this job meanwhile");
    assert_eq!(http.get("/v1/topics/orders/jobs/a").is(200)["body"]["v"], 3);
    good(&browser);
}

#[test]
fn the_arrow_keys_work_in_menus() {
    let [down, up, home, end, esc] = ["\u{e015}", "\u{e013}", "\u{e011}", "\u{e010}", "\u{e00c}"];
    let (_sink, _daemon, browser) = topic_page();
    let focused =
        || browser.run("return document.activeElement.innerText.trim()").as_str().unwrap().to_owned();
    let is_open = "document.querySelector(':popover-open')";
    browser.run("document.querySelector('[aria-label=\"Actions for orders\"]').focus()");
    browser.key(down);
    browser.until("an open menu", is_open);
    assert_eq!(browser.barriers(), Vec::<String>::new());
    let items = browser.run("return [...document.querySelectorAll(':popover-open [role=menuitem]')].filter(e => !e.disabled).map(e => e.innerText.trim())");
    let items: Vec<String> = serde_json::from_value(items).unwrap();
    assert!(items.len() > 4, "{items:?}");
    assert_eq!(focused(), items[0]);
    for (key, wanted) in [
        (down, &items[1]),
        (down, &items[2]),
        (up, &items[1]),
        (end, items.last().unwrap()),
        (down, &items[0]),
        (up, items.last().unwrap()),
        (home, &items[0]),
    ] {
        browser.key(key);
        assert_eq!(focused(), *wanted);
    }
    browser.key(esc);
    browser.until("a closed menu", &format!("!{is_open}"));
    assert_eq!(browser.run("return document.activeElement.ariaLabel"), "Actions for orders");
    browser.key(up);
    browser.until("an open menu", is_open);
    assert_eq!(focused(), *items.last().unwrap());
    good(&browser);
}

#[test]
fn a_half_filled_form_survives_the_sessions_end() {
    let (_sink, daemon, browser) = topic_page();
    let mut http = Http::unix(&daemon);
    let end_session = |browser: &Browser, http: &mut Http, password: &str| {
        http.ask("PUT", "/v1/accounts/admin", &json!({"role": "admin", "password": password})).is(204);
        browser.see("h1", "Sign in");
    };
    let sign_in = |browser: &Browser, name: &str, password: &str| {
        browser.fill("#f-name", name);
        browser.fill("#f-password", password);
        browser.click("button[type=submit]");
    };
    let value = |css: &str| browser.run(&format!("return document.querySelector({})?.value", json!(css)));

    // A form on a page: the console asks before the person leaves the page.
    browser.run("location.hash = '#/register'");
    browser.fill("#f-name", "invoices");
    browser.fill("#f-title", "Make invoices");
    browser.run("location.hash = '#/topics'");
    browser.see("dialog", "Leave this form?");
    browser.press("Stay");
    browser.until("no dialog", "!document.querySelector('dialog')");
    assert_eq!(browser.run("return location.hash"), "#/register");
    assert_eq!(browser.run("return !dispatchEvent(new Event('beforeunload', { cancelable: true }))"), true);
    end_session(&browser, &mut http, "the second password");
    assert!(!browser.text("body").contains("invoices"));
    sign_in(&browser, "admin", "the second password");
    browser.see("h1", "Register a topic");
    browser
        .until("the title is there again", "document.querySelector('#f-title')?.value === 'Make invoices'");
    assert_eq!(value("#f-name"), "invoices");
    browser.run("location.hash = '#/topics'");
    browser.press("Leave");
    browser.see("h1", "Topics");
    browser.run("location.hash = '#/register'");
    browser.see("h1", "Register a topic");
    browser.until("an empty form", "document.querySelector('#f-title')?.value === ''");
    assert_eq!(browser.run("return !dispatchEvent(new Event('beforeunload', { cancelable: true }))"), false);

    // The settings of a topic.
    browser.run("location.hash = '#/topics/orders/edit'");
    browser.see("h1", "orders");
    browser.fill("#f-title", "Close orders");
    end_session(&browser, &mut http, "the third password");
    sign_in(&browser, "admin", "the third password");
    browser.until("the title is there again", "document.querySelector('#f-title')?.value === 'Close orders'");
    browser.press("Save");
    browser.until("the topic's page", "location.hash === '#/topics/orders'");
    eventually(20 * SECOND, "the new title", || {
        (http.get("/v1/topics/orders").is(200)["title"] == "Close orders").then_some(())
    });

    // The body of a test call. After the call was sent, the console does not ask, because nothing would be lost.
    browser.run("location.hash = '#/topics/orders/test'");
    browser.fill("#f-body", "[7]");
    end_session(&browser, &mut http, "another password");
    sign_in(&browser, "admin", "another password");
    browser.until("the body is there again", "document.querySelector('#f-body')?.value === '[7]'");
    browser.press("Call it now");
    browser.see("main", "A job would be done.");
    browser.run("location.hash = '#/topics/orders'");
    browser.see("h1", "orders");

    // The console also asks before it closes a dialog in which something was entered. Another person does not see what
    // the first person entered.
    browser.press("Add a job");
    browser.fill("#f-job-id", "half");
    browser.key("\u{e00c}");
    browser.see("dialog", "What you entered is not saved");
    browser.press("Stay");
    http.ask("PUT", "/v1/accounts/eyes", &json!({"role": "read", "password": "only the eyes"})).is(204);
    end_session(&browser, &mut http, "the fourth password");
    sign_in(&browser, "admin", "the fourth password");
    browser.until("the id is there again", "document.querySelector('#f-job-id')?.value === 'half'");
    browser.click("dialog button[type=submit]");
    browser.see(".toasts", "half is added");
    browser.press("Add a job");
    browser.fill("#f-job-id", "of admin");
    end_session(&browser, &mut http, "the fifth password");
    sign_in(&browser, "eyes", "only the eyes");
    browser.see("h1", "orders");
    browser.until("no dialog", "!document.querySelector('dialog')");
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|line| line.contains("status of 401")), "{complaints:#?}");
}

#[test]
fn errors_and_alerts_are_in_chinese() {
    let (_sink, daemon) = (Sink::start(), Daemon::start("[alert]\nlate_after = \"1s\"\n"));
    let mut http = Http::unix(&daemon);
    http.ask("POST", "/v1/topics", &json!({"name": "late", "callback": "http://127.0.0.1:9/"})).is(201);
    http.ask("POST", "/v1/topics/late/pause", &Value::Null).is(204);
    http.ask("POST", "/v1/topics/late/jobs", &json!({"id": "1", "body": 1})).is(201);
    let set = "UPDATE topic SET spec = json_set(spec, '$.re_notify_flag', 'system(1)') WHERE name = 'late'";
    let registry = rusqlite::Connection::open(daemon.dir.path().join("var/registry.db")).unwrap();
    registry.execute(set, []).unwrap();
    let browser = signed_in(&daemon, Setting { language: "zh-CN", ..Setting::default() });
    browser.see("main", "有 dq 无法执行的设置");
    browser.see("main", "主题的某项设置 dq 无法执行，请修改。");
    browser.run("location.hash = '#/alerts'");
    browser.see(".alert-detail", "主题的某项设置 dq 无法执行，请修改。");
    browser.run("location.hash = '#/register'");
    browser.fill("#f-name", "late");
    browser.fill("#f-callback", "http://127.0.0.1:9/");
    browser.fill("#f-delay", "soon");
    browser.see(".field-problem", "默认延迟：\"soon\" 不是有效的时长，例如 90s 或 1h30m");
    browser.fill("#f-delay", "9000000h");
    browser.see(".field-problem", "的范围内");
    browser.fill("#f-delay", "1h");
    browser.press("注册主题");
    browser.see("main .note", "主题 late 已注册");
    // In English, the daemon's own words are shown.
    browser.press("English");
    browser.see("main .note", "topic late is registered already");
    let complaints = browser.complaints();
    let is_known = |line: &String| line.contains("status of 409") || line.contains("status of 422");
    assert!(complaints.iter().all(is_known), "{complaints:#?}");
}

#[test]
fn a_token_may_have_each_scope_and_patterns() {
    let (_sink, daemon, browser) = topic_page();
    browser.run("location.hash = '#/tokens'");
    browser.press("New token");
    browser.fill("#f-token-name", "shop7");
    for scope in ["manage", "read_topics", "metrics"] {
        browser.click(&format!("dialog input[name={scope}]"));
    }
    browser.fill("#f-topics", "shop7.*, orders");
    browser.click("dialog button[type=submit]");
    browser.see("dialog", "Token shop7");
    let tokens = Http::unix(&daemon).get("/v1/tokens").is(200);
    let scopes = json!([
        "produce:shop7.*",
        "produce:orders",
        "manage:shop7.*",
        "manage:orders",
        "read:shop7.*",
        "read:orders",
        "metrics"
    ]);
    assert_eq!(tokens["tokens"][0]["scopes"], scopes);
    good(&browser);
}

#[test]
fn validation_errors_are_in_chinese() {
    let (_sink, daemon) = (Sink::start(), Daemon::start(""));
    let mut http = Http::unix(&daemon);
    let topic = |field: &str, value: Value| {
        let mut body = json!({"name": "t", "callback": "http://h/"});
        body[field] = value;
        ("/v1/topics", body)
    };
    let bulk = |field: &str, value: Value| {
        let mut body = json!({"topic": "t", "operation": "reschedule"});
        body[field] = value;
        ("/v1/jobs/bulk", body)
    };
    let job = |field: &str, value: Value| {
        let mut body = json!({"id": "1", "body": 1});
        body[field] = value;
        ("/v1/topics/there/jobs", body)
    };
    let asked = [
        topic("name", json!("a b")),
        topic("name", json!("a.on_done")),
        topic("callback", json!("ftp://h/")),
        topic("callback", json!(7)),
        topic("on_done", json!("nowhere")),
        topic("delay", json!("soon")),
        topic("delay", json!("9000000h")),
        topic("timeout", json!("0s")),
        topic("max_attempts", json!("many")),
        topic("max_attempts", json!(1_000_000)),
        topic("retry", json!([])),
        topic("retry", json!("often")),
        topic("catch_up", json!("none")),
        topic("durability", json!("high")),
        topic("rate", json!("fast")),
        topic("max_bytes", json!("big")),
        topic("method", json!("PUT")),
        topic("payload", json!("xml")),
        topic("success", json!("{status} =")),
        topic("re_notify_flag", json!("system(1)")),
        topic("alert", json!(["nobody"])),
        topic("job_hosts", json!(["a b"])),
        topic("headers", json!([])),
        topic("keep_done_body", json!("yes")),
        topic("title", json!("x".repeat(5000))),
        topic("title", json!("a\u{7}")),
        job("id", json!("x".repeat(257))),
        job("delay", json!("soon")),
        job("run_at", json!("noon")),
        job("tags", json!(["a b"])),
        job("tags", json!([""])),
        job("tags", json!((0..50).map(|n| n.to_string()).collect::<Vec<_>>())),
        job("path", json!("x")),
        job("url", json!("ftp://h/")),
        job("headers", json!({"x-a": 7})),
        bulk("by", json!("later")),
        bulk("at", json!("2020-01-01T00:00:00Z")),
        bulk("spread", json!("10ms")),
        bulk("rate", json!("30/m")),
        ("/v1/jobs/bulk", json!({"topic": "t", "operation": "run", "filter": []})),
        ("/v1/topics/there/dead/redrive", json!({"filter": {}})),
        ("/v1/topics/there/dead/redrive", json!({"ids": 7})),
        ("/v1/topics/there/dead/redrive", json!({"filter": {"status": 7}})),
        ("/v1/topics/there/dead/redrive", json!({"filter": {"tag": "a b"}})),
        ("/v1/topics/there/dead/redrive", json!({"filter": {"status": 500}, "ids": ["1"]})),
        ("/v1/tokens", json!({"name": "a b", "scopes": ["read"]})),
        ("/v1/tokens", json!({"name": "a", "scopes": ["write"]})),
        ("/v1/tokens", json!({"name": "a", "scopes": []})),
    ];
    http.ask("POST", "/v1/topics", &json!({"name": "there", "callback": "http://h/"})).is(201);
    let problems: Vec<Value> = asked
        .iter()
        .map(|(path, body)| {
            let problem = http.ask("POST", path, body).is(422);
            assert_eq!(problem["code"], "bad_field", "{body}: {problem}");
            problem
        })
        .collect();
    let browser = signed_in(&daemon, Setting { language: "zh-CN", ..Setting::default() });
    browser.run(&format!(
        "Promise.all([import('/console/problem_words.js'), import('/console/words/zh_problems.js')]).then(([finder, words]) => {{
            const all = finder.problemFinder(words.default);
            window.described = {}.map((one) => all.detail(one.detail, {{ field: one.field }}));
        }}, (e) => {{ window.described = [String(e)]; }})",
        json!(problems)
    ));
    browser.until("the words", "window.described");
    let message = browser.run("return window.described");
    let message = message.as_array().unwrap();
    assert_eq!(message.len(), problems.len(), "{message:?}");
    let english: Vec<_> = problems
        .iter()
        .zip(message)
        .filter(|(problem, message)| {
            // Each translated sentence must name the field of its problem.
            let has_field = |text: &str| text.contains(problem["field"].as_str().unwrap());
            !message.as_str().is_some_and(|text| text.chars().any(|c| c > '\u{4e00}') && has_field(text))
        })
        .map(|(problem, message)| format!("{}: {message}", problem["detail"]))
        .collect();
    assert!(english.is_empty(), "{english:#?}");
}
