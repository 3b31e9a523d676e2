//! Migrations of a database: the SQL files of a folder, which the executable contains. A file is named
//! `V<number>__<name>.sql`.

use std::borrow::Cow;

use refinery_core::{Migration, Runner};
use rust_embed::Embed;

/// Returns the migrations of a folder, in the order of their numbers.
///
/// # Panics
/// If the name of an SQL file is not the name of a migration. A test would find such a file, because each database is
/// migrated when it is opened.
pub fn migrations<F: Embed>() -> Vec<Migration> {
    let migration = |file: Cow<'static, str>| {
        let name = file.strip_suffix(".sql")?;
        let sql = F::get(&file)?.data;
        Some(Migration::unapplied(name, &String::from_utf8_lossy(&sql)))
    };
    let files = F::iter().filter_map(migration).collect::<Result<Vec<_>, _>>();
    let mut migrations = files.expect("each SQL file is named like a migration");
    migrations.sort();
    migrations
}

/// Returns a runner of the migrations of a folder. It runs all of them or none. An older release may open the database
/// of a newer release. So a migration that the older release does not know is not an error.
pub(crate) fn runner<F: Embed>() -> Runner {
    Runner::new(&migrations::<F>()).set_abort_missing(false).set_grouped(true)
}
