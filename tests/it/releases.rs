//! This release reads what earlier releases left on disk, in Redis and in a database. tests/fixtures has one folder for
//! each release. Also, two releases work beside each other on one store.

mod beside;
mod fixture;
mod life;
mod shapes;

use std::path::PathBuf;

use fixture::Kind;
use life::Life;

/// The newest fixture is the fixture of this version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Returns the folders of all releases that have a fixture.
fn releases() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(fixtures()).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    assert!(!found.is_empty(), "run make fixtures");
    found
}

/// Starts this release in the installations of this kind that earlier releases left, and finishes all jobs that wait
/// there.
fn continues(kind: Kind) {
    for release in releases() {
        println!("from {}, {}", release.display(), kind.name());
        life::continues_from(&fixture::restore(&release.join(kind.name()), kind));
    }
}

#[test]
fn this_release_continues_from_each_embedded_store() {
    continues(Kind::Embedded);
}

#[test]
fn this_release_continues_from_each_redis() {
    continues(Kind::Redis);
}

#[test]
fn this_release_continues_from_each_mysql_registry() {
    continues(Kind::Mysql);
}

#[test]
fn this_release_restores_each_backup() {
    for release in releases() {
        println!("from {}", release.display());
        life::continues_from(&fixture::restore_backup(&release.join(Kind::Embedded.name())));
    }
}

/// If this fails, the format of stored data has changed. `make fixtures` writes the fixture of the version in
/// Cargo.toml again. (A released version keeps its fixture, because the next release has its own number.)
#[test]
fn a_changed_format_has_a_fixture() {
    for kind in Kind::ALL {
        let life = Life::lead(kind);
        let known = fixtures().join(VERSION).join(kind.name()).join("shapes.txt");
        let shapes = shapes::of(&life);
        if std::env::var_os("WRITE_FIXTURES").is_some() {
            refuse_if_released();
            fixture::save(&life, &fixtures().join(VERSION).join(kind.name()));
            std::fs::write(&known, &shapes).unwrap();
        }
        let saved = std::fs::read_to_string(&known).unwrap_or_default();
        for line in shapes.lines().filter(|line| !saved.lines().any(|l| l == *line)) {
            println!("new: {line}");
        }
        for line in saved.lines().filter(|line| !shapes.lines().any(|l| l == *line)) {
            println!("gone: {line}");
        }
        assert!(
            shapes == saved,
            "the formats of {} are not those of {}: make fixtures",
            kind.name(),
            known.display()
        );
    }
}

/// The fixture of a released version must not change, because it shows what users have.
fn refuse_if_released() {
    let changelog = include_str!("../../CHANGELOG.md");
    let is_released =
        changelog.lines().any(|line| line.strip_prefix("## ").is_some_and(|l| l.starts_with(VERSION)));
    assert!(!is_released, "{VERSION} is released: give Cargo.toml the number of the next release first");
}
