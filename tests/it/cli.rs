//! The whole command line: the real executable against a real daemon, over the Unix socket and with --url.

use std::io::{BufRead as _, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support;
use crate::support::{Daemon, SECOND, Sink, eventually, on_redis, topic, without_due};
use serde_json::{Value, json};

/// The result of a `dq` command.
#[derive(Debug)]
struct Did {
    code: i32,
    out: String,
    err: String,
}

impl Did {
    #[track_caller]
    fn is(self, code: i32) -> Did {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Returns the output, which has one JSON object on each line.
    #[track_caller]
    fn lines(&self) -> Vec<Value> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    }

    /// Returns the error on stderr of a command with --json.
    #[track_caller]
    fn error(&self) -> Value {
        let error: Value = serde_json::from_str(&self.err).unwrap_or_else(|e| panic!("{e}: {self:?}"));
        assert_eq!(error["error"]["exit"], self.code, "{self:?}");
        error["error"].clone()
    }
}

/// Returns a command that the environment does not influence.
fn dq(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    for name in ["DQ_URL", "DQ_RUN_DIR", "DQ_TOKEN", "DQ_TOKEN_FILE", "NO_COLOR"] {
        command.env_remove(name);
    }
    command.args(words).env("XDG_CONFIG_HOME", "/nonexistent").stdin(Stdio::null());
    command
}

fn did(output: Output) -> Did {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Did { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

fn run(words: &[&str]) -> Did {
    did(dq(words).output().unwrap())
}

/// Runs a command with this input on stdin.
fn fed(words: &[&str], input: &str) -> Did {
    let mut child =
        dq(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    did(child.wait_with_output().unwrap())
}

/// A way to reach a daemon.
struct Door {
    name: &'static str,
    words: Vec<String>,
}

impl Door {
    fn run(&self, words: &[&str]) -> Did {
        let all: Vec<&str> = words.iter().copied().chain(self.words.iter().map(String::as_str)).collect();
        run(&all)
    }
}

fn doors(daemon: &Daemon) -> [Door; 2] {
    let run_dir = daemon.dir.path().join("var/run").display().to_string();
    let url = format!("http://127.0.0.1:{}", daemon.http);
    [
        Door { name: "socket", words: vec!["--run-dir".into(), run_dir] },
        Door { name: "url", words: vec!["--url".into(), url] },
    ]
}

/// Runs a test three times: over the socket and over the port of a daemon that requires no tokens, and with a token
/// over the port of a daemon that requires tokens.
fn by_every_door(test: impl Fn(&Sink, &Daemon, usize, &Door)) {
    let (sink, daemon) = sink_and_daemon();
    for (n, door) in doors(&daemon).iter().enumerate() {
        test(&sink, &daemon, n, door);
    }
    let (sink, daemon) = sink_and_daemon_with("[http]\nauth = \"token\"\n");
    let [socket, mut url] = doors(&daemon);
    let file = daemon.dir.path().join("token");
    std::fs::write(&file, socket.run(&["token", "create", "all", "--scope", "admin"]).is(0).out).unwrap();
    url.name = "token";
    url.words.extend(["--token-file".into(), file.display().to_string()]);
    eventually(5 * SECOND, "a token that is known", || {
        (url.run(&["topics", "list"]).code == 0).then_some(())
    });
    test(&sink, &daemon, 0, &url);
}

fn sink_and_daemon() -> (Sink, Daemon) {
    sink_and_daemon_with("")
}

fn sink_and_daemon_with(more: &str) -> (Sink, Daemon) {
    let sink = Sink::start();
    let daemon = Daemon::start(&format!(
        "{more}{}{}",
        topic("t", &sink, "delay = \"5h\"\nmax_attempts = 1"),
        topic("off", &sink, "status = \"offline\"")
    ));
    (sink, daemon)
}

#[test]
fn a_job_is_added_shown_moved_run_and_removed() {
    by_every_door(|sink, _, n, door| {
        let id = format!("{}:订单/{n} x", door.name);
        let added = door.run(&["add", "t", r#"{"n": 1.00}"#, "--id", &id, "--priority", "high"]).is(0);
        assert!(added.out.starts_with(&format!("new: t:{id}, due 2")), "{}", added.out);
        let again = door.run(&["add", "t", "2", "--id", &id, "--on-conflict", "reject", "--json"]).is(4);
        assert_eq!((&again.error()["code"], again.out.as_str()), (&json!("exists"), ""));
        let kept = door.run(&["add", "t", "2", "--id", &id, "--on-conflict", "keep", "--json"]).is(0).json();
        assert_eq!(without_due(kept), json!({"topic": "t", "id": id, "outcome": "kept"}));

        let shown = door.run(&["get", "t", &id, "--json"]).is(0);
        assert!(shown.out.contains(r#""body":{"n": 1.00}"#), "as it was sent: {}", shown.out);
        assert_eq!((&shown.json()["state"], &shown.json()["priority"]), (&json!("delayed"), &json!("high")));
        let page = door.run(&["get", "t", &id]).is(0).out;
        assert!(page.contains("in 4h 59m") && page.contains(r#"{"n": 1.00}"#), "{page}");

        door.run(&["reschedule", "t", &id, "--delay", "90"]).is(0);
        let due = door.run(&["get", "t", &id, "--json"]).is(0).json()["due_ms"].as_i64().unwrap();
        assert!((due - support::now_ms() - 90_000).abs() < 30_000, "{due}");
        door.run(&["reschedule", "t", &id, "--at", "2999-12-31T00:00:00Z"]).is(0);
        assert_eq!(door.run(&["get", "t", &id, "--json"]).json()["due_ms"], 32_503_593_600_000_i64);
        let refused = door.run(&["reschedule", "t", &id, "--json"]).is(2);
        assert_eq!(refused.error()["code"], "usage");

        let ran = door.run(&["run", "t", &id, "--json"]).is(0).json();
        assert_eq!(ran, json!({"topic": "t", "id": id, "outcome": "ready"}));
        sink.wait_for(n + 1, 10 * SECOND);
        assert_eq!(sink.calls().pop().unwrap().body, r#"{"n": 1.00}"#);

        let other = format!("other-{n}");
        let added = door.run(&["add", "t", "plain text", "--text", "--id", &other]).is(0).out;
        assert!(added.starts_with(&format!("new: t:{other}, due 2")), "{added}");
        assert_eq!(door.run(&["get", "t", &other, "--json"]).json()["body"], "plain text");
        assert_eq!(door.run(&["del", "t", &other]).is(0).out, format!("deleted: t:{other}\n"));
        let gone = door.run(&["del", "t", &other]).is(3);
        assert_eq!(gone.err, format!("dq: there is no job \"{other}\" in topic t (404 not_found)\n"));
    });
}

#[test]
fn a_body_comes_from_a_file_or_stdin_and_bad_arguments_fail() {
    let (_sink, daemon) = sink_and_daemon();
    let run_dir = daemon.dir.path().join("var/run").display().to_string();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("job.json");
    std::fs::write(&file, "\n {\"from\": \"file\"}\n").unwrap();
    let at = ["--run-dir", &run_dir];
    run(&["add", "t", &format!("@{}", file.display()), "--id", "f", at[0], at[1]]).is(0);
    fed(&["add", "t", "-", "--id", "s", at[0], at[1]], "[\"stdin\"]\n").is(0);
    let body = |id: &str| run(&["get", "t", id, "--json", at[0], at[1]]).is(0).json()["body"].clone();
    assert_eq!((body("f"), body("s")), (json!({"from": "file"}), json!(["stdin"])));
    // The address may come from the environment.
    let by_environment = did(dq(&["get", "t", "s"]).env("DQ_RUN_DIR", &run_dir).output().unwrap());
    by_environment.is(0);
    let url = format!("unix:{run_dir}/http.sock");
    did(dq(&["get", "t", "s"]).env("DQ_URL", &url).output().unwrap()).is(0);
    // The address may come from the user's file.
    std::fs::create_dir(dir.path().join("dq")).unwrap();
    std::fs::write(dir.path().join("dq/cli.toml"), format!("url = \"{url}\"\n")).unwrap();
    did(dq(&["get", "t", "s"]).env("XDG_CONFIG_HOME", dir.path()).output().unwrap()).is(0);

    for (words, code, said) in [
        (&["add", "t", "not json"][..], 2, "--text takes it as a text"),
        (&["add", "t"], 2, "required"),
        (&["add", "t", "1", "--delay", "soon"], 2, "--delay \"soon\" is no span"),
        (&["add", "t", "1", "--delay", "1s", "--at", "0"], 2, "cannot be used with"),
        (&["add", "t", "1", "--max-attempts", "0"], 2, "(422 bad_field)"),
        (&["add", "nope", "1"], 3, "dq: topic nope is not registered (404 unknown_topic)\n"),
        (&["add", "off", "1"], 4, "(409 topic_offline)"),
        (&["get", "t", "nothing"], 3, "(404 not_found)"),
        (&["list", "nope"], 3, "(404 unknown_topic)"),
        (&["frobnicate"], 2, "unrecognized subcommand"),
        (&["get", "t", "x", "--url", "ftp://h"], 2, "is no URL of a daemon"),
    ] {
        let words: Vec<&str> =
            words.iter().chain(at.iter().filter(|_| !words.contains(&"--url"))).copied().collect();
        let did = run(&words).is(code);
        assert!(did.err.contains(said), "{words:?}: {}", did.err);
        assert_eq!(did.out, "");
    }
    for wrong in ["top", "-1", "4294967296"] {
        let wrong = run(&["add", "t", "1", &format!("--priority={wrong}"), "--json"]).is(2);
        assert_eq!(wrong.error()["code"], "usage");
        assert!(wrong.err.contains("from 0 to 4294967295"), "{}", wrong.err);
    }
    let missing = run(&["get", "t", "x", "--json", "--run-dir", "/nonexistent"]).is(5);
    assert_eq!(missing.error()["code"], "unreachable");
    let port = support::free_port();
    run(&["get", "t", "x", "--url", &format!("http://127.0.0.1:{port}")]).is(5);
}

#[test]
fn a_file_of_jobs_is_added_and_refused_lines_are_reported() {
    let (sink, daemon) = sink_and_daemon();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.ndjson");
    let mut text: String =
        (0..2500).map(|n| format!("{{\"id\": \"j{n}\", \"body\": {n}, \"delay\": \"2h\"}}\n")).collect();
    text += "\nnot json\n{\"id\": \"no-body\"}\n{\"id\": \"j0\", \"body\": 0, \"on_conflict\": \"reject\"}\n";
    // This line is longer than a request may be by default.
    text += &format!("{{\"id\": \"long\", \"body\": \"{}\"}}\n", "x".repeat(2 << 20));
    text += "{\"id\": \"last\", \"body\": null}";
    std::fs::write(&file, &text).unwrap();
    let file = file.display().to_string();
    let [socket, url] = doors(&daemon);
    let added = socket.run(&["add", "t", "--batch", &file, "--priority", "low", "--json"]).is(1);
    assert_eq!(added.json(), json!({"new": 2501, "replaced": 0, "kept": 0, "failed": 4}));
    let answer: Vec<Value> = added.err.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let answer: Vec<_> =
        answer.iter().map(|l| (l["line"].as_u64().unwrap(), l["code"].as_str().unwrap())).collect();
    let expected = [(2502, "bad_json"), (2503, "missing_field"), (2504, "exists"), (2505, "too_large")];
    assert!(expected.iter().all(|e| answer.contains(e)) && answer.len() == 4, "{answer:?}");
    assert_eq!(socket.run(&["get", "t", "last", "--json"]).json()["priority"], "low");

    let again = url.run(&["add", "t", "--batch", &file, "--on-conflict", "keep"]).is(1);
    // The value in a line has precedence over the option for all lines.
    assert_eq!(again.out, "0 new, 0 replaced, 2501 kept, 4 failed\n");
    assert!(
        again.err.contains("line 2502: it is no JSON object") && again.err.contains("(missing_field)"),
        "{}",
        again.err
    );

    // `dq` sends bodies as they are, also bodies that it could not read as JSON values.
    url.run(&["topics", "set", "odd", "--callback", &sink.url()]).is(0);
    let odd = dir.path().join("odd.ndjson");
    let bodies = ["{\"n\":12345678901234567890123,\"b\":1,\"a\":2,\"a\":3}", "\"\\ud83d\"", "1e400"];
    let line =
        |(n, body): (usize, &&str)| format!("{{\"id\": \"odd{n}\", \"body\": {body}, \"delay\": \"2h\"}}\n");
    let mut lines: String = bodies.iter().enumerate().map(line).collect();
    lines += "{\"id\": \"\\ud800\", \"body\": 1}\n{\"id\": \"twice\", \"body\": 1, \"body\": 2}\n";
    std::fs::write(&odd, lines).unwrap();
    let added = url.run(&["add", "odd", "--batch", &odd.display().to_string()]).is(1);
    assert_eq!(added.out, "3 new, 0 replaced, 0 kept, 2 failed\n", "{}", added.err);
    assert!(added.err.contains("line 4: id is") && added.err.contains("line 5: "), "{}", added.err);
    for (n, body) in bodies.iter().enumerate() {
        let shown = url.run(&["get", "odd", &format!("odd{n}"), "--json"]).is(0);
        assert!(shown.out.contains(body), "{}", shown.out);
    }

    for door in [&socket, &url] {
        let some = door.run(&["list", "t", "--limit", "3", "--json"]).is(0).lines();
        let ids: Vec<&str> = some.iter().map(|job| job["id"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), 3, "{ids:?}");
        let all = door.run(&["list", "t", "--all", "--json"]).is(0).lines();
        assert_eq!(all.len(), 2501);
        let page = door.run(&["list", "t", "--limit", "3"]).is(0);
        assert!(page.out.lines().count() == 4 && page.err.contains("--all"), "{page:?}");
        assert_eq!(door.run(&["list", "t", "--state", "dead", "--json"]).is(0).out, "");
    }
    // If the reader of the output stops, the command ends quietly.
    let run_dir = daemon.dir.path().join("var/run");
    let shell =
        format!("{} list t --all --run-dir {} | head -n 1", env!("CARGO_BIN_EXE_dq"), run_dir.display());
    let piped = did(Command::new("sh").args(["-c", &shell]).output().unwrap());
    assert!(piped.out.starts_with("ID") && piped.err.is_empty(), "{piped:?}");
}

#[test]
fn the_status_tells_of_processes_and_of_jobs() {
    let (_sink, daemon) = sink_and_daemon();
    let [socket, _] = doors(&daemon);
    socket.run(&["add", "t", "1", "--id", "1"]).is(0);
    let status = eventually(10 * SECOND, "a status with jobs", || {
        let status = socket.run(&["status", "--json"]).is(0).json();
        status["topics"].is_array().then_some(status)
    });
    for key in ["version", "pid", "phase", "generation", "listening", "processes", "findings", "nodes"] {
        assert!(status.get(key).is_some(), "{key}: {status}");
    }
    let t = status["topics"].as_array().unwrap().iter().find(|topic| topic["topic"] == "t").unwrap();
    assert_eq!((&t["delayed"], &t["dead"]), (&json!(1), &json!(0)));
    let page = socket.run(&["status"]).is(0).out;
    assert!(page.contains("dq-timer-0") && page.lines().any(|l| l.starts_with("t  ")), "{page}");
    assert!(!page.contains('\x1b'), "no terminal, no colours: {page:?}");
    assert!(run(&["status", "--run-dir", "/nonexistent"]).is(1).err.contains("no dq-master answers"));
    // `dq top` needs a terminal, and this test has none.
    let top = socket.run(&["top"]).is(2);
    assert!(top.err.contains("dq status --json"), "{}", top.err);
}

#[test]
fn a_configuration_is_checked_and_summed_up() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dq.toml");
    let path = file.display().to_string();
    std::fs::write(&file, "[consume]\nprocesses = 0\n[[topic]]\nname = \"t\"\ncallback = \"http://h/\"\n")
        .unwrap();
    let good = run(&["config", "check", &path, "--json"]).is(0).json();
    assert_eq!((&good["good"], &good["topics"]), (&json!(true), &json!(["t"])));
    assert!(good["notes"][0].as_str().unwrap().contains("consume.processes is 0"), "{good}");
    let page = run(&["config", "check", &path]).is(0).out;
    assert!(page.contains("embedded in ") && page.ends_with("dq.toml is good\n"), "{page}");
    std::fs::write(&file, "[server]\nlisten_on = 1\n").unwrap();
    let problem = run(&["config", "check", &path]).is(1).err;
    assert!(
        problem.contains("dq.toml: line ") && problem.contains(": server.listen_on: unknown field"),
        "{problem}"
    );
    assert_eq!(run(&["config", "check", &path, "--json"]).is(1).json()["good"], false);
}

#[test]
fn completions_and_pages_of_the_manual_are_made() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let text = run(&["completions", shell]).is(0).out;
        assert!(text.contains("reschedule") && text.contains("redrive"), "{shell}");
        std::fs::write(dir.path().join(shell), text).unwrap();
    }
    let checked = Command::new("bash").arg("-n").arg(dir.path().join("bash")).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let pages = dir.path().join("man");
    run(&["man", pages.to_str().unwrap()]).is(0);
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("dq.1").contains("Exit codes") && page("dq-add.1").contains("jobs.ndjson"));
    assert!(page("dq-topics-set.1").contains("callback"));
    // There is one page for each command.
    let count = std::fs::read_dir(&pages).unwrap().count();
    assert!(count > 30, "{count}");
}

/// Returns all commands that `--help` lists.
fn commands(of: &[&str]) -> Vec<String> {
    let help = run(&[of, &["--help"]].concat()).is(0).out;
    let listed = help.split("\nCommands:\n").nth(1).unwrap_or_default();
    let names = listed.lines().take_while(|line| line.starts_with("  "));
    let names =
        names.filter(|line| !line.starts_with("   ")).map(|line| line.split_whitespace().next().unwrap());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_command_tells_what_it_does_with_examples() {
    let mut seen = 0;
    let mut waiting: Vec<Vec<String>> = commands(&[]).into_iter().map(|name| vec![name]).collect();
    while let Some(path) = waiting.pop() {
        let words: Vec<&str> = path.iter().map(String::as_str).collect();
        let help = run(&[&words[..], &["--help"]].concat()).is(0).out;
        let below = commands(&words);
        assert!(help.contains("Example") || !below.is_empty(), "{words:?} has no example:\n{help}");
        assert!(!help.starts_with("Which daemon") && !help.starts_with("A job."), "{words:?}:\n{help}");
        waiting.extend(below.into_iter().map(|name| [path.clone(), vec![name]].concat()));
        seen += 1;
    }
    assert!(seen > 30, "{seen}");
    assert!(run(&["--help"]).is(0).out.contains("5  the daemon cannot be reached"));
}

#[test]
fn the_doctor_finds_what_is_wrong_and_what_to_do() {
    let (_sink, daemon) = sink_and_daemon();
    let config = daemon.dir.path().join("dq.toml").display().to_string();
    let doctor = |config: &str| run(&["doctor", "--config", config, "--json"]);
    let checks = |did: &Did| -> Vec<(String, String, String)> {
        let json = did.json();
        let text = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
        let all = json["checks"].as_array().unwrap();
        all.iter().map(|line| (text(line, "check"), text(line, "verdict"), text(line, "detail"))).collect()
    };
    let well = doctor(&config).is(0);
    let found = checks(&well);
    for check in [
        "configuration",
        "daemon",
        "api",
        "port server.listen",
        "access run_dir",
        "callback",
        "descriptors",
        "clock",
    ] {
        let line = found.iter().find(|(c, ..)| c == check).unwrap_or_else(|| panic!("{check}: {found:?}"));
        assert!(line.1 != "fail", "{line:?}");
    }
    assert_eq!(found.iter().any(|(c, ..)| c == "node r0"), on_redis(), "{found:?}");
    assert!(
        found.iter().any(|(c, _, d)| c == "port server.listen" && d.contains("held by this daemon")),
        "{found:?}"
    );
    assert!(found.iter().any(|(c, _, d)| c == "callback" && d.contains("accepts a connection")), "{found:?}");

    // Another configuration, for a daemon that does not run, with the same port and a callback that nobody answers.
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("dq.toml");
    let port = support::free_port();
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:{}\"\n[http]\nlisten = \"127.0.0.1:{port}\"\n\
         [callback]\nguard = \"strict\"\nallow = [\"127.0.0.2/32\"]\n[[topic]]\nname = \"a\"\n\
         callback = \"http://127.0.0.2:{port}/\"\n[[topic]]\nname = \"b\"\ncallback = \"http://localhost/\"\n",
        daemon.port
    );
    std::fs::write(&other, text).unwrap();
    let ill = doctor(other.to_str().unwrap()).is(1);
    let found = checks(&ill);
    let verdict = |check: &str, part: &str| {
        let line = found.iter().find(|(c, _, d)| c == check && d.contains(part));
        line.unwrap_or_else(|| panic!("{check} {part}: {found:?}")).1.clone()
    };
    assert_eq!(verdict("daemon", "no dq-master answers"), "fail");
    assert_eq!(verdict("port server.listen", "held by dq-"), "fail");
    assert_eq!(verdict("port http.listen", "is free"), "ok");
    assert_eq!(verdict("callback", "accepts no connection"), "warn");
    assert_eq!(verdict("callback", "is not called"), "fail");
    assert!(!dir.path().join("var").exists(), "it changes nothing");
    let page = run(&["doctor", "--config", other.to_str().unwrap()]).is(1).out;
    assert!(page.contains("FAIL  daemon") && page.contains("-> ") && page.contains(" failed\n"), "{page}");
    std::fs::write(&other, "[server]\nlisten = \"nowhere\"\n").unwrap();
    let broken = doctor(other.to_str().unwrap()).is(1);
    assert!(checks(&broken).iter().any(|(c, v, _)| c == "configuration" && v == "fail"));
}

#[test]
fn topics_are_made_changed_tested_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    by_every_door(|sink, _, _, door| {
        let name = format!("new-{}", door.name);
        let url = sink.url();
        door.run(&["topics", "set", &name, "--callback", &url, "--delay", "5m", "--header", "X-A: 1"]).is(0);
        let topic = door.run(&["topics", "show", &name, "--json"]).is(0).json();
        assert_eq!((&topic["delay"], &topic["headers"]["X-A"]), (&json!("5m"), &json!("1")));
        assert_eq!((&topic["source"], &topic["paused"]), (&json!("registry"), &json!(false)));
        let nothing = dir.path().join("nothing");
        std::fs::write(&nothing, "\n").unwrap();
        for wrong in [
            ["--header", "X-B: 1", "--header", "x-b: 2"],
            ["--secrets-file", nothing.to_str().unwrap(), "--delay", "1s"],
        ] {
            door.run(&[&["topics", "set", name.as_str()], &wrong[..]].concat()).is(2);
        }
        // Only the given fields are changed.
        door.run(&["topics", "set", &name, "--max-attempts", "3", "--retry", "10s,1m"]).is(0);
        let topic = door.run(&["topics", "show", &name, "--json"]).is(0).json();
        assert_eq!((&topic["delay"], &topic["max_attempts"]), (&json!("5m"), &json!(3)));
        let revision = topic["revision"].as_str().unwrap().to_owned();
        door.run(&["topics", "set", &name, "--unset", "max-attempts", "--if-revision", &revision]).is(0);
        door.run(&["topics", "set", &name, "--rate", "7", "--if-revision", &revision]).is(4);
        assert_eq!(door.run(&["topics", "show", &name, "--json"]).json()["max_attempts"], 10);
        // `dq topics set` accepts the output of `show`, and also a section of a configuration file.
        let file = dir.path().join("topic.json");
        std::fs::write(&file, door.run(&["topics", "show", &name, "--json"]).out).unwrap();
        let path = file.display().to_string();
        door.run(&["topics", "set", "--file", &path]).is(0);
        let toml = dir.path().join("topic.toml");
        std::fs::write(&toml, format!("[[topic]]\nname = \"{name}\"\ncallback = \"{url}\"\n")).unwrap();
        door.run(&["topics", "set", "--file", toml.to_str().unwrap()]).is(0);
        assert_eq!(door.run(&["topics", "show", &name, "--json"]).json()["delay"], "0s");

        let listed = door.run(&["topics", "list", "--json"]).is(0).lines();
        let names: Vec<&str> = listed.iter().map(|topic| topic["name"].as_str().unwrap()).collect();
        assert!(names.contains(&name.as_str()) && names.contains(&"t"), "{names:?}");
        assert!(door.run(&["topics", "list"]).is(0).out.contains(&name));
        assert!(door.run(&["topics", "show", "t"]).is(0).out.contains("source"));

        let calls = sink.count();
        let tested = door.run(&["topics", "test", &name, r#"{"test": 1}"#, "--json"]).is(0).json();
        assert_eq!((&tested["status"], sink.count()), (&json!(200), calls + 1));
        assert_eq!(sink.calls().pop().unwrap().body, r#"{"test": 1}"#);
        door.run(&["topics", "set", &name, "--callback", "http://127.0.0.1:1/"]).is(0);
        door.run(&["topics", "test", &name]).is(1);

        assert_eq!(door.run(&["topics", "delete", &name, "--yes"]).is(0).out, format!("deleted: {name}\n"));
        door.run(&["topics", "show", &name]).is(3);
        assert_eq!(
            door.run(&["topics", "delete", "t", "--yes", "--json"]).is(4).error()["code"],
            "read_only"
        );
        door.run(&["topics", "set", &name, "--rate", "no"]).is(2);
        door.run(&["topics", "set", &name, "--callback", "nowhere"]).is(2);
    });
}

#[test]
fn a_topic_is_paused_and_resumed() {
    by_every_door(|sink, _, n, door| {
        let id = format!("p{n}");
        door.run(&["topics", "pause", "t"]).is(0);
        eventually(5 * SECOND, "a paused topic", || {
            (door.run(&["topics", "show", "t", "--json"]).json()["paused"] == true).then_some(())
        });
        assert!(door.run(&["topics", "list"]).is(0).out.contains("online, paused"));
        door.run(&["add", "t", "1", "--id", &id, "--delay", "0"]).is(0);
        assert_eq!(door.run(&["get", "t", &id, "--json"]).is(0).json()["state"], "ready");
        let shown = door.run(&["get", "t", &id]).is(0).out;
        assert!(shown.contains("waits     the topic is paused"), "{shown}");
        let status = door.run(&["status"]).out;
        assert!(status.contains("\npaused topic t: 1 ready jobs wait, and 0 jobs are delayed\n"), "{status}");
        let doctor = door.run(&["doctor"]).out;
        assert!(doctor.contains("t: 1 ready jobs wait") && doctor.contains("dq topics resume t"), "{doctor}");
        assert_eq!(door.run(&["topics", "resume", "t"]).is(0).out, "resumed: t\n");
        sink.wait_for(n + 1, 10 * SECOND);
        door.run(&["topics", "pause", "nope"]).is(3);
    });
}

#[test]
fn dead_letters_are_listed_redriven_and_purged() {
    let sink = Sink::answering(|_| support_answer());
    let daemon = Daemon::start(&topic("t", &sink, "max_attempts = 1"));
    let [socket, url] = doors(&daemon);
    for n in 0..5 {
        socket.run(&["add", "t", "1", "--id", &format!("d{n}")]).is(0);
    }
    let dead = |door: &Door| door.run(&["dead", "list", "t", "--all", "--json"]).is(0).lines().len();
    eventually(20 * SECOND, "five dead letters", || (dead(&socket) == 5).then_some(()));
    assert_eq!(dead(&url), 5);
    assert!(socket.run(&["dead", "list", "t", "--limit", "2"]).is(0).err.contains("--all"));
    let table = url.run(&["dead", "list", "t"]).is(0).out;
    assert!(table.contains("DIED") && table.contains("REASON"), "{table}");
    assert_eq!(table.lines().filter(|line| line.contains("status 500  no      1")).count(), 5, "{table}");
    let shown = url.run(&["get", "t", "d0"]).is(0).out;
    for part in ["died ", "reason    status 500\n", "500  status 500  no\n"] {
        assert!(shown.contains(part), "{part:?}\n{shown}");
    }
    let dry = url.run(&["dead", "redrive", "t", "--dry-run", "--json"]).is(0).json();
    assert_eq!(dry, json!({"topic": "t", "matched": 5, "redriven": 0, "dry_run": true}));
    let calls = sink.count();
    let redriven = socket.run(&["dead", "redrive", "t", "--id", "d0", "--yes", "--json"]).is(0).json();
    assert_eq!((&redriven["matched"], &redriven["redriven"]), (&json!(1), &json!(1)));
    eventually(10 * SECOND, "another call", || (sink.count() > calls).then_some(()));
    eventually(10 * SECOND, "five dead letters", || (dead(&socket) == 5).then_some(()));
    assert_eq!(
        url.run(&["dead", "purge", "t", "--limit", "2"]).is(0).out,
        "2 of 5 dead letters are purged\n"
    );
    assert_eq!(socket.run(&["dead", "purge", "t", "--yes"]).is(0).out, "3 of 3 dead letters are purged\n");
    assert_eq!(dead(&socket), 0);
    socket.run(&["dead", "purge", "nope", "--yes"]).is(3);
}

#[test]
fn many_jobs_are_changed_at_once() {
    if on_redis() {
        return; // Without a registry, there are no operations.
    }
    let (_sink, daemon) = sink_and_daemon();
    let [socket, url] = doors(&daemon);
    let lines: String =
        (0..300).map(|n| format!("{{\"id\": \"j{n}\", \"body\": 1, \"delay\": \"2h\"}}\n")).collect();
    let words = ["add", "t", "--batch", "-"];
    let door: Vec<&str> = socket.words.iter().map(String::as_str).collect();
    fed(&[&words[..], &door].concat(), &lines).is(0);
    let dry = url.run(&["bulk", "cancel", "t", "--id-prefix", "j1", "--dry-run"]).is(0);
    assert_eq!(dry.out, "111 jobs of topic t match\n");
    let counted = url.run(&["bulk", "run", "t", "--dry-run", "--json"]).is(0).json();
    assert_eq!(counted, json!({"matched": 300, "skipped": 0, "looked_at": 300, "is_complete": true}));
    let done = socket.run(&["bulk", "cancel", "t", "--id-prefix", "j1", "--yes"]).is(0);
    assert_eq!(done.out, "operation 1 (cancel, topic t) is done: 111 jobs changed, 0 skipped\n");
    assert!(done.err.contains("operation 1; it goes on if this command ends"), "{done:?}");
    let before = url.run(&["get", "t", "j2", "--json"]).is(0).json()["due_ms"].as_i64().unwrap();
    url.run(&["bulk", "reschedule", "t", "--by", "-10m"]).is(0);
    let after = url.run(&["get", "t", "j2", "--json"]).is(0).json()["due_ms"].as_i64().unwrap();
    assert_eq!(after, before - 600_000);
    // An operation that the command does not wait for (`--detach`) can be shown, listed and stopped.
    let at = ["--at", "2099-01-01 00:00:00", "--spread", "1h", "--rate", "10", "--detach"];
    let begun = url.run(&[&["bulk", "reschedule", "t"][..], &at].concat()).is(0);
    assert!(begun.out.starts_with("operation 3 has begun: dq bulk show 3"), "{begun:?}");
    let shown = url.run(&["bulk", "show", "3", "--json"]).is(0).json();
    assert_eq!((&shown["operation"], &shown["spread_ms"]), (&json!("reschedule"), &json!(3_600_000)));
    url.run(&["bulk", "stop", "3"]).is(0);
    eventually(20 * SECOND, "a stop", || {
        url.run(&["bulk", "show", "3"]).out.contains("is stopped").then_some(())
    });
    let table = socket.run(&["bulk", "list"]).is(0).out;
    assert!(table.starts_with("NUMBER") && table.lines().count() == 4, "{table}");
    assert_eq!(socket.run(&["bulk", "list", "--json", "--limit", "2"]).is(0).lines().len(), 2);
    url.run(&["bulk", "show", "99"]).is(3);
    url.run(&["bulk", "reschedule", "t", "--by", "soon", "--yes"]).is(2);
    url.run(&["bulk", "reschedule", "t"]).is(2);
    url.run(&["bulk", "cancel", "t", "--state", "dead"]).is(2);
    url.run(&["bulk", "cancel", "none"]).is(3);
}

#[test]
fn listen_shows_headers_and_checks_signatures() {
    let listen =
        ["listen", "--listen", "127.0.0.1:0", "--secret", "an older secret", "--secret", "the new secret"];
    let mut listener = dq(&listen).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(listener.stdout.take().unwrap()).lines().map(Result::unwrap);
    let url = lines.next().unwrap().strip_prefix("listening: ").unwrap().to_owned();
    let topic = |name: &str, secret: &str| {
        format!("[[topic]]\nname = \"{name}\"\ncallback = \"{url}\"\nsecrets = [{secret}]\n")
    };
    let topics = [topic("good", "\"the new secret\""), topic("bad", "\"another secret\""), topic("none", "")];
    let daemon = Daemon::start(&topics.concat());
    let [socket, _] = doors(&daemon);
    for (topic, said) in [("good", "valid (secret 2 of 2)"), ("bad", "invalid ("), ("none", "missing (")] {
        socket.run(&["add", topic, "1", "--id", "a"]).is(0);
        let shown: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        let shown = shown.join("\n");
        assert!(shown.contains("\n    dq-job-id: a\n"), "{shown}");
        assert!(shown.contains(&format!("\n  signature: {said}")), "{shown}");
    }
    listener.kill().unwrap();
    listener.wait().unwrap();
}

fn support_answer() -> cli::HandlerAnswer {
    cli::HandlerAnswer::new(500, "no")
}

#[test]
fn nodes_processes_and_alerts_are_told_over_a_network() {
    by_every_door(|_, _, _, door| {
        let nodes = door.run(&["nodes", "list", "--json"]).is(0).json();
        assert_eq!(nodes[0]["answers"], true);
        let status = door.run(&["status", "--json"]).is(0).json();
        assert!(status["nodes"].is_array() && status["topics"].is_array() && status["processes"].is_array());
    });
}

#[test]
fn a_repeated_add_is_answered_as_the_first_was() {
    by_every_door(|_, _, _, door| {
        let add = || door.run(&["add", "t", "1", "--idempotency-key", door.name, "--json"]).is(0).json();
        assert_eq!(add()["id"], add()["id"]);
    });
}

#[test]
fn tokens_are_made_used_and_revoked() {
    let sink = Sink::start();
    let more = format!("[http]\nauth = \"token\"\n{}", topic("t", &sink, "delay = \"5h\""));
    let daemon = Daemon::start(&more);
    let [socket, url] = doors(&daemon);
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, scopes: &[&str]| {
        let scopes = scopes.iter().flat_map(|scope| ["--scope", scope]);
        let words: Vec<&str> = ["token", "create", name].into_iter().chain(scopes).collect();
        let made = socket.run(&words).is(0);
        let file = dir.path().join(name);
        std::fs::write(&file, &made.out).unwrap();
        (made.out.trim().to_owned(), file)
    };
    let (token, file) = make("shop", &["produce:t"]);
    let by =
        |words: &[&str], file: &Path| url.run(&[words, &["--token-file", file.to_str().unwrap()]].concat());
    assert_eq!(url.run(&["add", "t", "1", "--json"]).is(4).error()["code"], "unauthorized");
    eventually(5 * SECOND, "the token holds", || {
        (by(&["add", "t", "1", "--id", "1"], &file).code == 0).then_some(())
    });
    url.run(&["get", "t", "1", "--token", &token]).is(0);
    assert_eq!(by(&["del", "off", "1", "--json"], &file).is(4).error()["code"], "forbidden");
    let (_, reader) = make("reader", &["read"]);
    eventually(5 * SECOND, "the token holds", || (by(&["list", "t"], &reader).code == 0).then_some(()));
    let listed = socket.run(&["token", "list", "--json"]).is(0).lines();
    assert!(listed.iter().all(|t| t.get("token").is_none()) && listed.len() == 2, "{listed:?}");
    assert!(socket.run(&["token", "list"]).is(0).out.contains("produce:t"));
    socket.run(&["token", "revoke", "shop"]).is(0);
    eventually(5 * SECOND, "a refusal", || (by(&["get", "t", "1"], &file).code == 4).then_some(()));
    socket.run(&["token", "revoke", "shop"]).is(3);
    socket.run(&["token", "create", "x", "--scope", "everything"]).is(2);
}
