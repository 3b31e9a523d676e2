//! Chooses the daemon that gets the requests, and the token. Flags, the environment or the user's file name the daemon
//! and the token. If nothing names a daemon, the requests go to the daemon that runs here.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::failure::Failure;
use model::status::control_socket;

/// The options of all commands that ask a daemon.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Which daemon, and how it is shown")]
pub(super) struct TargetOptions {
    /// The daemon's configuration file; the daemon is reached at the Unix socket in its run_dir
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,

    /// The daemon's run_dir; or set DQ_RUN_DIR. Default: that of a daemon in the working directory (var/run), otherwise
    /// /run/dq
    #[arg(long, value_name = "DIR", global = true)]
    pub run_dir: Option<PathBuf>,

    /// The daemon's URL: http://…, https://… or unix:PATH; or set DQ_URL, or `url` in ~/.config/dq/cli.toml
    #[arg(long, value_name = "URL", global = true)]
    pub url: Option<String>,

    /// The token; or set DQ_TOKEN. Other users of this host can see a token that is given here, but not one in a file
    #[arg(long, value_name = "TOKEN", global = true)]
    pub token: Option<String>,

    /// A file that holds the token; or set DQ_TOKEN_FILE, or `token_file` in ~/.config/dq/cli.toml
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,

    /// Print JSON: one object; for a list, one object per line
    #[arg(long, global = true)]
    pub json: bool,
}

/// The address of a daemon's HTTP API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DaemonAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A URL, without a slash at its end.
    Url(String),
}

impl fmt::Display for DaemonAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DaemonAddress::Unix(path) => write!(f, "{}", path.display()),
            DaemonAddress::Url(url) => f.write_str(url),
        }
    }
}

/// A daemon, and the token for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DaemonEndpoint {
    /// The address of its HTTP API.
    pub address: DaemonAddress,
    /// The run_dir of the daemon. `None`: the daemon was chosen by a URL.
    pub run_dir: Option<PathBuf>,
    /// The token, or the file that holds it. `None`: there is no token.
    token: Option<TokenSource>,
}

impl DaemonEndpoint {
    /// Returns the daemon at this URL. The requests to it have no token.
    pub(super) fn at_url(url: String) -> DaemonEndpoint {
        DaemonEndpoint { address: DaemonAddress::Url(url), run_dir: None, token: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TokenSource {
    Text(String),
    File(PathBuf),
}

/// The user's file. It names the daemon that is used if no flag and no environment variable names a daemon.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UserConfig {
    url: Option<String>,
    token_file: Option<PathBuf>,
}

impl TargetOptions {
    /// Chooses the daemon.
    pub(super) fn target(&self) -> Result<DaemonEndpoint> {
        let run_dir = match &self.config {
            Some(file) => Some(super::settings(file)?.run_dir),
            None => self.run_dir.clone(),
        };
        if self.config.is_some() && self.run_dir.is_some() || self.url.is_some() && run_dir.is_some() {
            let message = "--config, --run-dir and --url each say which daemon: give one of them";
            return Err(Failure::Usage(message.to_owned()).into());
        }
        let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let here = std::env::current_dir().context("cannot find the working directory")?.join("var/run");
        let here = control_socket(&here).exists().then_some(here);
        let user = UserConfig::read(&env)?;
        self.choose(run_dir, env, user, here)
    }

    /// Looks first at the flags, then at the environment, then at the user's file. If none of them names a daemon, uses
    /// the daemon that runs here.
    fn choose(
        &self,
        run_dir: Option<PathBuf>,
        env: impl Fn(&str) -> Option<String>,
        user: UserConfig,
        here: Option<PathBuf>,
    ) -> Result<DaemonEndpoint> {
        let flags = run_dir.map(DaemonLocation::Dir).or(self.url.clone().map(DaemonLocation::Url));
        let set = || {
            env("DQ_URL")
                .map(DaemonLocation::Url)
                .or(env("DQ_RUN_DIR").map(|dir| DaemonLocation::Dir(dir.into())))
        };
        let (at, is_users) = match flags.or_else(set) {
            Some(at) => (at, false),
            None => match user.url {
                Some(url) => (DaemonLocation::Url(url), true),
                None => (DaemonLocation::Dir(here.unwrap_or_else(|| "/run/dq".into())), true),
            },
        };
        let flag =
            self.token.clone().map(TokenSource::Text).or(self.token_file.clone().map(TokenSource::File));
        let set = || {
            env("DQ_TOKEN")
                .map(TokenSource::Text)
                .or(env("DQ_TOKEN_FILE").map(|f| TokenSource::File(f.into())))
        };
        // The token in the user's file is only for the daemon that this file names. If the file names no daemon, the
        // token is for the daemon that runs here.
        let of_file = user.token_file.filter(|_| is_users).map(TokenSource::File);
        let token = flag.or_else(set).or(of_file);
        Ok(match at {
            DaemonLocation::Dir(dir) => {
                let address = DaemonAddress::Unix(dir.join("http.sock"));
                DaemonEndpoint { address, run_dir: Some(dir), token }
            }
            DaemonLocation::Url(url) => DaemonEndpoint { address: address(&url)?, run_dir: None, token },
        })
    }
}

enum DaemonLocation {
    Dir(PathBuf),
    Url(String),
}

fn address(url: &str) -> Result<DaemonAddress, Failure> {
    if let Some(path) = url.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        return Ok(DaemonAddress::Unix(path.into()));
    }
    let uri: Option<ureq::http::Uri> = url.parse().ok();
    let good = uri.as_ref().is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some() && uri.query().is_none()
    });
    if !good {
        let message = format!(
            "{url:?} is no URL of a daemon, such as \"http://127.0.0.1:8088\" or \"unix:/run/dq/http.sock\""
        );
        return Err(Failure::Usage(message));
    }
    Ok(DaemonAddress::Url(url.trim_end_matches('/').to_owned()))
}

impl DaemonEndpoint {
    /// Returns the token, if there is one.
    pub(super) fn token(&self) -> Result<Option<String>> {
        let text = match &self.token {
            None => return Ok(None),
            Some(TokenSource::Text(text)) => text.clone(),
            Some(TokenSource::File(path)) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the token in {}", path.display()))?,
        };
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(
                Failure::Usage("the token is empty, or has characters that no token has".to_owned()).into()
            );
        }
        Ok(Some(text.to_owned()))
    }
}

impl UserConfig {
    fn read(env: &impl Fn(&str) -> Option<String>) -> Result<UserConfig> {
        let home = || env("HOME").map(|home| Path::new(&home).join(".config"));
        let folder = env("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
        let Some(path) = folder.map(|folder| folder.join("dq/cli.toml")) else {
            return Ok(UserConfig::default());
        };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(UserConfig::default()),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        let file: UserConfig = toml::from_str(&text).map_err(|e| {
            Failure::Usage(format!("{}: {}", path.display(), e.to_string().trim_end().replace('\n', "\n  ")))
        })?;
        let token_file = file.token_file.map(|token| path.parent().unwrap_or(Path::new("/")).join(token));
        Ok(UserConfig { token_file, ..file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(
        flags: &TargetOptions,
        env: &[(&str, &str)],
        user: UserConfig,
        here: Option<&str>,
    ) -> DaemonEndpoint {
        let env = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        flags.choose(flags.run_dir.clone(), env, user, here.map(PathBuf::from)).unwrap()
    }

    fn user() -> UserConfig {
        UserConfig { url: Some("https://q.example/".into()), token_file: Some("/home/u/token".into()) }
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_user_file() {
        let none = TargetOptions::default();
        let dir = TargetOptions { run_dir: Some("/r".into()), ..TargetOptions::default() };
        let url = TargetOptions { url: Some("http://h:1/".into()), ..TargetOptions::default() };
        let env = [("DQ_RUN_DIR", "/e"), ("DQ_TOKEN", "t")];
        let address =
            |flags: &TargetOptions, env: &[(&str, &str)], user, here| choose(flags, env, user, here).address;
        let socket = |dir: &str| DaemonAddress::Unix(Path::new(dir).join("http.sock"));
        assert_eq!(address(&dir, &env, user(), Some("/h")), socket("/r"));
        assert_eq!(address(&url, &env, user(), Some("/h")), DaemonAddress::Url("http://h:1".into()));
        assert_eq!(address(&none, &env, user(), Some("/h")), socket("/e"));
        assert_eq!(address(&none, &[], user(), Some("/h")), DaemonAddress::Url("https://q.example".into()));
        assert_eq!(address(&none, &[], UserConfig::default(), Some("/h")), socket("/h"));
        assert_eq!(address(&none, &[], UserConfig::default(), None), socket("/run/dq"));
        assert_eq!(address(&none, &[("DQ_URL", "unix:/s")], user(), None), DaemonAddress::Unix("/s".into()));
    }

    #[test]
    fn the_token_of_the_users_file_goes_to_no_other_daemon() {
        let none = TargetOptions::default();
        let url = TargetOptions { url: Some("http://h:1".into()), ..TargetOptions::default() };
        let file = Some(TokenSource::File("/home/u/token".into()));
        assert_eq!(choose(&none, &[], user(), None).token, file);
        assert_eq!(choose(&url, &[], user(), None).token, None);
        assert_eq!(choose(&none, &[("DQ_URL", "http://h:1")], user(), None).token, None);
        let set = [("DQ_TOKEN", "t")];
        assert_eq!(choose(&url, &set, user(), None).token, Some(TokenSource::Text("t".into())));
        let flag = TargetOptions { token_file: Some("/f".into()), ..url };
        assert_eq!(choose(&flag, &set, user(), None).token, Some(TokenSource::File("/f".into())));
    }

    #[test]
    fn what_is_no_url_of_a_daemon_is_refused() {
        for bad in ["localhost:8088", "ftp://h", "unix:", "", "http://h/?a=b", "http://"] {
            assert!(matches!(address(bad), Err(Failure::Usage(_))), "{bad}");
        }
    }
}
