//! Which daemon is asked, and as whom: by flags, the environment, the user's file, or where one runs.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::failure::Failure;
use crate::status::control_socket;

/// The options that all commands share which ask a daemon.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Which daemon, and how it is shown")]
pub(super) struct Where {
    /// The daemon's configuration file: the Unix socket in its run_dir is asked
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,

    /// The daemon's run_dir, or DQ_RUN_DIR; default: that of a daemon in the working directory (var/run), or else /run/dq
    #[arg(long, value_name = "DIR", global = true)]
    pub run_dir: Option<PathBuf>,

    /// The daemon's URL: http://…, https://… or unix:PATH; or DQ_URL, or `url` in ~/.config/dq/cli.toml
    #[arg(long, value_name = "URL", global = true)]
    pub url: Option<String>,

    /// The token that it is asked with, or DQ_TOKEN. Other users of this host can see it here, and not in a file
    #[arg(long, value_name = "TOKEN", global = true)]
    pub token: Option<String>,

    /// A file that holds the token, or DQ_TOKEN_FILE, or `token_file` in ~/.config/dq/cli.toml
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,

    /// JSON: one object, or of a list one object a line
    #[arg(long, global = true)]
    pub json: bool,
}

/// Where a daemon is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Door {
    /// At this socket.
    Unix(PathBuf),
    /// At this URL, without a slash at its end.
    Url(String),
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Door::Unix(path) => write!(f, "{}", path.display()),
            Door::Url(url) => f.write_str(url),
        }
    }
}

/// A daemon, and who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Where it is asked.
    pub door: Door,
    /// Of a daemon on this host, its folder.
    pub run_dir: Option<PathBuf>,
    /// Where the token is, if there is one.
    token: Option<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Text(String),
    File(PathBuf),
}

/// The user's file: a daemon that is asked where nothing else is said.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UserFile {
    url: Option<String>,
    token_file: Option<PathBuf>,
}

impl Where {
    /// Which daemon that is.
    pub(super) fn target(&self) -> Result<Target> {
        let run_dir = match &self.config {
            Some(file) => Some(super::settings(file)?.run_dir),
            None => self.run_dir.clone(),
        };
        if self.config.is_some() && self.run_dir.is_some() || self.url.is_some() && run_dir.is_some() {
            let told = "--config, --run-dir and --url each say which daemon: give one of them";
            return Err(Failure::Usage(told.to_owned()).into());
        }
        let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let here = std::env::current_dir().context("cannot find the working directory")?.join("var/run");
        let here = control_socket(&here).exists().then_some(here);
        let user = UserFile::read(&env)?;
        self.choose(run_dir, env, user, here)
    }

    /// Flags count before the environment, that before the user's file, and that before what is found.
    fn choose(
        &self,
        run_dir: Option<PathBuf>,
        env: impl Fn(&str) -> Option<String>,
        user: UserFile,
        here: Option<PathBuf>,
    ) -> Result<Target> {
        let flags = run_dir.map(At::Dir).or(self.url.clone().map(At::Url));
        let set = || env("DQ_URL").map(At::Url).or(env("DQ_RUN_DIR").map(|dir| At::Dir(dir.into())));
        let (at, is_users) = match flags.or_else(set) {
            Some(at) => (at, false),
            None => match user.url {
                Some(url) => (At::Url(url), true),
                None => (At::Dir(here.unwrap_or_else(|| "/run/dq".into())), true),
            },
        };
        let flag = self.token.clone().map(Token::Text).or(self.token_file.clone().map(Token::File));
        let set = || env("DQ_TOKEN").map(Token::Text).or(env("DQ_TOKEN_FILE").map(|f| Token::File(f.into())));
        // The token in the user's file is for the daemon that is chosen there, and for no other.
        let of_file = user.token_file.filter(|_| is_users).map(Token::File);
        let token = flag.or_else(set).or(of_file);
        Ok(match at {
            At::Dir(dir) => {
                let door = Door::Unix(dir.join("http.sock"));
                Target { door, run_dir: Some(dir), token }
            }
            At::Url(url) => Target { door: door(&url)?, run_dir: None, token },
        })
    }
}

enum At {
    Dir(PathBuf),
    Url(String),
}

fn door(url: &str) -> Result<Door, Failure> {
    if let Some(path) = url.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        return Ok(Door::Unix(path.into()));
    }
    let uri: Option<ureq::http::Uri> = url.parse().ok();
    let good = uri.as_ref().is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some() && uri.query().is_none()
    });
    if !good {
        let told = format!(
            "{url:?} is no URL of a daemon, such as \"http://127.0.0.1:8088\" or \"unix:/run/dq/http.sock\""
        );
        return Err(Failure::Usage(told));
    }
    Ok(Door::Url(url.trim_end_matches('/').to_owned()))
}

impl Target {
    /// The token, if there is one.
    pub(super) fn token(&self) -> Result<Option<String>> {
        let text = match &self.token {
            None => return Ok(None),
            Some(Token::Text(text)) => text.clone(),
            Some(Token::File(path)) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the token in {}", path.display()))?,
        };
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Failure::Usage("the token is empty, or holds what no token does".to_owned()).into());
        }
        Ok(Some(text.to_owned()))
    }
}

impl UserFile {
    fn read(env: &impl Fn(&str) -> Option<String>) -> Result<UserFile> {
        let home = || env("HOME").map(|home| Path::new(&home).join(".config"));
        let folder = env("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
        let Some(path) = folder.map(|folder| folder.join("dq/cli.toml")) else {
            return Ok(UserFile::default());
        };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(UserFile::default()),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        let file: UserFile = toml::from_str(&text).map_err(|e| {
            Failure::Usage(format!("{}: {}", path.display(), e.to_string().trim_end().replace('\n', "\n  ")))
        })?;
        let token_file = file.token_file.map(|token| path.parent().unwrap_or(Path::new("/")).join(token));
        Ok(UserFile { token_file, ..file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(flags: &Where, env: &[(&str, &str)], user: UserFile, here: Option<&str>) -> Target {
        let env = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        flags.choose(flags.run_dir.clone(), env, user, here.map(PathBuf::from)).unwrap()
    }

    fn user() -> UserFile {
        UserFile { url: Some("https://q.example/".into()), token_file: Some("/home/u/token".into()) }
    }

    #[test]
    fn flags_count_before_the_environment_and_that_before_the_users_file() {
        let none = Where::default();
        let dir = Where { run_dir: Some("/r".into()), ..Where::default() };
        let url = Where { url: Some("http://h:1/".into()), ..Where::default() };
        let env = [("DQ_RUN_DIR", "/e"), ("DQ_TOKEN", "t")];
        let door = |flags: &Where, env: &[(&str, &str)], user, here| choose(flags, env, user, here).door;
        let socket = |dir: &str| Door::Unix(Path::new(dir).join("http.sock"));
        assert_eq!(door(&dir, &env, user(), Some("/h")), socket("/r"));
        assert_eq!(door(&url, &env, user(), Some("/h")), Door::Url("http://h:1".into()));
        assert_eq!(door(&none, &env, user(), Some("/h")), socket("/e"));
        assert_eq!(door(&none, &[], user(), Some("/h")), Door::Url("https://q.example".into()));
        assert_eq!(door(&none, &[], UserFile::default(), Some("/h")), socket("/h"));
        assert_eq!(door(&none, &[], UserFile::default(), None), socket("/run/dq"));
        assert_eq!(door(&none, &[("DQ_URL", "unix:/s")], user(), None), Door::Unix("/s".into()));
    }

    #[test]
    fn the_token_of_the_users_file_goes_to_no_other_daemon() {
        let none = Where::default();
        let url = Where { url: Some("http://h:1".into()), ..Where::default() };
        let file = Some(Token::File("/home/u/token".into()));
        assert_eq!(choose(&none, &[], user(), None).token, file);
        assert_eq!(choose(&url, &[], user(), None).token, None);
        assert_eq!(choose(&none, &[("DQ_URL", "http://h:1")], user(), None).token, None);
        let set = [("DQ_TOKEN", "t")];
        assert_eq!(choose(&url, &set, user(), None).token, Some(Token::Text("t".into())));
        let flag = Where { token_file: Some("/f".into()), ..url };
        assert_eq!(choose(&flag, &set, user(), None).token, Some(Token::File("/f".into())));
    }

    #[test]
    fn what_is_no_url_of_a_daemon_is_refused() {
        for bad in ["localhost:8088", "ftp://h", "unix:", "", "http://h/?a=b", "http://"] {
            assert!(matches!(door(bad), Err(Failure::Usage(_))), "{bad}");
        }
    }
}
