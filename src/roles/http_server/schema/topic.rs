//! The schemas of a topic in requests and responses. The schemas are made from the list of settings that `Topic`
//! declares.

use std::borrow::Cow;

use serde_json::{Value, json};
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, SchemaType, Type,
};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use model::topic::{Setting, SettingKind, Topic};

/// A topic to register, or the settings of a topic to change. The type only describes the request. No value of the type
/// exists.
pub(in super::super) enum TopicRequestSchema {}

impl PartialSchema for TopicRequestSchema {
    fn schema() -> RefOr<Schema> {
        let name = ObjectBuilder::new()
            .schema_type(nullable(Type::String))
            .pattern(Some("^[A-Za-z0-9_.-]+$"))
            .min_length(Some(1))
            .max_length(Some(128))
            .description(Some("Required for POST. For other methods, the name in the path."));
        let mut object = ObjectBuilder::new()
            .description(Some(
                "A topic to register, or the settings of a topic to change. Null means the default. PATCH does not \
                 change a setting that is left out.",
            ))
            .additional_properties(Some(AdditionalProperties::FreeForm(false)))
            .examples([json!({"name": "orders", "callback": "http://127.0.0.1:9000/hook", "delay": "30m"})])
            .property("name", name);
        for setting in Topic::SETTINGS {
            object = object.property(setting.name, with_default(in_request(setting), setting.default()));
        }
        object.into()
    }
}

impl ToSchema for TopicRequestSchema {
    fn name() -> Cow<'static, str> {
        "NewTopic".into()
    }
}

/// Returns the schema of a topic in responses: its name, its settings, and the properties of `state`.
pub(in super::super) fn topic_response(state: &RefOr<Schema>) -> RefOr<Schema> {
    let mut object = ObjectBuilder::new()
        .description(Some("A topic: its settings and its state. Durations are texts such as `5m`."))
        .property("name", ObjectBuilder::new().schema_type(Type::String))
        .required("name");
    for setting in Topic::SETTINGS {
        object = object.property(setting.name, in_response(setting)).required(setting.name);
    }
    if let RefOr::T(Schema::Object(state)) = state {
        for (name, schema) in &state.properties {
            object = object.property(name, schema.clone());
        }
        for name in &state.required {
            object = object.required(name);
        }
    }
    object.into()
}

fn nullable(one: Type) -> SchemaType {
    SchemaType::from_iter([one, Type::Null])
}

/// Adds the default of a setting to its schema. Null also means the default.
fn with_default(mut schema: Schema, default: Value) -> Schema {
    match &mut schema {
        Schema::Object(object) => object.default = Some(default),
        Schema::Array(array) => array.default = Some(default),
        Schema::OneOf(one_of) => one_of.default = Some(default),
        _ => {}
    }
    schema
}

/// Returns the schema of a setting in requests. In requests, each setting may be null.
fn in_request(setting: &Setting) -> Schema {
    let about = Some(setting.about());
    let text = || ObjectBuilder::new().schema_type(nullable(Type::String)).description(about);
    let list = |item: ObjectBuilder| {
        ArrayBuilder::new()
            .schema_type(nullable(Type::Array))
            .items(item)
            .max_items(Some(32))
            .description(about)
    };
    let plain_text = || ObjectBuilder::new().schema_type(Type::String);
    match setting.kind {
        SettingKind::Text { most } | SettingKind::Success { most } => text().max_length(Some(most)).into(),
        SettingKind::Words(words) => {
            let values = words.iter().map(|word| json!(word)).chain([Value::Null]);
            text().enum_values(Some(values)).into()
        }
        SettingKind::Switch => {
            ObjectBuilder::new().schema_type(nullable(Type::Boolean)).description(about).into()
        }
        SettingKind::Span { .. } => described(super::span(), setting),
        SettingKind::Rate { .. } => described(rate(), setting),
        SettingKind::Bytes { .. } => described(super::size(), setting),
        SettingKind::Count { least, most } => ObjectBuilder::new()
            .schema_type(nullable(Type::Integer))
            .minimum(Some(least))
            .maximum(Some(most))
            .description(about)
            .into(),
        SettingKind::CatchUp { .. } => text().examples(["all"]).into(),
        SettingKind::Moment => text().examples(["2026-12-01T23:50:50+08:00"]).into(),
        SettingKind::Durability => text().pattern(Some("^(memory|fsync|replicas:[1-9][0-9]*)$")).into(),
        SettingKind::Retry => OneOfBuilder::new()
            .item(ObjectBuilder::new().schema_type(nullable(Type::String)))
            .item(ArrayBuilder::new().items(plain_text()).max_items(Some(32)))
            .description(about)
            .into(),
        SettingKind::Failures | SettingKind::Texts | SettingKind::Secrets => list(plain_text()).into(),
        SettingKind::Headers => ObjectBuilder::new()
            .schema_type(nullable(Type::Object))
            .additional_properties(Some(plain_text()))
            .max_properties(Some(32))
            .description(about)
            .into(),
    }
}

/// A rate: how often something may happen in a given time, such as `50/s`.
pub(in super::super) fn rate() -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).examples(["50/s"]);
    let number = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).maximum(Some(999_999));
    let null = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new()
        .item(text)
        .item(number)
        .item(null)
        .description(Some("A number in a second, a minute or an hour: \"50/s\", \"30/m\", \"500/h\". A bare number is per second."))
        .into()
}

fn described(schema: Schema, setting: &Setting) -> Schema {
    match schema {
        Schema::OneOf(mut one_of) => {
            let form = one_of.description.take().unwrap_or_default();
            one_of.description = Some(format!("{} {form}", setting.about()));
            Schema::OneOf(one_of)
        }
        other => other,
    }
}

/// Returns the schema of a setting in responses.
fn in_response(setting: &Setting) -> Schema {
    let is_nullable = setting.default().is_null() || setting.name.starts_with("retry_") && is_span(setting);
    let of = |one: Type| {
        let one = if is_nullable { nullable(one) } else { one.into() };
        ObjectBuilder::new().schema_type(one).description(Some(setting.about()))
    };
    let text = || ObjectBuilder::new().schema_type(Type::String);
    match setting.kind {
        SettingKind::Switch => of(Type::Boolean).into(),
        SettingKind::Count { .. } => of(Type::Integer).minimum(Some(0)).into(),
        SettingKind::Secrets => of(Type::Integer)
            .minimum(Some(0))
            .description(Some("The number of secrets. The secrets themselves are never shown."))
            .into(),
        SettingKind::Failures | SettingKind::Texts => {
            ArrayBuilder::new().items(text()).description(Some(setting.about())).into()
        }
        SettingKind::Headers => of(Type::Object).additional_properties(Some(text())).into(),
        SettingKind::Retry => OneOfBuilder::new()
            .item(text())
            .item(ArrayBuilder::new().items(text()))
            .description(Some(setting.about()))
            .into(),
        _ => of(Type::String).into(),
    }
}

fn is_span(setting: &Setting) -> bool {
    matches!(setting.kind, SettingKind::Span { .. })
}
