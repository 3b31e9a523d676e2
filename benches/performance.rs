//! Measures the figures of docs/PERFORMANCE.md with `dq bench`, and writes them into that document, between its two
//! markers. `make bench` runs it. `SHORT=1 make bench` leaves out the measurements that take minutes. Nothing else
//! should run on the machine at the same time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

const BEGIN: &str = "<!-- measured: make bench writes from here -->";
const END: &str = "<!-- to here -->";

/// A measurement, and the target that its figures should reach.
struct Mark {
    work: &'static str,
    mark: &'static str,
    command: &'static str,
    /// The names of the figures that are shown.
    figures: &'static [&'static str],
}

const MARKS: &[Mark] = &[
    Mark {
        work: "TCP adds, 10 connections, 1 request in flight on each",
        mark: ">= 0.65 x straight Redis",
        command: "add --store redis --connections 10 --depth 1 --time 10s",
        figures: &["ratio", "adds", "answer p50", "answer p99"],
    },
    Mark {
        work: "TCP adds, 10 connections, 64 requests in flight on each",
        mark: ">= 0.65 x straight Redis",
        command: "add --store redis --connections 10 --depth 64 --time 10s",
        figures: &["ratio", "adds", "processor of dq, an add"],
    },
    Mark {
        work: "a backlog of due jobs, delivered to callbacks, one Redis node",
        mark: ">= 0.4 x the receiver alone",
        command: "deliver --store redis --jobs 200000",
        figures: &["ratio", "delivered", "processor of dq, a job", "missing"],
    },
    Mark {
        work: "the same, embedded store",
        mark: "",
        command: "deliver --jobs 200000",
        figures: &["ratio", "delivered", "processor of dq, a job", "missing"],
    },
    Mark {
        work: "the same, one Redis node, a receiver written with axum",
        mark: ">= 0.4 x the receiver alone",
        command: "deliver --store redis --jobs 200000 --receiver axum",
        figures: &["ratio", "delivered", "64 connections to the receiver"],
    },
    Mark {
        work: "lateness at 1,000 jobs/s, embedded store",
        mark: "p50 <= 2 ms, p99 <= 10 ms, no job early",
        command: "lateness --rate 1000 --time 20s",
        figures: &[
            "late p50",
            "late p99",
            "early",
            "a thread that only sleeps, late p50",
            "a thread that only sleeps, late p99",
        ],
    },
    Mark {
        work: "the same, one Redis node",
        mark: "p50 <= 2 ms, p99 <= 10 ms, no job early",
        command: "lateness --store redis --rate 1000 --time 20s",
        figures: &[
            "late p50",
            "late p99",
            "early",
            "a thread that only sleeps, late p50",
            "a thread that only sleeps, late p99",
        ],
    },
    Mark {
        work: "reserve and ack over TCP, embedded store, 10 connections, 32 jobs in a batch; a delay of 1 s",
        mark: ">= 0.5 x beanstalkd, no job early",
        command: "pull",
        figures: &["ratio", "reserved and acked", "processor of dq, a job", "late p50", "late p99", "early"],
    },
    Mark {
        work: "the same, one Redis node",
        mark: ">= 0.5 x beanstalkd, no job early",
        command: "pull --store redis",
        figures: &["ratio", "reserved and acked", "processor of dq, a job", "late p50", "late p99", "early"],
    },
    Mark {
        work: "a fast topic beside 1,000 ready jobs with callbacks of 3 s and 1,000 that are never answered",
        mark: "late p99 <= 20 ms",
        command: "isolation --store redis --time 20s",
        figures: &["late p50", "late p99", "missing"],
    },
    Mark {
        work: "TCP adds, embedded store, 50 connections, each add on the disk before its answer",
        mark: ">= 0.5 x bare inserts, >= 20k/s",
        command: "add --connections 50 --time 10s",
        figures: &["ratio", "adds", "answer p99"],
    },
    Mark {
        work: "HTTP adds, embedded store, 50 connections, each add on the disk before its answer",
        mark: ">= 0.5 x a handler that does nothing, >= 20k/s",
        command: "add --over http --connections 50 --time 10s",
        figures: &["ratio", "adds", "processor of dq, an add"],
    },
    Mark {
        work: "idle with a million pending jobs, embedded store",
        mark: "<= 0.2 % of one core, <= 80 MB",
        command: "idle --pending 1000000 --time 30s",
        figures: &["processor", "wake-ups", "memory (PSS), all processes", "on the disk, a pending job"],
    },
    Mark {
        work: "the same, one Redis node",
        mark: "<= 0.2 % of one core, <= 80 MB",
        command: "idle --store redis --pending 1000000 --time 30s",
        figures: &["processor", "wake-ups", "memory (PSS), all processes", "memory of Redis, a pending job"],
    },
    Mark {
        work: "USR2 again and again during 5,000 adds/s on connections that stay open",
        mark: "0 failed, 0 lost, 0 early",
        command: "soak --rate 5000 --time 30s --restart 5s",
        figures: &[
            "acknowledged",
            "restarted",
            "refused",
            "connection broke before the answer",
            "missing",
            "early",
        ],
    },
    Mark {
        work: "kill -9 again and again, each process in turn, during 500 adds/s",
        mark: "0 lost",
        command: "soak --rate 500 --time 60s --kill 2s",
        figures: &["acknowledged", "killed", "missing", "early", "repeated"],
    },
];

/// A table that shows how figures change when one number grows. `column` is the name of this number, `steps` has its
/// values, and `figures` has the names of the figures that are shown.
struct Growth {
    title: &'static str,
    column: &'static str,
    command: &'static str,
    steps: &'static [&'static str],
    /// Further values. Their measurements take minutes, so `SHORT=1` leaves them out.
    long: &'static [&'static str],
    figures: &'static [&'static str],
}

const GROWTH: &[Growth] = &[
    Growth {
        title: "Pending jobs (TCP adds, one Redis node, 10 connections, 64 requests in flight on each)",
        column: "pending",
        command: "add --store redis --connections 10 --depth 64 --pending {}",
        steps: &["10000", "100000", "1000000"],
        long: &["10000000"],
        figures: &["adds", "ratio", "memory of Redis, a pending job", "ratio of memory"],
    },
    Growth {
        title: "Topics (TCP adds, one Redis node, 10 connections, 64 requests in flight on each)",
        column: "topics",
        command: "add --store redis --connections 10 --depth 64 --topics {}",
        steps: &["1", "10", "100", "1000"],
        long: &[],
        figures: &["adds", "ratio"],
    },
    Growth {
        title: "Topics (a backlog of due jobs, delivered to callbacks, one Redis node)",
        column: "topics",
        command: "deliver --store redis --jobs 50000 --topics {}",
        steps: &["1", "10", "100", "1000"],
        long: &[],
        figures: &["delivered", "ratio", "processor of dq, a job"],
    },
    Growth {
        title: "Bytes of a body (TCP adds, one Redis node, 10 connections, 16 requests in flight on each)",
        column: "bytes",
        command: "add --store redis --connections 10 --depth 16 --size {}",
        steps: &["64", "1024", "8192", "65536"],
        long: &[],
        figures: &["adds", "ratio"],
    },
    Growth {
        title: "Connections (TCP adds, embedded store, 1 request in flight on each)",
        column: "connections",
        command: "add --connections {}",
        steps: &["1", "10", "100", "1000", "10000"],
        long: &[],
        figures: &["adds", "answer p50", "answer p99"],
    },
    Growth {
        title: "Redis nodes, all on this machine (TCP adds, 10 connections, 64 requests in flight on each)",
        column: "nodes",
        command: "add --store redis --connections 10 --depth 64 --nodes {}",
        steps: &["1", "2", "4"],
        long: &[],
        figures: &["adds", "processor of dq, an add"],
    },
];

/// Runs a command of `dq bench`. Returns the texts of these figures. None: the command failed.
fn measure(command: &str, figures: &[&str]) -> Option<Vec<String>> {
    eprintln!("dq bench {command}");
    // `make tools` puts beanstalkd into this folder.
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/beanstalkd/usr/bin");
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    let out = Command::new(env!("CARGO_BIN_EXE_dq"))
        .env("PATH", path)
        .args(["bench", "--json"])
        .args(command.split(' '))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("dq can be run");
    let report: Value = serde_json::from_slice(&out.stdout).ok()?;
    let of = |name: &&str| {
        let figure = report["figures"].as_array()?.iter().find(|f| f["name"] == **name)?;
        let (value, unit) = (figure["value"].as_f64()?, figure["unit"].as_str()?);
        Some(match (unit, value.abs()) {
            ("x", _) => format!("{value:.2} x"),
            (unit, 1000.0..) => format!("{value:.0} {unit}"),
            (unit, 0.0) => format!("0 {unit}"),
            (unit, _) => format!("{value:.2} {unit}"),
        })
    };
    Some(figures.iter().map(|name| of(name).unwrap_or_else(|| "-".to_owned())).collect())
}

fn word(path: &str, key: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.map_or_else(|| "unknown".to_owned(), |line| line.trim_start_matches([':', ' ', '\t']).to_owned())
}

fn said(program: &str) -> String {
    let out = Command::new(program).arg("--version").output();
    out.map_or_else(
        |_| "none".to_owned(),
        |out| String::from_utf8_lossy(&out.stdout).lines().next().unwrap_or("").to_owned(),
    )
}

/// The document: the text before, between and after the markers. The document is written after each row of a table, so
/// that an interrupted run keeps its figures.
struct Told {
    before: String,
    text: String,
    after: String,
}

impl Told {
    fn path() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/PERFORMANCE.md")
    }

    fn begin(text: String) -> Told {
        let document = std::fs::read_to_string(Told::path()).expect("docs/PERFORMANCE.md is there");
        let (before, rest) = document.split_once(BEGIN).expect("it holds the first marker");
        let (_, after) = rest.split_once(END).expect("it holds the second marker");
        Told { before: before.to_owned(), text, after: after.to_owned() }
    }

    fn add(&mut self, text: &str) {
        self.text.push_str(text);
        let Told { before, text, after } = self;
        std::fs::write(Told::path(), format!("{before}{BEGIN}\n\n{text}\n{END}{after}"))
            .expect("it can be written");
    }
}

fn main() {
    let is_short = std::env::var_os("SHORT").is_some();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut out = Told::begin(format!(
        "- Machine: {} cores of {}, {} of memory, Linux {}\n- {}\n- {}\n- dq {}, `cargo build --profile dist`\n\n\
         | work | target | reached | `dq bench …` |\n|---|---|---|---|\n",
        cores,
        word("/proc/cpuinfo", "model name"),
        word("/proc/meminfo", "MemTotal"),
        kernel.trim(),
        said("redis-server"),
        said("rustc"),
        env!("CARGO_PKG_VERSION"),
    ));
    for Mark { work, mark, command, figures } in MARKS {
        let reached = match measure(command, figures) {
            None => "failed".to_owned(),
            Some(measured) => {
                let measured = figures.iter().zip(measured).map(|(name, value)| match *name {
                    "ratio" => format!("**{value}**"),
                    name => format!("{name}: {value}"),
                });
                measured.collect::<Vec<_>>().join("; ")
            }
        };
        out.add(&format!("| {work} | {mark} | {reached} | `{command}` |\n"));
    }
    for Growth { title, column, command, steps, long, figures } in GROWTH {
        let rule = "---|".repeat(figures.len() + 1);
        out.add(&format!("\n{title}:\n\n| {column} | {} |\n|{rule}\n", figures.join(" | ")));
        for step in steps.iter().chain(long.iter().filter(|_| !is_short)) {
            let measured = measure(&command.replace("{}", step), figures);
            let measured = measured.map_or_else(|| "failed".to_owned(), |measured| measured.join(" | "));
            out.add(&format!("| {step} | {measured} |\n"));
        }
    }
}
