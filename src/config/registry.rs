//! Checks the settings of the registry: which database it is.

use std::path::{Path, PathBuf};

use ::mysql::Opts;

use super::ConfigError;
use super::raw;
use model::settings::{MysqlServer, RegistrySettings, StoreSettings};

const FORMS: &str = "use \"store\" (with Redis), \"sqlite:var/registry.db\", \"mysql://user:password@127.0.0.1:3306/dq\" or \"none\"";

/// Returns the database of the registry. None: there is no registry. `max_attempts`: the value of
/// `callback.max_attempts`, for the rows of the PHP daemon. Relative paths resolve against `base`.
pub(super) fn registry(
    raw: raw::Registry,
    max_attempts: Option<u32>,
    store: &StoreSettings,
    base: &Path,
) -> Result<Option<RegistrySettings>, ConfigError> {
    let wrong = |key: &str, problem: String| ConfigError::key(format!("registry.{key}"), problem);
    let secret = |key: &str, name: &str| -> Result<Option<String>, ConfigError> {
        if name.is_empty() {
            return Ok(None);
        }
        let path = base.join(name);
        let text = std::fs::read_to_string(&path)
            .map_err(|e| ConfigError::unreadable(format!("registry.{key}"), &path, &e))?;
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(wrong(key, format!("{name:?} is empty"))),
            text => Ok(Some(text.to_owned())),
        }
    };
    let password = secret("password_file", &raw.password_file)?;
    let (key, url) = match secret("url_file", &raw.url_file)? {
        Some(_) if !raw.url.is_empty() => {
            return Err(wrong("url_file", "there is a url as well: leave one of them out".to_owned()));
        }
        Some(url) => ("url_file", url),
        None => ("url", raw.url),
    };
    if password.is_some() && !url.starts_with("mysql://") {
        let problem = "is for a url that begins with \"mysql://\"".to_owned();
        return Err(wrong("password_file", problem));
    }
    if url.is_empty() {
        return Ok(Some(match store {
            StoreSettings::Embedded { path, .. } => {
                RegistrySettings::Sqlite { path: path.with_file_name("registry.db") }
            }
            StoreSettings::Redis(nodes) => RegistrySettings::Store(nodes.clone()),
        }));
    }
    if url == "none" {
        return Ok(None);
    }
    if url == "store" {
        return match store {
            StoreSettings::Redis(nodes) => Ok(Some(RegistrySettings::Store(nodes.clone()))),
            StoreSettings::Embedded { .. } => {
                let problem = "is for store.backend = \"redis\"; with the embedded store, leave url out: the registry is then a file \
                               beside the store";
                Err(wrong(key, problem.to_owned()))
            }
        };
    }
    if let Some(path) = url.strip_prefix("sqlite:") {
        return sqlite(path, store, base).map(Some).map_err(|problem| wrong(key, problem));
    }
    if url.starts_with("mysql://") {
        return mysql(&url, password)
            .map(|server| Some(RegistrySettings::Mysql(MysqlServer { max_attempts, ..server })))
            .map_err(|(password, problem)| wrong(if password { "password_file" } else { key }, problem));
    }
    // The text is not shown, because it may contain a password.
    Err(wrong(key, format!("it is not a registry; {FORMS}")))
}

fn sqlite(path: &str, store: &StoreSettings, base: &Path) -> Result<RegistrySettings, String> {
    let path: PathBuf = match path {
        "" => return Err(format!("\"sqlite:\" names no file; {FORMS}")),
        path => base.join(path),
    };
    match store {
        StoreSettings::Redis(_) => {
            Err("all hosts that share Redis need the same registry, and SQLite is a file of one host: use \
                                \"store\" or MySQL"
                .to_owned())
        }
        StoreSettings::Embedded { path: jobs, .. } if *jobs == path => {
            Err("it is the file of store.path; use another file".to_owned())
        }
        StoreSettings::Embedded { .. } => Ok(RegistrySettings::Sqlite { path }),
    }
}

/// Checks a URL of MySQL. An error says what is wrong, and whether the mistake is in the setting of the password (true)
/// or in the URL (false).
fn mysql(url: &str, password: Option<String>) -> Result<MysqlServer, (bool, String)> {
    let problem = |what: &str| (false, format!("a url that cannot be read: {what}; {FORMS}"));
    let opts = Opts::from_url(url).map_err(|e| problem(&e.to_string()))?;
    let Some(database) = opts.get_db_name().filter(|name| !name.is_empty()) else {
        return Err(problem("it names no database"));
    };
    let name = format!("mysql://{}:{}/{database}", opts.get_ip_or_hostname(), opts.get_tcp_port());
    let url = match password {
        None => url.to_owned(),
        Some(_) if opts.get_pass().is_some() => {
            return Err((true, "the url also has a password: leave one of them out".to_owned()));
        }
        Some(password) => with_password(url, &password).ok_or_else(|| problem("it names no user"))?,
    };
    Ok(MysqlServer { name, url, max_attempts: None })
}

/// Returns the URL with a password after its user.
fn with_password(url: &str, password: &str) -> Option<String> {
    let rest = url.strip_prefix("mysql://")?;
    let (user, rest) = rest.split_once('@')?;
    let escaped: String = password.bytes().map(|b| format!("%{b:02X}")).collect();
    Some(format!("mysql://{}:{escaped}@{rest}", user.trim_end_matches(':')))
}
