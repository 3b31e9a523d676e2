//! Reads the configuration: the defaults, then the file, then the environment. Checks it and returns [`Settings`].
//!
//! This crate owns the names, bounds and defaults of all settings, and all messages about wrong settings. Only
//! dq-master and the command line use this crate. The master passes the checked settings to its child processes in
//! sealed memory. The crate opens no socket and no store.
//!
//! Begin with [`load`]. The module `raw` has the configuration as it is written, and `validate` checks it.

mod alert;
mod bounds;
mod callback;
mod certificate;
#[cfg(test)]
mod commented_file;
mod durability;
mod environment;
mod nodes;
mod place;
mod ports;
mod raw;
mod raw_foreign;
#[cfg(test)]
mod reference;
mod registry;
mod units;
mod unknown_key;
mod validate;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use toml::Table;

use self::place::{line_of, with_place};
use self::unknown_key::with_suggestion;
pub use raw::Raw;

use model::php_node::PhpNode;
use model::settings::{RegistrySettings, Settings};

/// Why a configuration was refused. Each message names the key and the value, and says what is valid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line and the column of the error, and what is wrong.
        message: String,
    },
    /// A key does not exist, or its value is not valid.
    #[error("{place}{key}: {problem}")]
    Key {
        /// The file and the line, or the variable of the environment, with `: ` at the end. Empty: the place is not
        /// known.
        place: String,
        /// The path of the key, such as `server.listen` or `topic[2].callback`.
        key: String,
        /// What is wrong with the key or its value, and what is valid.
        problem: String,
        /// Whether the same value may be accepted later, because something that it names cannot be read at present: a
        /// registry that does not answer, or a file on a disk with an error.
        can_pass: bool,
    },
}

impl ConfigError {
    fn key(key: impl Into<String>, problem: impl Into<String>) -> ConfigError {
        ConfigError::Key { place: String::new(), key: key.into(), problem: problem.into(), can_pass: false }
    }

    /// Returns the error for something that a key names and that cannot be read at present.
    fn unavailable(key: impl Into<String>, problem: impl Into<String>) -> ConfigError {
        ConfigError::Key { place: String::new(), key: key.into(), problem: problem.into(), can_pass: true }
    }

    /// Returns the error for a file that a key names and that cannot be read.
    fn unreadable(key: impl Into<String>, path: &Path, error: &std::io::Error) -> ConfigError {
        let problem = format!("cannot read {path:?}: {error}");
        if can_pass(error) { ConfigError::unavailable(key, problem) } else { ConfigError::key(key, problem) }
    }

    /// Returns whether the same configuration may be accepted later, although nobody has changed anything.
    pub fn can_pass(&self) -> bool {
        match self {
            ConfigError::Read { reason, .. } => can_pass(reason),
            ConfigError::Key { can_pass, .. } => *can_pass,
            ConfigError::Syntax { .. } => false,
        }
    }
}

/// Returns whether an error of the system may pass by itself. If a file is missing or may not be read, somebody has to
/// act.
fn can_pass(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    errno.is_some_and(|errno| {
        matches!(
            errno,
            Errno::EIO
                | Errno::EINTR
                | Errno::EAGAIN
                | Errno::EBUSY
                | Errno::ENOMEM
                | Errno::EMFILE
                | Errno::ENFILE
                | Errno::ESTALE
                | Errno::ETIMEDOUT
                | Errno::ENOTCONN
                | Errno::EHOSTUNREACH
        )
    })
}

/// Returns the environment of this process, without variables that are not valid text. [`load`] and [`development`]
/// take overrides from it.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
}

/// Returns the nodes that a registry lists, for the daemon with that `run_dir`. An error says why the nodes cannot be
/// listed. The function is called only if `store.nodes_from_registry` is true.
pub type NodeLookup<'a> = &'a dyn Fn(&RegistrySettings, &Path) -> Result<Vec<PhpNode>, String>;

/// Reads and checks the file at `path`. Relative paths in the file resolve against the folder of the file.
pub fn load(
    path: &Path,
    environment: impl Iterator<Item = (String, String)>,
    nodes: NodeLookup<'_>,
) -> Result<Settings, ConfigError> {
    let read = |reason| ConfigError::Read { path: path.to_owned(), reason };
    // A read from a pipe would wait until another program writes into it.
    if !std::fs::metadata(path).map_err(read)?.is_file() {
        return Err(read(std::io::Error::other("it is not a regular file")));
    }
    let text = std::fs::read_to_string(path).map_err(read)?;
    let table: Table = text.parse().map_err(|e: toml::de::Error| ConfigError::Syntax {
        path: path.to_owned(),
        message: syntax(&text, &e),
    })?;
    let base = std::path::absolute(path).map_err(read)?;
    let environment: HashMap<String, String> = environment.collect();
    let folder = base.parent().unwrap_or(Path::new("/"));
    check(table, folder, environment.clone().into_iter(), Some(nodes))
        .map_err(|error| with_place(error, path, &text, &environment))
}

/// Returns where the text is not TOML, and why. The text of the line is not shown, because it may contain a password.
fn syntax(text: &str, error: &toml::de::Error) -> String {
    let reason = error.message().trim_end().replace('\n', ", ");
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else { return reason };
    let line = line_of(text, before.len());
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    format!("line {line}, column {column}: {reason}")
}

/// Returns the settings of `--dev`: all defaults, with all data below the folder `var` of `base`.
pub fn development(
    base: &Path,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<Settings, ConfigError> {
    check(Table::new(), base, environment, None)
}

fn check(
    mut table: Table,
    base: &Path,
    environment: impl Iterator<Item = (String, String)>,
    nodes: Option<NodeLookup<'_>>,
) -> Result<Settings, ConfigError> {
    environment::apply(&mut table, environment)?;
    let raw: Raw = serde_path_to_error::deserialize(toml::Value::Table(table)).map_err(|e| {
        let key = e.path().to_string();
        let message = e.into_inner().to_string();
        let problem = with_suggestion(message.trim_end().replace('\n', ", "));
        // `problem` may contain the wrong value. A password must not be shown, so a wrong password gets another
        // message.
        ConfigError::key(
            &*key,
            if key.ends_with("password") { "the value is not a text".to_owned() } else { problem },
        )
    })?;
    validate::validate(raw, base, nodes)
}

/// Returns the defaults as a table, as `conf/dq.toml` documents them.
pub fn defaults() -> Table {
    Table::try_from(Raw::default()).expect("the defaults are plain values")
}

/// Returns the table of [`defaults`] with one more key: `callback.max_attempts`. This key has no default, so its value
/// is an example.
fn shown_keys() -> Table {
    let mut raw = Raw::default();
    raw.callback.max_attempts = Some(10);
    Table::try_from(raw).expect("the examples are plain values")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, ConfigError> {
        parse_with(text, &[])
    }

    fn parse_with(text: &str, environment: &[(&str, &str)]) -> Result<Settings, ConfigError> {
        let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let rows = |_: &RegistrySettings, _: &Path| Err("nobody was to be asked".to_owned());
        check(text.parse().unwrap(), Path::new("/etc/dq"), environment, Some(&rows))
    }

    fn refused(text: &str) -> String {
        parse(text).expect_err(text).to_string()
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        let settings = parse("").unwrap();
        assert_eq!(settings.server.listen.unwrap().to_string(), "127.0.0.1:6789");
        assert_eq!(settings.run_dir, Path::new("/etc/dq/var/run"));
        assert_eq!(settings.server.max_frame, 1 << 20);
    }

    #[test]
    fn the_documented_file_is_the_defaults() {
        let text = include_str!("../../conf/dq.toml");
        let documented: Table = text.parse().unwrap();
        assert_eq!(documented, defaults());
        // The commented examples of the file are valid too.
        let examples: String =
            text.lines().map(|l| l.strip_prefix("#: ").unwrap_or(l).to_owned() + "\n").collect();
        assert_ne!(examples.parse::<Table>().unwrap(), defaults());
        parse(&examples.replace("backend = \"embedded\"", "backend = \"redis\"")).unwrap();
    }

    #[test]
    fn the_production_examples_are_valid() {
        parse(include_str!("../../conf/production.toml")).unwrap();
        parse(include_str!("../../conf/production-php.toml")).unwrap();
    }

    #[test]
    fn an_unknown_key_names_itself_and_the_known_ones() {
        let message = refused("[server]\nlisten_on = \"127.0.0.1:1\"");
        assert!(message.starts_with("server.listen_on: unknown field `listen_on`"), "{message}");
        assert!(message.ends_with("did you mean `listen`?"), "{message}");
        assert!(refused("frobnicate = 1").starts_with("frobnicate: unknown field"));
        let message = refused("[[topic]]\nname = \"a\"\ncallback = \"http://127.0.0.1/\"\ncolour = 1");
        assert!(message.starts_with("topic[0].colour: unknown field"), "{message}");
        let message = refused("[[topic]]\nname = \"a\"\ncallbak = \"http://127.0.0.1/\"");
        assert!(
            message.starts_with("topic[0].callbak: unknown field `callbak`: did you mean `callback`?"),
            "{message}"
        );
    }

    #[test]
    fn a_bad_value_names_its_key_itself_and_what_would_do() {
        for (text, key, value, hint) in [
            ("drain_timeout = \"soon\"", "drain_timeout", "soon", "30s"),
            ("drain_timeout = -1", "drain_timeout", "-1", "30s"),
            ("timezone = \"Mars/Olympus\"", "timezone", "Mars/Olympus", "Asia/Shanghai"),
            ("[server]\nlisten = \"localhost\"", "server.listen", "localhost", "127.0.0.1:6789"),
            ("[server]\nlisten = \"0.0.0.0:6789\"", "server.listen", "0.0.0.0:6789", "server.allow"),
            ("[server]\nmax_frame = \"64MiB\"", "server.max_frame", "64MiB", "15MiB"),
            ("[server]\nmax_frame = \"big\"", "server.max_frame", "big", "1MiB"),
            ("[server]\nallow = [\"10.0.0.0/99\"]", "server.allow", "10.0.0.0/99", "10.0.0.0/8"),
            ("[server]\nlisten = \"[::]:6789\"", "server.listen", "[::]:6789", "auth = \"token\""),
            ("[server]\nauth = \"yes\"", "server.auth", "yes", "\"token\""),
            (
                "[server]\nauth = \"token\"\n[registry]\nurl = \"none\"",
                "server.auth",
                "token",
                "registry.url",
            ),
            ("[http]\nauth = \"token\"\n[registry]\nurl = \"none\"", "http.auth", "token", "registry.url"),
            ("[http]\nlisten = \"0.0.0.0:80\"", "http.listen", "0.0.0.0:80", "http.allow"),
            ("[http]\nlisten = \"10.0.0.1:80\"", "http.listen", "10.0.0.1:80", "auth = \"token\""),
            ("[http]\nallow = [\"10.0.0.0/99\"]", "http.allow", "10.0.0.0/99", "10.0.0.0/8"),
            ("[http]\nmax_connections = 0", "http.max_connections", "0", "1 to"),
            ("[http]\nmax_requests = 0", "http.max_requests", "0", "1 to"),
            ("[http]\npublic_url = \"dq.example.com\"", "http.public_url", "dq.example.com", "https://"),
            ("[http]\npublic_url = \"http://h/?a=b\"", "http.public_url", "http://h/?a=b", "https://"),
            ("[http]\nidle_timeout = \"1ms\"", "http.idle_timeout", "1ms", "100ms"),
            (
                "[http]\ntls = { cert = \"/nowhere/a.pem\", key = \"b\" }",
                "http.tls.cert",
                "/nowhere/a.pem",
                "read",
            ),
            ("[http]\ntls = { key = \"b\" }", "http.tls.cert", "is missing", "http.tls.key"),
            ("[gmq]\nlisten = \"9503\"", "gmq.listen", "9503", "127.0.0.1:9503"),
            ("[gmq]\nlisten = \"0.0.0.0:9503\"", "gmq.listen", "0.0.0.0:9503", "gmq.allow"),
            ("[gmq]\nlisten = \"127.0.0.1:8088\"", "gmq.listen", "127.0.0.1:8088", "http.listen"),
            ("[gmq]\nlisten = \"127.0.0.1:6789\"", "gmq.listen", "127.0.0.1:6789", "server.listen"),
            (
                "[http]\nlisten = \"\"\n[gmq]\nlisten = \"127.0.0.1:9503\"",
                "gmq.listen",
                "9503",
                "http.listen",
            ),
            ("[gmq]\nscopes = [\"admin\"]", "gmq.scopes", "admin", "consume:"),
            ("[beanstalk]\nlisten = \"0.0.0.0:1\"", "beanstalk.listen", "0.0.0.0:1", "beanstalk.allow"),
            (
                "[beanstalk]\nlisten = \"127.0.0.1:6789\"",
                "beanstalk.listen",
                "127.0.0.1:6789",
                "server.listen",
            ),
            (
                "[gmq]\nlisten = \"127.0.0.1:9\"\n[beanstalk]\nlisten = \"127.0.0.1:9\"",
                "beanstalk.listen",
                "127.0.0.1:9",
                "gmq.listen",
            ),
            (
                "[http]\nlisten = \"\"\n[beanstalk]\nlisten = \"127.0.0.1:11300\"",
                "beanstalk.listen",
                "11300",
                "http.listen",
            ),
            ("[beanstalk]\nscopes = [\"read:*\"]", "beanstalk.scopes", "read:*", "consume:"),
            (
                "[beanstalk]\ncreate = true\n[registry]\nurl = \"none\"",
                "beanstalk.create",
                "true",
                "registry.url",
            ),
            (
                "[beanstalk]\nlisten = \"127.0.0.1:11300\"\nmax_job_size = \"2MiB\"",
                "beanstalk.max_job_size",
                "2097152",
                "server.max_frame",
            ),
            ("[gmq]\nallow = [\"x\"]", "gmq.allow", "x", "10.0.0.0/8"),
            ("[http]\nlisten = \"127.0.0.1:6789\"", "http.listen", "127.0.0.1:6789", "server.listen"),
            ("[store]\nbackend = \"oracle\"", "store.backend", "oracle", "embedded"),
            ("[store]\nbackend = \"redis\"", "store.node", "redis", "redis://127.0.0.1:6379/0"),
            ("[[store.node]]\nname = \"a\"\nurl = \"redis://x\"", "store.backend", "embedded", "redis"),
            (
                "[store]\nbackend = \"redis\"\n[[store.node]]\nurl = \"redis://x\"",
                "store.node[0].name",
                "is missing",
                "1 to 32",
            ),
            (
                "[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"a\"",
                "store.node[0].url",
                "is missing",
                "redis://",
            ),
            (
                "[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"a\"\nurl = \"redis://x\"\n[[store.node]]\nname = \"b\"\nurl = \"redis://x\"",
                "store.node[1].url",
                "node a",
                "two databases",
            ),
            (
                "[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"a\"\nurl = \"redis://:p/w@h:1\"",
                "store.node[0].url",
                "password",
                "percent-encoded",
            ),
            (
                "[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"a\"\nurl = \"redis://h:1/-1\"",
                "store.node[0].url",
                "database",
                "from 0",
            ),
            (
                "[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"a b\"\nurl = \"redis://x\"",
                "store.node[0].name",
                "a b",
                "letters",
            ),
            (
                "[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"a\"\nurl = \"http://x\"",
                "store.node[0].url",
                "url",
                "redis://",
            ),
            (
                "[store]\nbackend = \"redis\"\nprefix = \"a{b}\"\n[[store.node]]\nname = \"a\"\nurl = \"redis://x\"",
                "store.prefix",
                "a{b}",
                "letters",
            ),
            ("[consume]\nprocesses = 1000", "consume.processes", "1000", "64"),
            ("[consume]\nconcurrency = 0", "consume.concurrency", "0", "1 to"),
            ("[callback]\nguard = \"none\"", "callback.guard", "none", "metadata"),
            ("[[callback.host]]\nname = \"h\"", "callback.host[0].max_in_flight", "is missing", "rate"),
            (
                "[[callback.host]]\nname = \"*.h.example\"\nrate = 1",
                "callback.host[0].name",
                "*.h.example",
                "shop.example",
            ),
            ("[[callback.host]]\nname = \"h\"\nrate = 0", "callback.host[0].rate", "within", "1 to"),
            (
                "[[callback.host]]\nname = \"h\"\nrate = 1\n[[callback.host]]\nname = \"H\"\nrate = 1",
                "callback.host[1].name",
                "\"H\"",
                "twice",
            ),
            ("[callback]\nca_file = \"/nowhere/ca\"", "callback.ca_file", "/nowhere/ca", "read"),
            ("[callback]\nca_file = \"/dev/null\"", "callback.ca_file", "/dev/null", "BEGIN CERTIFICATE"),
            ("[callback]\ncert_file = \"a\"", "callback.key_file", "is missing", "callback.cert_file"),
            ("[callback]\nkey_file = \"a\"", "callback.cert_file", "is missing", "callback.key_file"),
            (
                "[callback]\ncert_file = \"/nowhere/a\"\nkey_file = \"b\"",
                "callback.cert_file",
                "/nowhere/a",
                "read",
            ),
            ("[alert]\nto = [\"ops\"]", "alert.to", "ops", "ops@example.com"),
            ("[alert]\ngather = \"2h\"", "alert.gather", "2h", "1h"),
            ("[alert]\nlate_after = \"1ms\"", "alert.late_after", "1ms", "1s"),
            ("[alert.smtp]\nfrom = \"a@b.c\"", "alert.smtp.host", "from", "mail.example.com"),
            ("[alert.smtp]\nhost = \"a:25\\n\"", "alert.smtp.host", "a:25", "alert.smtp.port"),
            ("[alert.smtp]\nhost = \"h\"", "alert.smtp.from", "missing", "dq@example.com"),
            ("[alert.smtp]\nhost = \"h\"\nport = 0", "alert.smtp.port", "0", "587"),
            ("[alert.smtp]\nhost = \"h\"\nfrom = \"x\"", "alert.smtp.from", "x", "@example.com"),
            ("[alert.smtp]\nhost = \"h\"\ntls = \"ssl\"", "alert.smtp.tls", "ssl", "\"tls\""),
            (
                "[alert.smtp]\nhost = \"h\"\nfrom = \"a@b.c\"\nuser = \"u\"",
                "alert.smtp.password",
                "u",
                "password_file",
            ),
            (
                "[alert.smtp]\nhost = \"h\"\nfrom = \"a@b.c\"\npassword_file = \"/nowhere/p\"",
                "alert.smtp.password_file",
                "/nowhere/p",
                "read",
            ),
            ("[[alert.webhook]]\nname = \"a b\"", "alert.webhook[0].name", "a b", "letters"),
            ("[[alert.webhook]]\nname = \"a\"\nurl = \"x\"", "alert.webhook[0].url", "URL", "https://"),
            (
                "[[alert.webhook]]\nname = \"a\"\nurl = \"http://h/\"\nkinds = [\"node\"]",
                "alert.webhook[0].kinds",
                "node",
                "node_down",
            ),
            (
                "[[topic]]\nname = \"t\"\ncallback = \"http://h/\"\nalert = [\"ops\"]",
                "topic[0].alert",
                "ops",
                "ops@example.com",
            ),
        ] {
            let message = refused(text);
            assert!(message.starts_with(key), "{text}: {message}");
            assert!(message.contains(value) && message.contains(hint), "{text}: {message}");
        }
    }

    #[test]
    fn each_store_has_its_levels_of_durability() {
        use model::settings::StoreSettings;
        use model::topic::Durability;
        let redis = |more: &str| {
            let node = "[[store.node]]\nname = \"a\"\nurl = \"redis://h\"\n";
            format!("[store]\nbackend = \"redis\"\n{more}\n{node}")
        };
        let safety = |more: &str| match parse(&redis(more)).unwrap().store {
            StoreSettings::Redis(redis) => redis.safety,
            other => panic!("{other}"),
        };
        assert_eq!(safety(""), model::settings::DurabilitySettings::default());
        assert_eq!(safety("durability = \"replicas:2\"").durability, Durability::Replicas(2));
        assert!(safety("durability = \"memory\"\nallow_snapshots = true").allow_snapshots);
        assert!(parse("[store]\ndurability = \"fsync\"").is_ok());
        let topic = |level: &str| {
            format!("[[topic]]\nname = \"t\"\ncallback = \"http://h/\"\ndurability = \"{level}\"\n")
        };
        assert!(parse(&topic("fsync")).is_ok() && parse(&(redis("") + &topic("replicas:1"))).is_ok());
        for (text, key, value, hint) in [
            (redis("durability = \"disk\""), "store.durability: ", "\"disk\"", "\"replicas:1\""),
            (redis("durability_timeout = \"9s\""), "store.durability_timeout: ", "9s", "10ms to 4s"),
            ("[store]\ndurability = \"memory\"".into(), "store.durability: ", "\"memory\"", "leave it out"),
            (
                "[store]\ndurability = \"replicas:1\"".into(),
                "store.durability: ",
                "\"replicas:1\"",
                "\"redis\"",
            ),
            ("[store]\nallow_snapshots = true".into(), "store.allow_snapshots: ", "true", "\"redis\""),
            (topic("memory"), "topic[0].durability: ", "\"memory\"", "leave it out"),
            (topic("disk"), "topic[0].durability: ", "\"disk\"", "\"fsync\""),
        ] {
            let message = refused(&text);
            assert!(message.starts_with(key), "{text}: {message}");
            assert!(message.contains(value) && message.contains(hint), "{text}: {message}");
        }
    }

    #[test]
    fn a_bad_node_names_what_is_wrong_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).unwrap();
            dir.path().join(name).display().to_string()
        };
        let (empty, certificate) = (file("empty", "\n"), file("ca", "-----BEGIN CERTIFICATE-----\n"));
        let secret = file("secret", "s3cr:t/\n");
        let node = |more: &str| format!("[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"a\"\n{more}");
        let sentinel = "sentinels = [\"redis://h:26379\"]\nmaster_name = \"m\"\n";
        let tls = "url = \"rediss://h\"\n";
        for (more, key, hint) in [
            ("", "url", "redis://"),
            ("url = \"http://x\"", "url", "redis://"),
            ("url = \"redis://:hunter2@h:x\"", "url", "redis://:password"),
            ("url = \"rediss://h/#insecure\"", "url", "ca_file"),
            ("url = \"redis://h\"\nmaster_name = \"m\"", "master_name", "sentinels = ["),
            ("sentinels = [\"redis://h:26379\"]", "master_name", "mymaster"),
            ("sentinels = [\"http://h\"]\nmaster_name = \"m\"", "sentinels", "redis://"),
            (&format!("{sentinel}url = \"redis://:p@h/0\""), "url", "@m/0"),
            (&format!("{sentinel}url = \"redis+unix:///s\""), "url", "rediss://"),
            (&format!("{sentinel}cluster = true"), "cluster", "master_name"),
            ("cluster = true", "url", "redis://"),
            ("cluster = true\nurl = \"redis+unix:///s\"", "url", "rediss://"),
            ("cluster = true\nurl = \"redis://h/3\"", "url", "database"),
            ("cluster = true\nurl = \"redis://h\"\nseeds = [\"rediss://h\"]", "seeds", "begin"),
            ("url = \"redis://h\"\nseeds = [\"redis://g\"]", "seeds", "cluster = true"),
            ("url = \"redis://h\"\nshards = 0", "shards", "1 to 1024"),
            ("url = \"redis://h\"\npool = 0", "pool", "1 to 1024"),
            ("url = \"redis://h\"\ntimeout = \"1ms\"", "timeout", "100ms"),
            ("url = \"redis://h\"\nca_file = \"ca.pem\"", "ca_file", "rediss://"),
            (&format!("{tls}ca_file = \"/nowhere/ca.pem\""), "ca_file", "/nowhere/ca.pem"),
            (&format!("{tls}ca_file = \"{empty}\""), "ca_file", "BEGIN CERTIFICATE"),
            (&format!("{tls}cert_file = \"{certificate}\""), "key_file", "cert_file"),
            (&format!("{tls}key_file = \"{certificate}\""), "cert_file", "key_file"),
            (
                &format!("{tls}cert_file = \"{certificate}\"\nkey_file = \"{empty}\""),
                "key_file",
                "BEGIN PRIVATE KEY",
            ),
            ("url = \"redis://h\"\npassword_file = \"nowhere\"", "password_file", "/etc/dq/nowhere"),
            (&format!("url = \"redis://h\"\npassword_file = \"{empty}\""), "password_file", "empty"),
            (&format!("url = \"redis://:p@h\"\npassword_file = \"{secret}\""), "password_file", "leave"),
            (&format!("url = \"redis+unix:///s\"\npassword_file = \"{secret}\""), "password_file", "pass="),
        ] {
            let message = refused(&node(more));
            assert!(message.starts_with(&format!("store.node[0].{key}: ")), "{more}: {message}");
            assert!(message.contains(hint), "{more}: {message}");
            assert!(!message.contains("hunter2") && !message.contains("s3cr"), "{message}");
        }
        let redis = |more: &str| match parse(&node(more)).unwrap().store {
            model::settings::StoreSettings::Redis(redis) => redis.nodes[0].clone(),
            other => panic!("{other}"),
        };
        let with_password = redis(&format!("{sentinel}password_file = \"{secret}\"\npool = 3\nshards = 5"));
        let model::settings::NodeAddress::Sentinel { sentinels, url, .. } = &with_password.at else {
            panic!("a Sentinel")
        };
        assert_eq!(
            (sentinels[0].as_str(), with_password.pool, with_password.shards),
            ("redis://h:26379", Some(3), 5)
        );
        use ::redis::IntoConnectionInfo;
        let info = url.as_str().into_connection_info().unwrap();
        assert_eq!(info.redis_settings().password(), Some("s3cr:t/"));
        assert_eq!(redis("cluster = true\nurl = \"redis://h\"").shards, 64);
        assert_eq!(redis("url = \"redis://h\"").shards, 2);
    }

    #[test]
    fn the_registry_is_beside_the_store_or_where_it_is_said_to_be() {
        use model::settings::RegistrySettings;
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (secret, empty) = (file("secret", "s3cr:t@/\n"), file("empty", "\n"));
        let whole = file("whole", "mysql://dq:hunter2@db/dq\n");
        let registry = |text: &str| parse(text).unwrap_or_else(|e| panic!("{text}: {e}")).registry;
        let sqlite = |path: &str| Some(RegistrySettings::Sqlite { path: path.into() });
        let redis = "[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"a\"\nurl = \"redis://h\"\n";
        assert_eq!(registry(""), sqlite("/etc/dq/var/registry.db"));
        assert_eq!(registry("[store]\npath = \"/data/dq.db\""), sqlite("/data/registry.db"));
        assert_eq!(registry("[registry]\nurl = \"sqlite:x.db\""), sqlite("/etc/dq/x.db"));
        assert_eq!(registry("[registry]\nurl = \"none\""), None);
        assert_eq!(registry(redis).unwrap().to_string(), "store:dq");
        assert_eq!(registry(&format!("{redis}[registry]\nurl = \"none\"")), None);
        for (text, user, password, port) in [
            ("url = \"mysql://dq:hunter2@db:3307/dq\"", "dq", Some("hunter2"), 3307),
            ("url = \"mysql://dq@db/dq\"", "dq", None, 3306),
            (
                &format!("url = \"mysql://dq@db/dq\"\npassword_file = \"{secret}\""),
                "dq",
                Some("s3cr:t@/"),
                3306,
            ),
            (&format!("url_file = \"{whole}\""), "dq", Some("hunter2"), 3306),
        ] {
            for store in ["", redis] {
                let Some(RegistrySettings::Mysql(server)) = registry(&format!("{store}[registry]\n{text}"))
                else {
                    panic!("{text}")
                };
                let opts = ::mysql::Opts::from_url(&server.url).unwrap();
                assert_eq!((opts.get_user(), opts.get_pass()), (Some(user), password));
                assert_eq!((opts.get_tcp_port(), opts.get_db_name()), (port, Some("dq")));
                assert_eq!(server.name, format!("mysql://db:{port}/dq"));
                assert_eq!(format!("{server:?}"), server.name, "no password is shown");
            }
        }
        for (store, text, key, hint) in [
            ("", "url = \"postgres://dq:hunter2@db/dq\"", "url", "mysql://"),
            ("", "url = \"sqlite:\"", "url", "names no file"),
            ("", "url = \"sqlite:var/dq.db\"", "url", "store.path"),
            ("", "url = \"mysql://dq:hunter2@db\"", "url", "database"),
            ("", "url = \"mysql://dq:hunter2@db:x/dq\"", "url", "cannot be read"),
            (redis, "url = \"sqlite:x.db\"", "url", "MySQL"),
            ("", "url_file = \"nowhere\"", "url_file", "/etc/dq/nowhere"),
            ("", &format!("url_file = \"{empty}\""), "url_file", "empty"),
            ("", &format!("url = \"none\"\nurl_file = \"{whole}\""), "url_file", "leave"),
            ("", &format!("password_file = \"{secret}\""), "password_file", "mysql://"),
            (
                "",
                &format!("url = \"mysql://dq:hunter2@db/dq\"\npassword_file = \"{secret}\""),
                "password_file",
                "leave",
            ),
        ] {
            let message = refused(&format!("{store}[registry]\n{text}"));
            assert!(message.starts_with(&format!("registry.{key}: ")), "{text}: {message}");
            assert!(message.contains(hint), "{text}: {message}");
            assert!(!message.contains("hunter2") && !message.contains("s3cr"), "{message}");
        }
    }

    #[test]
    fn nodes_may_stand_in_the_tables_of_the_php_daemon() {
        let row = |id, content: &str| PhpNode { id, name: "一".into(), content: content.into() };
        let parse = |more: &str, rows: Result<Vec<PhpNode>, String>| {
            let text = format!(
                "[store]\nbackend = \"redis\"\nnodes_from_registry = true\nshards_per_node = 3\n{more}"
            );
            let asked = |registry: &RegistrySettings, run_dir: &Path| {
                assert_eq!(registry.to_string(), "mysql://db:3306/dq");
                assert_eq!(run_dir, Path::new("/etc/dq/var/run"));
                rows.clone()
            };
            check(text.parse().unwrap(), Path::new("/etc/dq"), std::iter::empty(), Some(&asked))
        };
        let mysql = "[registry]\nurl = \"mysql://dq@db/dq\"\n";
        let rows = vec![row(3, "10.0.0.1:6379:p/w@,10.0.0.2:6379:p/w@"), row(7, "10.0.0.3:6380")];
        let settings = parse(mysql, Ok(rows)).unwrap();
        let model::settings::StoreSettings::Redis(redis) = settings.store else { panic!("Redis") };
        let nodes = redis.nodes;
        let node = model::settings::NodeSettings::server;
        let wanted =
            [node("r3", "redis://:p%2Fw%40@10.0.0.1:6379/0", 3), node("r7", "redis://10.0.0.3:6380/0", 3)];
        assert!(nodes == wanted);
        let node = "[[store.node]]\nname = \"a\"\nurl = \"redis://h\"\n";
        for (more, rows, hint) in [
            ("", Ok(vec![]), "registry.url = \"mysql://"),
            (mysql, Ok(vec![]), "dq_redis is empty"),
            (mysql, Ok(vec![row(3, "h:6379"), row(4, "nonsense:s3cr")]), "row 4 of dq_redis"),
            (mysql, Ok(vec![row(3, "h:6379"), row(4, "h:6379")]), "that of node r3"),
            (mysql, Err("it is away".to_owned()), "it is away"),
            (&format!("{node}{mysql}"), Ok(vec![]), "leave one of them out"),
        ] {
            let is_away = rows.is_err();
            let error = parse(more, rows).expect_err(hint);
            let message = error.to_string();
            assert!(message.starts_with("store.nodes_from_registry: "), "{message}");
            assert!(message.contains(hint) && !message.contains("s3cr"), "{hint}: {message}");
            assert_eq!(error.can_pass(), is_away, "{message}");
        }
        let message = refused("[store]\nnodes_from_registry = true");
        assert!(
            message.starts_with("store.nodes_from_registry: ") && message.contains("\"redis\""),
            "{message}"
        );
    }

    #[test]
    fn an_error_that_may_pass_differs_from_a_wrong_configuration() {
        for (errno, passes) in [
            (Errno::EIO, true),
            (Errno::EMFILE, true),
            (Errno::ENOENT, false),
            (Errno::EACCES, false),
            (Errno::EISDIR, false),
        ] {
            let error = ConfigError::unreadable("http.tls.cert", Path::new("/a.pem"), &errno.into());
            assert_eq!(error.can_pass(), passes, "{error}");
            let message = error.to_string();
            assert!(message.starts_with("http.tls.cert: cannot read \"/a.pem\": "), "{message}");
            let error = with_place(error, Path::new("dq.toml"), "", &HashMap::new());
            assert_eq!(error.can_pass(), passes, "{error}");
            assert!(error.to_string().starts_with("dq.toml: http.tls.cert: cannot read"), "{error}");
            let error = ConfigError::Read { path: "dq.toml".into(), reason: errno.into() };
            assert_eq!(error.can_pass(), passes, "{error}");
        }
    }

    #[test]
    fn a_bad_topic_names_itself() {
        let topic = |more: &str| format!("[[topic]]\nname = \"a\"\n{more}");
        for (more, key, hint) in [
            ("", "topic[0].callback", "http://"),
            ("callback = \"ftp://h/\"", "topic[0].callback", "http://"),
            ("callback = \"/hook\"", "topic[0].callback", "http://"),
            ("callback = \"http://h/\"\nmethod = \"PUT\"", "topic[0].method", "POST"),
            ("callback = \"http://h/\"\nmethod = \"GET\"", "topic[0].method", "form"),
            ("callback = \"http://h/\"\nmode = \"poll\"", "topic[0].mode", "\"pull\""),
            ("mode = \"pull\"\nttr = \"1ms\"", "topic[0].ttr", "100ms"),
            ("callback = \"http://h/\"\nkeep_done = \"long\"", "topic[0].keep_done", "long"),
            ("callback = \"http://h/\"\nretry = \"often\"", "topic[0].retry", "2n+1"),
            ("callback = \"http://h/\"\nretry = []", "topic[0].retry", "empty"),
            ("callback = \"http://h/\"\nretry = [\"0s\"]", "topic[0].retry", "1ms"),
            ("callback = \"http://h/\"\nretry = [\"1s\"]\nretry_cap = \"1m\"", "topic[0].retry_cap", "list"),
            ("callback = \"http://h:99999/\"", "topic[0].callback", "http://h:99999/"),
            ("callback = \"http://[::1]:x/\"", "topic[0].callback", "http://"),
            ("callback = \"http://h/\"\nmax_attempts = 0", "topic[0].max_attempts", "1 to"),
            ("callback = \"http://h/\"\ntimeout = \"2h\"", "topic[0].timeout", "1h"),
            (
                "callback = \"http://h/\"\n[[topic]]\nname = \"a\"\ncallback = \"http://h/\"",
                "topic[1].name",
                "twice",
            ),
        ] {
            let message = refused(&topic(more));
            assert!(message.starts_with(key) && message.contains(hint), "{more}: {message}");
        }
        assert!(refused("[[topic]]\nname = \"a b\"\ncallback = \"http://h/\"").starts_with("topic[0].name"));
    }

    #[test]
    fn a_number_that_is_none_is_refused() {
        for (line, problem) in
            [("delay = inf", "topic[0].delay: inf"), ("secrets = nan", "topic[0].secrets: NaN")]
        {
            let message = refused(&format!("[[topic]]\nname = \"t\"\ncallback = \"http://h/\"\n{line}"));
            assert!(message.starts_with(problem) && message.contains("finite"), "{message}");
        }
    }

    #[test]
    fn a_mistake_does_not_show_a_password() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dq.toml");
        for (text, place) in [
            ("# x\n[registry]\nurl = mysql://u:hunter2@h/d\n", "line 3, column 7: "),
            ("[alert.smtp]\npassword = \"hunter2\n", "line 2, column "),
            ("[[topic]]\nsecrets = [\"hunter2\"\nname = \"t\"\n", "line 3, column 1: "),
            ("[alert.smtp]\npassword = 4711\n", "line 2: alert.smtp.password: the value is not a text"),
        ] {
            std::fs::write(&path, text).unwrap();
            let nobody = |_: &RegistrySettings, _: &Path| Err(String::new());
            let message = load(&path, std::iter::empty(), &nobody).unwrap_err().to_string();
            assert!(message.contains(place), "{message}");
            assert!(!message.contains("hunter2") && !message.contains("4711"), "{message}");
        }
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let settings = parse_with(
            "[consume]\nconcurrency = 3",
            &[
                ("DQ_CONSUME__CONCURRENCY", "5"),
                ("DQ_CALLBACK__MAX_ATTEMPTS", "7"),
                ("DQ_REGISTRY__URL", "mysql://u:p@h/dq"),
                ("DQ_SERVER__LISTEN", "127.0.0.1:9"),
                ("DQ_INSTANCE", "7"),
                ("PATH", "x"),
            ],
        )
        .unwrap();
        assert_eq!(settings.consume.concurrency, 5);
        let Some(RegistrySettings::Mysql(mysql)) = &settings.registry else {
            panic!("{:?}", settings.registry)
        };
        assert_eq!(mysql.max_attempts, Some(7), "it counts for rows of the PHP daemon as well");
        assert_eq!(settings.server.listen.unwrap().port(), 9);
        assert_eq!(settings.instance, "7");
        let message = parse_with("", &[("DQ_SERVER__LISTN", "x")]).unwrap_err().to_string();
        assert!(message.starts_with("DQ_SERVER__LISTN: there is no key server.listn"), "{message}");
        let message = parse_with("", &[("DQ_CONSUME__CONCURRENCY", "many")]).unwrap_err().to_string();
        assert!(message.contains("many"), "{message}");
    }

    #[test]
    fn settings_survive_their_way_through_sealed_memory() {
        let text = include_str!("../../conf/production.toml");
        let settings = parse(text).unwrap();
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
    }
}
