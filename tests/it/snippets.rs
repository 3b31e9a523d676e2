//! Runs the commands of the documents in their order and as they are written. They run in their own network, because
//! they name fixed ports and addresses.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The documents, in the order in which a new user reads them.
const DOCUMENTS: [&str; 13] = [
    "README.md",
    "docs/HTTP.md",
    "docs/OPERATIONS.md",
    "docs/HISTORY.md",
    "docs/BULK.md",
    "docs/PULL.md",
    "docs/BEANSTALK.md",
    "docs/AUTH.md",
    "docs/ANSWER_LATER.md",
    "docs/CALLBACKS.md",
    "docs/CONSOLE.md",
    "docs/MIGRATION.md",
    "docs/REDIS.md",
];

/// Blocks that are not run here, by their first words, and why.
const NOT_RUN: [(&str, &str); 2] = [
    ("make run ", "`.ci/run` runs it"),
    ("install -m 755", "it asks systemd; tests/it/restart.rs does the same in a folder"),
];

/// Blocks with a command that asks a question at a terminal, by their first words.
const AT_TERMINAL: [&str; 2] = ["dq nodes forget", "dq nodes move --adopt"];

/// The step that must be done before a block that begins with these words.
const BEFORE: [(&str, &str); 11] = [
    ("curl --json '{\"id\": \"42\"", "wait_for_the_first_job"),
    ("dq restore", "stop_dq"),
    ("DQ_BEANSTALK__LISTEN", "stop_dq"),
    ("U=http:", "start_dq"),
    ("curl --json '{\"outcome\"", "take_a_job_for_later"),
    ("dq import php-dq", "start_the_redis_of_the_php_daemon"),
    ("dq export php-dq", "stop_dq_without_pull_jobs"),
    ("dq nodes move --config", "restore_a_node_from_a_backup"),
    ("dq nodes forget", "end_a_node"),
    ("dq nodes move --adopt", "start_a_node_again"),
    ("redis-check-rdb", "back_up_a_node"),
];

/// The shell functions for the steps between the blocks.
const HELPERS: &str = r#"
set -euo pipefail
ip link set lo up
ip address add 10.0.0.1/32 dev lo
ip address add 10.0.0.2/32 dev lo
# The release build of the documents is the build of the tests.
mkdir -p target && ln -s "$BUILD" target/release
PATH="$BUILD:$PATH" HOME="$PWD"
cargo() { :; }
# An answer that is not a success ends the test.
curl() { command curl --fail-with-body --silent --show-error "$@" && echo; }
wait_for() { for _ in $(seq 300); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.1; done; echo "not seen: $*"; exit 1; }
wait_for_dq() { wait_for curl http://127.0.0.1:8088/readyz; }
wait_for_the_first_job() { wait_for grep 'orders:42 attempt 1' daemon.log; }
take_a_job_for_later() {
    python3 - <<'PYTHON' &
import http.server
class Later(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        open('ack-url', 'w').write(self.headers['dq-ack-url'])
        self.send_response(202)
        self.send_header('dq-ack', 'later')
        self.end_headers()
http.server.HTTPServer(('127.0.0.1', 9100), Later).serve_forever()
PYTHON
    wait_for nc -z 127.0.0.1 9100
    dq topics set later --callback http://127.0.0.1:9100/ --answer-later 1h
    dq add later '1'
    wait_for test -s ack-url
    DQ_ACK_URL=$(cat ack-url)
}
start_the_redis_of_the_php_daemon() {
    for host in 10.0.0.1 10.0.0.2; do
        redis-server --bind $host --requirepass secret --save '' --dir "$PWD" >/dev/null &
        wait_for redis-cli -h $host -a secret ping
        redis-cli -h $host -a secret hset dq_job_info "orders:$host" '{"a":1}'
        redis-cli -h $host -a secret zadd dq_bucket_1 2000000000 "orders:$host"
    done
}
start_node() {
    mkdir -p "$1"
    redis-server --port 0 --unixsocket "$PWD/$1.sock" --save '' --dir "$PWD/$1" >/dev/null &
    wait_for redis-cli -s "$1.sock" ping
}
restore_a_node_from_a_backup() {
    # Nobody else sees this /etc.
    cp -a /etc etc && mkdir -p etc/dq && mount --bind "$PWD/etc" /etc
    printf '[store]\nbackend = "redis"\nallow_snapshots = true\n' > /etc/dq/dq.toml
    for node in r1 r2; do
        start_node $node
        printf '[[store.node]]\nname = "%s"\nurl = "redis+unix://%s"\n' $node "$PWD/$node.sock" >> /etc/dq/dq.toml
    done
    cp /etc/dq/dq.toml with-r2.toml
    dq nodes list --config /etc/dq/dq.toml
    dq nodes move --empty r2 --config /etc/dq/dq.toml
    redis-cli -s r1.sock save
    dq nodes move --add r2 --config /etc/dq/dq.toml
    redis-cli -s r1.sock shutdown nosave
    start_node r1
    (dq nodes list --config /etc/dq/dq.toml || true) | tee nodes
    grep '^r1  *older' nodes
}
end_a_node() {
    dq nodes list --config /etc/dq/dq.toml
    redis-cli -s r2.sock save
    redis-cli -s r2.sock shutdown nosave
}
start_a_node_again() { start_node r2; dq nodes list --config with-r2.toml | grep '^r2  *outside'; }
back_up_a_node() {
    start_node saved
    redis-cli -s saved.sock set job 1
    redis-cli -s saved.sock --rdb r1.rdb
}
wait_for_the_shop() {
    if test -e broken; then wait_for grep '^alert:' shop.log; else wait_for grep 'order 44 is closed' shop.log; fi
}
start_dq() { dq-master --config dq.toml >>daemon.log 2>&1 & wait_for_dq; }
stop_dq() {
    local pid; pid=$(cat var/run/dq-master.pid)
    kill -TERM "$pid"
    wait_for sh -c "! test -e /proc/$pid"
    # A pid that is not that of a daemon any more is not left behind.
    test ! -s var/run/dq-master.pid
}
# The PHP daemon cannot deliver jobs of pull topics, so an export with such jobs ends with 1.
stop_dq_without_pull_jobs() {
    dq del shipping 8 && dq del shipping 9
    stop_dq
}
"#;

/// A block of commands, and its place: the document and the line.
struct Block {
    place: String,
    text: String,
}

impl Block {
    fn begins_with(&self, words: &str) -> bool {
        self.text.trim_start().starts_with(words)
    }
}

/// Returns the blocks of commands of a document.
fn blocks(document: &str) -> Vec<Block> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document)).unwrap();
    let (mut blocks, mut current): (Vec<Block>, Option<Block>) = (Vec::new(), None);
    for (n, line) in text.lines().enumerate() {
        match (line.trim(), &mut current) {
            ("```sh", None) => {
                current = Some(Block { place: format!("{document}:{}", n + 1), text: String::new() });
            }
            ("```", Some(_)) => blocks.extend(current.take()),
            // The lines of a block within a list are indented.
            (_, Some(block)) => writeln!(block.text, "{}", line.strip_prefix("   ").unwrap_or(line)).unwrap(),
            _ => {}
        }
    }
    blocks
}

/// Returns a script that runs the blocks of documents. `before`: the step that must be done before a block that begins
/// with these words.
fn script(documents: &[&str], before: &[(&str, &str)], not_run: &[(&str, &str)]) -> String {
    let mut script = HELPERS.to_owned();
    let mut used: BTreeMap<&str, u32> = BTreeMap::new();
    for block in documents.iter().flat_map(|document| blocks(document)) {
        if let Some((words, _)) = not_run.iter().find(|(words, _)| block.begins_with(words)) {
            *used.entry(words).or_default() += 1;
            continue;
        }
        writeln!(script, "echo '== {}'", block.place).unwrap();
        if let Some((words, step)) = before.iter().find(|(words, _)| block.begins_with(words)) {
            *used.entry(words).or_default() += 1;
            writeln!(script, "{step}").unwrap();
        }
        let text = &block.text;
        // A block that starts a daemon in the foreground runs in the background. Passwords come from stdin.
        match text.trim_end().lines().last() {
            Some(last) if last.contains("dq-master --config") => {
                writeln!(script, "(\n{text}) >daemon.log 2>&1 &\nwait_for_dq").unwrap();
            }
            _ if AT_TERMINAL.iter().any(|words| block.begins_with(words)) => {
                writeln!(script, "script --quiet --return --command '{}' /dev/null <<< y", text.trim())
                    .unwrap();
            }
            _ => writeln!(script, "(\n{text}) < <(yes 'a good password')").unwrap(),
        }
    }
    for (words, _) in not_run.iter().chain(before) {
        assert!(used.contains_key(words), "no block begins with {words:?} any more");
    }
    writeln!(script, "echo '== all'").unwrap();
    script
}

/// Runs a script in its own folder and its own network.
fn play(script: &str) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("script.sh"), script).unwrap();
    let build = Path::new(env!("CARGO_BIN_EXE_dq")).parent().unwrap();
    let mut command = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        command.arg("-r");
    }
    // When the first process ends, all processes end.
    command.args([
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "timeout",
        "120",
        "bash",
        "script.sh",
    ]);
    let out =
        command.current_dir(dir.path()).env("BUILD", build).env_remove("RUST_BACKTRACE").output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    let daemon = std::fs::read_to_string(dir.path().join("daemon.log")).unwrap_or_default();
    assert!(
        out.status.success(),
        "{}\n--- the daemon and dq listen:\n{daemon}",
        String::from_utf8_lossy(&said)
    );
}

#[test]
fn the_commands_of_the_documents_work_as_written() {
    play(&script(&DOCUMENTS, &BEFORE, &NOT_RUN));
}

/// What must have happened before a block of the tutorial: the user has seen the output of the shop, or the alert.
const IN_TUTORIAL: [(&str, &str); 2] =
    [("dq find 43", "wait_for grep 'order 43 is closed' shop.log"), ("dq dead list", "wait_for_the_shop")];

#[test]
fn the_tutorial_works_as_written() {
    play(&script(&["docs/TUTORIAL.md"], &IN_TUTORIAL, &[]));
}

#[test]
fn translations_have_the_commands_of_their_originals() {
    for document in ["docs/TUTORIAL", "README"] {
        let texts = |document: String| -> Vec<String> {
            blocks(&document).into_iter().map(|block| block.text).collect()
        };
        assert_eq!(texts(format!("{document}.zh.md")), texts(format!("{document}.md")), "{document}");
    }
}
