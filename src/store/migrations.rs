//! Migrations of a database: the SQL files of a folder, which the executable contains. A file is named
//! `V<number>__<name>.sql`.

use std::borrow::Cow;

use refinery_core::{Migration, Runner};
use rust_embed::Embed;

/// Returns the migrations of a folder, in the order of their numbers.
///
/// # Panics
/// If the name of a file is not the name of a migration. A test would find this, because each database is migrated when
/// it is opened.
pub fn migrations<F: Embed>() -> Vec<Migration> {
    let mut files: Vec<_> =
        F::iter().filter_map(|name| F::get(&name).map(|file| (name, file.data))).collect();
    files.sort();
    let migration = |(name, sql): (Cow<'_, str>, Cow<'_, [u8]>)| {
        let named = name.strip_suffix(".sql").unwrap_or(&name);
        Migration::unapplied(named, &String::from_utf8_lossy(&sql))
    };
    files.into_iter().map(migration).collect::<Result<_, _>>().expect("each file is named like a migration")
}

/// Returns what runs the migrations of a folder, all or none. An older release may open the database of a newer one, so
/// a migration that it does not know is not an error.
pub(crate) fn runner<F: Embed>() -> Runner {
    Runner::new(&migrations::<F>()).set_abort_missing(false).set_grouped(true)
}
