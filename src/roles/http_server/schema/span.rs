//! Durations in `/openapi.json`.

use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};

/// A duration such as `90s` or `1h30m`, or a number of seconds.
pub(in super::super) fn span() -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).examples(["1h30m"]);
    let seconds = ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0));
    let null = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new()
        .item(text)
        .item(seconds)
        .item(null)
        .description(Some("A duration such as \"90s\" or \"1h30m\", or a number of seconds."))
        .into()
}

/// The time to run of a job.
pub(in super::super) fn job_ttr() -> Schema {
    let Schema::OneOf(mut one) = span() else { return span() };
    one.description = Some(
        "How long the lease of a reserved job holds if its client does not say it: 100 milliseconds to one day. Default: `ttr` \
         of the topic. It has no effect while the mode of the topic is `push`."
            .to_owned(),
    );
    Schema::OneOf(one)
}

/// How long after the due time of a job an attempt may still begin.
pub(in super::super) fn job_expire_after() -> Schema {
    let Schema::OneOf(mut one) = span() else { return span() };
    one.description = Some(
        "How long after its due time the job may begin an attempt. After that it becomes a dead letter. 0: there is no such \
         limit. Default: `expire_after` of the topic."
            .to_owned(),
    );
    Schema::OneOf(one)
}
