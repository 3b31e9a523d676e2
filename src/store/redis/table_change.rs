//! A change of the shared tables, as a caller describes it. Pure.

/// A change of the tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisTableChange {
    /// Writes a field.
    Set {
        /// The table.
        table: String,
        /// The field.
        field: String,
        /// Its new value.
        value: String,
    },
    /// Removes a field.
    Remove {
        /// The table.
        table: String,
        /// The field.
        field: String,
    },
    /// Removes a table.
    Drop {
        /// The table.
        table: String,
    },
}
