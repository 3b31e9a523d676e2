//! The priority of a job in `/openapi.json`.

use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};

/// Which ready jobs of a topic are delivered first.
pub(in super::super) fn job_priority() -> Schema {
    priority_with(None)
}

/// The priority of a job in requests. In requests, null counts as missing.
pub(in super::super) fn job_priority_or_null() -> Schema {
    priority_with(Some(Type::Null))
}

fn priority_with(null: Option<Type>) -> Schema {
    let level = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["high", "normal", "low"]));
    let number =
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).maximum(Some(u32::MAX as usize));
    let both = OneOfBuilder::new().item(level).item(number).description(Some(
        "Which ready jobs of the topic are delivered first: those with the lowest number. The levels `high`, `normal` \
         and `low` are 2147483647, 2147483648 and 2147483649.",
    ));
    match null {
        None => both,
        Some(null) => both.item(ObjectBuilder::new().schema_type(null)),
    }
    .into()
}
