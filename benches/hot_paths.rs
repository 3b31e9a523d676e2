//! Measures what each job costs in pure code: its encoding, the choice of its home, the plan of a lease, the signature
//! of a callback.
//!
//! Run it with `cargo bench --bench hot_paths`. docs/PERFORMANCE.md has the results. Criterion compares them with the
//! results of the previous run.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use delivery::callback::signatures;
use jiff::tz::TimeZone;
use model::fair::{Fair, LeaseTopicSelection, ServedTopic};
use model::job::{Priority, TopicName};
use model::rendezvous;
use protocol::LocalClock;
use protocol::dq::{Framing, parse};

const SIZES: [usize; 3] = [64, 1 << 10, 64 << 10];

const CLOCK: LocalClock<'_> = LocalClock { zone: &TimeZone::UTC, now_ms: || 0 };

fn body(bytes: usize) -> String {
    format!("{{\"pad\":\"{}\"}}", "x".repeat(bytes - 10))
}

fn codec(c: &mut Criterion) {
    let mut group = c.benchmark_group("codec");
    for size in SIZES {
        let add = format!(
            r#"{{"cmd":"add","topic":"orders","id":"10042","delay_ms":60000,"body":{}}}"#,
            body(size)
        );
        group.throughput(Throughput::Bytes(add.len() as u64));
        group.bench_with_input(BenchmarkId::new("add", size), &add, |b, add| {
            b.iter(|| parse(black_box(add.as_bytes()), CLOCK).expect("it is an add"));
        });
    }
    let answer = br#"{"code":1,"msg":"succ","data":[]}"#;
    let mut out = Vec::with_capacity(1 << 10);
    group.throughput(Throughput::Elements(1));
    group.bench_function("answer", |b| {
        b.iter(|| {
            out.clear();
            Framing::Digits.append(black_box(answer), &mut out)
        });
    });
    group.finish();
}

fn homes(c: &mut Criterion) {
    let nodes = ["r0", "r1", "r2", "r3"];
    let mut group = c.benchmark_group("rendezvous");
    group.bench_function("node of 4", |b| {
        b.iter(|| rendezvous::order(&nodes, &[black_box(b"orders"), b"10042"]));
    });
    group.bench_function("shard of 16", |b| {
        b.iter(|| rendezvous::first_of(16, &[black_box(b"orders"), b"10042"]))
    });
    group.finish();
}

fn plans(c: &mut Criterion) {
    let mut group = c.benchmark_group("fair");
    for count in [1, 100, 1000] {
        let name = |n: usize| TopicName::new(&format!("t{n}")).expect("a name");
        let topic =
            |n: usize| ServedTopic { name: name(n), priority: Priority::default(), tenant: String::new() };
        let topics: Vec<ServedTopic> = (0..count).map(topic).collect();
        let mut fair = Fair::new(1, topics.clone());
        fair.record_ready(0, [], topics.iter().map(|topic| (topic.name.clone(), 1000)));
        group.bench_with_input(BenchmarkId::new("64 of topics", count), &count, |b, _| {
            b.iter(|| fair.plan(0, 64, 64, |_| None, LeaseTopicSelection::All));
        });
    }
    group.finish();
}

fn signing(c: &mut Criterion) {
    let secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned()];
    let mut group = c.benchmark_group("signature");
    for size in SIZES {
        let body = body(size);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_with_input(BenchmarkId::from_parameter(size), &body, |b, body| {
            b.iter(|| signatures(&secrets, "orders:10042:1f", 1_795_219_101, black_box(body.as_bytes())));
        });
    }
    group.finish();
}

criterion_group!(hot_paths, codec, homes, plans, signing);
criterion_main!(hot_paths);
