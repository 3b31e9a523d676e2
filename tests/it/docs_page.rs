//! `/docs`, the page of the API: whether it shows all of `/openapi.json`, who may see it, and whether a browser shows
//! it without faults.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use serde_json::{Value, json};

use crate::console_browser::{good, signed_in};
use crate::support::browser::Setting;
use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, topic};

/// Members of the document that contain members with free names, such as the names of fields. Free names are not words
/// of OpenAPI.
const NAMES_OF_USERS: [&str; 4] = ["properties", "headers", "content", "responses"];

/// Members of the document that can have any JSON value, such as the example of a job.
const VALUES: [&str; 4] = ["example", "examples", "default", "enum"];

/// Returns the sections of a class, by their ids.
fn sections<'p>(page: &'p str, class: &str) -> Vec<(&'p str, &'p str)> {
    let begin = format!("<section class=\"{class}\" id=\"");
    let section = |text: &'p str| (text.split('"').next().unwrap(), text.split("</section>").next().unwrap());
    page.split(begin.as_str()).skip(1).map(section).collect()
}

/// Returns what a reader sees: no markup, and no backticks.
fn seen(html: &str) -> String {
    let mut text = String::new();
    for part in html.split('<') {
        text.push_str(part.split_once('>').map_or(part, |(_, text)| text));
    }
    for (entity, c) in [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")] {
        text = text.replace(entity, c);
    }
    text.replace('`', "")
}

/// Collects the texts of a part of the document, each with its place.
fn said(part: &Value, at: &str, all: &mut Vec<(String, String)>) {
    let mut say = |text: &str| all.push((at.to_owned(), text.to_owned()));
    match part {
        Value::Object(members) => {
            // (A field may also have one of the names in `NAMES_OF_USERS`.)
            let (outer, last) = at.rsplit_once('/').unwrap_or(("", at));
            let are_names = NAMES_OF_USERS.contains(&last) && !outer.ends_with("/properties");
            for (name, value) in members {
                if are_names {
                    say(name);
                } else if VALUES.contains(&name.as_str()) {
                    match (name.as_str(), value) {
                        ("examples" | "enum", Value::Array(values)) => {
                            values.iter().for_each(|v| say(&plain(v)))
                        }
                        _ => say(&plain(value)),
                    }
                    continue;
                }
                match (name.as_str(), value) {
                    ("required", Value::Bool(true)) => say("required"),
                    ("additionalProperties", Value::Bool(true)) => say("Other fields are allowed."),
                    ("additionalProperties", Value::Bool(false)) => say("No other fields."),
                    ("$ref", Value::String(target)) => say(target.rsplit('/').next().unwrap()),
                    _ => {
                        let mut inner = Vec::new();
                        said(value, &format!("{at}/{name}"), &mut inner);
                        inner.iter().for_each(|(_, text)| say(text));
                    }
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| said(value, at, all)),
        Value::String(text) => say(text),
        Value::Number(number) => say(&number.to_string()),
        Value::Bool(_) | Value::Null => {}
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the texts of a part of the document that are missing in `text`.
fn missing(part: &Value, text: &str, at: &str) -> Vec<String> {
    let mut all = Vec::new();
    said(part, at, &mut all);
    assert!(!all.is_empty(), "{at} says something");
    all.retain(|(_, what)| !text.contains(&what.replace('`', "")));
    all.into_iter().map(|(at, what)| format!("{at}: {what}")).collect()
}

/// Collects the fields of a schema, with what is declared for each.
fn fields<'d>(schema: &'d Value, all: &mut Vec<(&'d str, &'d Value)>) {
    match schema {
        Value::Object(members) => {
            for (name, value) in members {
                if let ("properties", Value::Object(properties)) = (name.as_str(), value) {
                    all.extend(properties.iter().map(|(name, field)| (name.as_str(), field)));
                }
                fields(value, all);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, all)),
        _ => {}
    }
}

#[test]
fn everything_that_the_document_says_is_on_the_page() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let mut http = Http::tcp(&daemon);
    let document = http.get("/openapi.json").is(200);
    let page = http.get("/docs").is(200);
    let page = page.as_str().unwrap();
    let mut found = Vec::new();

    let operations = sections(page, "operation");
    let mut count = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            count += 1;
            let id = operation["operationId"].as_str().unwrap();
            let sections: Vec<_> = operations.iter().filter(|(known, _)| *known == id).collect();
            let [(_, html)] = sections[..] else { panic!("{id} is {} times on the page", sections.len()) };
            let text = seen(html);
            assert!(text.contains(&format!("{} {path}", method.to_uppercase())), "{text}");
            let mut rest = operation.clone();
            let tags = rest.as_object_mut().unwrap().remove("tags").unwrap();
            let group = format!("id=\"group-{}\"", tags[0].as_str().unwrap().replace(' ', "-"));
            let before = &page[..page.find(&format!("id=\"{id}\"")).unwrap()];
            assert!(before.rfind("id=\"group-") == before.rfind(&group), "{id} is under {group}");
            found.extend(missing(&rest, &text, id));
            assert!(page.contains(&format!("<a href=\"#{id}\"")), "the list of operations has {id}");
        }
    }
    assert_eq!((operations.len(), count > 50), (count, true));

    let types = sections(page, "type");
    let schemas = document["components"]["schemas"].as_object().unwrap();
    assert_eq!(types.len(), schemas.len());
    let mut with_default = 0;
    for (name, schema) in schemas {
        let id = format!("type-{name}");
        let (_, html) = types.iter().find(|(known, _)| *known == id).unwrap_or_else(|| panic!("{id}"));
        found.extend(missing(schema, &seen(html), name));
        let mut all = Vec::new();
        fields(schema, &mut all);
        for (field, schema) in all {
            let rows: Vec<String> = html
                .split(&format!("<th scope=\"row\"><code>{field}</code>"))
                .skip(1)
                .map(|row| seen(&row.replace("</td>", "\n")))
                .collect();
            assert!(!rows.is_empty(), "{name} has a row of {field}");
            let Some(default) = schema.get("default") else { continue };
            with_default += 1;
            // The default is in the second cell of the row, after the type.
            assert!(
                rows.iter().any(|row| row.split('\n').nth(1) == Some(&default.to_string())),
                "{name}.{field}: {default}: {rows:?}"
            );
        }
    }
    assert!(with_default >= model::topic::Topic::SETTINGS.len(), "{with_default}");
    let mut rest = document.clone();
    for done in ["paths", "openapi"] {
        rest.as_object_mut().unwrap().remove(done);
    }
    rest["components"].as_object_mut().unwrap().remove("schemas");
    found.extend(missing(&rest, &seen(page), ""));
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn settings_of_topics_have_their_defaults_in_the_document() {
    let daemon = Daemon::start("");
    let document = Http::tcp(&daemon).get("/openapi.json").is(200);
    let properties = &document["components"]["schemas"]["NewTopic"]["properties"];
    for setting in model::topic::Topic::SETTINGS {
        assert_eq!(properties[setting.name].get("default"), Some(&setting.default()), "{}", setting.name);
    }
}

#[test]
fn the_page_has_the_access_and_headers_of_the_rest() {
    let daemon = Daemon::start("[http]\nauth = \"token\"\nconsole = false\n");
    let mut root = Http::unix(&daemon);
    let mut token = |name: &str, scope: &str| {
        let answer = root.ask("POST", "/v1/tokens", &json!({"name": name, "scopes": [scope]})).is(201);
        format!("Authorization: Bearer {}\r\n", answer["token"].as_str().unwrap())
    };
    let reader = token("reader", "read");
    let others = [
        String::new(),
        "Authorization: Bearer wrong\r\n".to_owned(),
        token("m", "metrics"),
        token("p", "produce:*"),
    ];
    let mut http = Http::tcp(&daemon);
    for header in &others {
        let page = http.send("GET", "/docs", header, b"");
        let document = http.send("GET", "/openapi.json", header, b"");
        assert!([401, 403].contains(&page.status), "{page:?}");
        assert_eq!((page.status, &page.json["code"]), (document.status, &document.json["code"]), "{header}");
        assert_eq!(page.headers.get("www-authenticate"), document.headers.get("www-authenticate"));
        assert!(!page.json.to_string().contains("operationId"));
    }
    let foreign = http.send("GET", "/docs", "Cookie: dq_session=x\r\n", b"");
    assert_eq!(foreign.status, 401);

    // The daemon may not know the new token yet, so the test asks until the page comes.
    let page = crate::support::eventually(10 * SECOND, "the page", || {
        let page = http.send("GET", "/docs", &reader, b"");
        (page.status == 200).then_some(page)
    });
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cache-control", "no-cache"),
    ] {
        assert_eq!(page.headers.get(name).map(String::as_str), Some(value), "{name}");
    }
    let policy = &page.headers["content-security-policy"];
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("script") && !policy.contains("unsafe"), "{policy}");
    let html = page.json.as_str().unwrap();
    for loading in ["<script", "<link", "<img", "src=", "url(", "@import", "style=\""] {
        assert!(!html.contains(loading), "the page loads nothing: {loading}");
    }

    // HEAD has the same headers, and no body.
    let mut stream = TcpStream::connect(("127.0.0.1", daemon.http)).unwrap();
    stream.set_read_timeout(Some(30 * SECOND)).unwrap();
    let head = format!("HEAD /docs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{reader}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(answer.contains(&format!("content-length: {}", page.headers["content-length"])), "{answer}");
    assert!(answer.contains("text/html; charset=utf-8") && answer.contains("content-security-policy"));
    http.send("POST", "/docs", &reader, b"").is_problem(403, "forbidden", None);
}

#[test]
fn the_examples_of_the_page_are_requests_that_dq_takes() {
    let sink = Sink::start();
    let webhook = format!("[[alert.webhook]]\nname = \"ops\"\nurl = \"{}\"\n", sink.url());
    let daemon = Daemon::start(&format!("[http]\nauth = \"token\"\n{webhook}"));
    let mut root = Http::unix(&daemon);
    let token = root.ask("POST", "/v1/tokens", &json!({"name": "all", "scopes": ["admin"]})).is(201);
    let orders = json!({"name": "orders", "callback": sink.url(), "delay": "5h"});
    root.ask("POST", "/v1/topics", &orders).is(201);
    let page = root.get("/docs").is(200);
    let mut wrong = Vec::new();
    let sections = sections(page.as_str().unwrap(), "operation");
    for (id, html) in &sections {
        let example = html.rsplit_once("<pre><code>").unwrap().1.split("</code>").next().unwrap();
        let command = seen(example);
        assert!(command.starts_with("curl -s "), "{command}");
        // Some answers have no end, so curl stops after a time.
        let command = command.replacen("curl -s", "curl -s -m 20 -w '\\n%{http_code}'", 1);
        let done = Command::new("sh")
            .args(["-c", &command])
            .env("DQ", format!("http://127.0.0.1:{}", daemon.http))
            .env("TOKEN", token["token"].as_str().unwrap())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&done.stdout);
        let (body, status) = output.rsplit_once('\n').unwrap();
        let problem: Value = serde_json::from_str(body).unwrap_or_default();
        let is_taken = status.starts_with('2')
            || ["401", "404", "409", "503"].contains(&status)
                && problem["code"] != "no_route"
                && problem["code"] != "unauthorized";
        if !is_taken {
            wrong.push(format!("{id}: {command}: {output}"));
        }
    }
    assert!(sections.len() > 50 && wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_person_reads_the_page_of_the_api_from_the_console() {
    let daemon = Daemon::start("[http]\nauth = \"token\"\n");
    for setting in [Setting::default(), Setting { width: 390, height: 844, language: "en" }] {
        let browser = signed_in(&daemon, setting);
        if setting.width > 500 {
            browser.click("a[href='/docs']");
        } else {
            browser.go(&format!("http://127.0.0.1:{}/docs", daemon.http));
        }
        browser.see("h1", "the API");
        browser.see("#add_job", "/v1/topics/{topic}/jobs");
        browser.see("#type-NewTopic", "max_attempts");
        assert_eq!(browser.run("return document.title.endsWith(': the API')"), true);
        // Each link leads to an element of the page.
        let dead = "return [...document.querySelectorAll('a[href^=\"#\"]')].map(a => a.getAttribute('href').slice(1))
            .filter(id => !document.getElementById(id))";
        assert_eq!(browser.run(dead), json!([]));
        let ids = "const ids = [...document.querySelectorAll('[id]')].map(e => e.id); return ids.length - new Set(ids).size";
        assert_eq!(browser.run(ids), 0);
        // The browser applies the style of the page, and has loaded nothing else.
        let ground = "return getComputedStyle(document.querySelector('.operation')).borderTopWidth";
        assert_eq!(browser.run(ground), "1px");
        assert_eq!(browser.run("return performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.endsWith('/favicon.ico'))"), json!([]));
        let wider = browser.run("return document.documentElement.scrollWidth - innerWidth");
        assert!(wider.as_i64() <= Some(0), "{wider} pixels too wide");
        let barriers = browser.barriers();
        assert!(barriers.is_empty(), "{barriers:#?}");
        good(&browser);
    }
}
