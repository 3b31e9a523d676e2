//! `dq console`: the accounts that may sign in to the console.

use std::io::{BufRead as _, IsTerminal as _, stdin};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::api::{Api, part};
use super::show::{Table, json_line, moment, raw_lines};
use super::target::TargetOptions;

/// The console: manage the accounts that may sign in
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq console password
  dq console password ann --role read
  dq console list
  dq console remove ann")]
pub(super) struct ConsoleArguments {
    #[command(subcommand)]
    command: ConsoleCommand,

    #[command(flatten)]
    at: TargetOptions,
}

#[derive(Debug, clap::Subcommand)]
enum ConsoleCommand {
    Password(Password),
    List(ListAccounts),
    Remove(RemoveAccount),
}

/// Make an account, or set its password; all sessions of the old password end
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq console password
  dq console password ann --role read < ann.password")]
struct Password {
    /// The name of the account
    #[arg(default_value = "admin")]
    name: String,

    /// What the account may do: admin may do everything, read may view but not change anything. Default: an existing
    /// account keeps its role, and a new account with the name admin is an admin. Other new accounts need this option
    #[arg(long, value_parser = ["admin", "read"])]
    role: Option<String>,
}

/// List the accounts that may sign in
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq console list --json")]
struct ListAccounts {}

/// Remove an account: its owner can no longer sign in
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq console remove ann")]
struct RemoveAccount {
    /// The name of the account
    name: String,
}

#[derive(Debug, Deserialize)]
struct AccountList {
    accounts: Vec<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
struct Account {
    name: String,
    role: String,
    set_ms: i64,
    creator: String,
}

/// Runs `dq console`.
pub(super) fn run(arguments: &ConsoleArguments) -> Result<()> {
    let api = Api::from_options(&arguments.at)?;
    let as_json = arguments.at.json;
    match &arguments.command {
        ConsoleCommand::Password(Password { name, role }) => {
            let role = match role {
                Some(role) => role.clone(),
                None => present_role(&api, name)?,
            };
            let asked = json!({"role": role, "password": password()?});
            api.ask("PUT", &format!("/v1/accounts/{}", part(name)), &asked)?;
            match as_json {
                true => json_line(&json!({"name": name, "role": role, "outcome": "set"}))?,
                false => println!("set: {name} ({role})"),
            }
        }
        ConsoleCommand::List(ListAccounts {}) => {
            let AccountList { accounts } = api.get("/v1/accounts")?.json()?;
            match as_json {
                true => raw_lines(&accounts),
                false => print!("{}", table(&accounts)?),
            }
        }
        ConsoleCommand::Remove(RemoveAccount { name }) => {
            api.delete(&format!("/v1/accounts/{}", part(name)))?;
            match as_json {
                true => json_line(&json!({"name": name, "outcome": "removed"}))?,
                false => println!("removed: {name}"),
            }
        }
    }
    Ok(())
}

/// Returns the role of an existing account. If the account `admin` does not exist, returns `admin`, because
/// dq-http-server also makes this account with this role. Fails for other names without an account.
fn present_role(api: &Api, name: &str) -> Result<String> {
    let AccountList { accounts } = api.get("/v1/accounts")?.json()?;
    for account in &accounts {
        let account: Account = serde_json::from_str(account.get())?;
        if account.name == name {
            return Ok(account.role);
        }
    }
    match name {
        "admin" => Ok("admin".to_owned()),
        _ => bail!(
            "--role is missing: there is no account {name:?} yet, so say whether it is an admin or may only read"
        ),
    }
}

/// Returns the password. At a terminal, the user enters it twice, and it is not shown. Otherwise it is the first line
/// of stdin.
fn password() -> Result<String> {
    if !stdin().is_terminal() {
        let mut line = String::new();
        stdin().lock().read_line(&mut line).context("cannot read the password from stdin")?;
        return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
    }
    let ask = |prompt: &str| rpassword::prompt_password(prompt).context("cannot read the password");
    let password = ask("password: ")?;
    if ask("once more: ")? != password {
        bail!("the two passwords are different: nothing was changed");
    }
    Ok(password)
}

fn table(accounts: &[Box<RawValue>]) -> Result<String> {
    let mut table = Table::new(&["NAME", "ROLE", "SET", "BY"]);
    for account in accounts {
        let Account { name, role, set_ms, creator } = serde_json::from_str(account.get())?;
        table.row([name, role, moment(set_ms), creator]);
    }
    Ok(table.text())
}
