//! `dq token`: who may use the daemon over the network, and what they may do.

use anyhow::Result;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::api::{Api, part};
use super::show::{NOTHING, Table, json_line, moment, raw_lines};
use super::target::TargetOptions;

/// Tokens: manage who may use the daemon over the network, and what they may do
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq token create shop --scope produce:orders --scope read
  dq token create worker --scope 'consume:*' --expires 90days
  dq token list
  dq token revoke shop")]
pub(super) struct TokensArguments {
    #[command(subcommand)]
    command: TokensCommand,

    #[command(flatten)]
    at: TargetOptions,
}

#[derive(Debug, clap::Subcommand)]
enum TokensCommand {
    Create(Create),
    List(ListTokens),
    Revoke(Revoke),
}

/// Make a token, and print it to stdout; it is not shown again
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq token create shop --scope produce:orders > shop.token
  dq token create ops --scope admin --expires 30days")]
struct Create {
    /// The token's name
    name: String,

    /// What the token allows: admin, read, metrics, read:TOPIC, manage:TOPIC, produce:TOPIC or consume:TOPIC. TOPIC may
    /// be * (every topic) or a pattern such as shop7.*; may be given several times
    #[arg(long = "scope", value_name = "SCOPE", required = true, value_delimiter = ',')]
    scopes: Vec<String>,

    /// How long the token is valid, such as "90days"; default: until it is revoked
    #[arg(long, value_name = "SPAN")]
    expires: Option<String>,

    /// How fast clients may add jobs with the token, such as "100/s", "30/m" or "500/h"; default: no limit
    #[arg(long, value_name = "RATE")]
    add_rate: Option<String>,
}

/// List the tokens with their names and scopes, but not their secrets
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq token list --json")]
struct ListTokens {}

/// Revoke a token: requests with it are refused from now on
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq token revoke shop")]
struct Revoke {
    /// The token's name
    name: String,
}

#[derive(Debug, Deserialize)]
struct Created {
    token: String,
}

#[derive(Debug, Deserialize)]
struct TokenList {
    tokens: Vec<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
struct ListedToken {
    name: String,
    #[serde(default)]
    scopes: Vec<String>,
    created_ms: Option<i64>,
    expires_ms: Option<i64>,
    creator: Option<String>,
    add_rate: Option<String>,
}

/// Runs `dq token`.
pub(super) fn run(arguments: &TokensArguments) -> Result<()> {
    let api = Api::from_options(&arguments.at)?;
    let as_json = arguments.at.json;
    match &arguments.command {
        TokensCommand::Create(create) => {
            let Create { name, scopes, expires, add_rate } = create;
            let mut asked = json!({"name": name, "scopes": scopes});
            if let Some(expires) = expires {
                asked["expires"] = json!(expires);
            }
            if let Some(rate) = add_rate {
                asked["add_rate"] = json!(rate);
            }
            let answer = api.ask("POST", "/v1/tokens", &asked)?;
            if as_json {
                println!("{}", answer.raw()?.get());
            } else {
                println!("{}", answer.json::<Created>()?.token);
                eprintln!("token {name} has the scopes {}; it is not shown again", scopes.join(", "));
            }
        }
        TokensCommand::List(ListTokens {}) => {
            let TokenList { tokens } = api.get("/v1/tokens")?.json()?;
            match as_json {
                true => raw_lines(&tokens),
                false => print!("{}", table(&tokens)?),
            }
        }
        TokensCommand::Revoke(Revoke { name }) => {
            api.delete(&format!("/v1/tokens/{}", part(name)))?;
            match as_json {
                true => json_line(&json!({"name": name, "outcome": "revoked"}))?,
                false => println!("revoked: {name}"),
            }
        }
    }
    Ok(())
}

fn table(tokens: &[Box<RawValue>]) -> Result<String> {
    let mut table = Table::new(&["NAME", "SCOPES", "ADDS", "MADE", "EXPIRES", "BY"]);
    let when = |ms: Option<i64>| ms.map_or_else(|| NOTHING.to_owned(), moment);
    for token in tokens {
        let ListedToken { name, scopes, created_ms, expires_ms, creator, add_rate } =
            serde_json::from_str(token.get())?;
        let creator = creator.filter(|c| !c.is_empty()).unwrap_or_else(|| NOTHING.to_owned());
        let adds = add_rate.unwrap_or_else(|| NOTHING.to_owned());
        table.row([name, scopes.join(" "), adds, when(created_ms), when(expires_ms), creator]);
    }
    Ok(table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_listed_by_what_they_may() {
        let token =
            r#"{"name":"shop","scopes":["read","produce:*"],"created_ms":0,"expires_ms":null,"creator":""}"#;
        let text = table(&[RawValue::from_string(token.to_owned()).unwrap()]).unwrap();
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            (&words[..3], &words[words.len() - 2..]),
            (&["shop", "read", "produce:*"][..], &["-", "-"][..])
        );
    }
}
