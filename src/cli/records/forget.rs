//! `dq forget`: erases the records of the ended jobs with an id.

use anyhow::Result;
use serde::Deserialize;

use super::super::api::Api;
use super::super::ask::confirm;
use super::super::job::JobArguments;
use super::super::show::plain;

/// Erase the records of the ended jobs with an id, for good
///
/// A job or a dead letter with this id stays. When it ends, it leaves a record again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq forget orders 42 --yes")]
pub(in super::super) struct ForgetArguments {
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,

    #[command(flatten)]
    key: JobArguments,
}

/// The job with the id, if there is one.
#[derive(Debug, Deserialize)]
struct JobStateAnswer {
    state: String,
}

#[derive(Debug, Deserialize)]
struct ErasedCount {
    erased: u64,
}

/// Runs `dq forget`.
pub(in super::super) fn run(ForgetArguments { yes, key }: &ForgetArguments) -> Result<()> {
    let name = format!("{}:{}", key.topic, plain(&key.id));
    confirm(*yes, || format!("erase the records of {name} for good?"))?;
    let api = Api::from_options(&key.at)?;
    let answer = api.delete(&format!("{}/records", key.path()))?;
    if key.at.json {
        println!("{}", answer.raw()?.get());
        return Ok(());
    }
    let ErasedCount { erased } = answer.json()?;
    let records = if erased == 1 { "record" } else { "records" };
    println!("forgotten: {name} ({erased} {records})");
    if let Ok(answer) = api.get(&key.path()) {
        let JobStateAnswer { state } = answer.json()?;
        eprintln!(
            "a job with this id is still there: it is {state}. To remove it too: dq del {} {}, and then this command again",
            key.topic,
            plain(&key.id)
        );
    }
    Ok(())
}
