//! Schemas as HTML: what type a value has, which values are valid, and the fields of an object. Pure.

use serde_json::{Map, Value};

use super::html::{code, escaped, prose, table};

/// The beginning of a reference to a schema of the document.
const REFERENCE: &str = "#/components/schemas/";

/// The keywords of a schema that set bounds, each with the words that the page shows for it.
const BOUNDS: [(&str, &str); 8] = [
    ("minimum", "At least"),
    ("maximum", "At most"),
    ("minLength", "Length at least"),
    ("maxLength", "Length at most"),
    ("minItems", "Entries at least"),
    ("maxItems", "Entries at most"),
    ("maxProperties", "Fields at most"),
    ("pattern", "Pattern"),
];

/// The keywords of a schema that list alternatives, each with the word that the page writes between two alternatives.
const ALTERNATIVES: [(&str, &str); 3] = [("oneOf", " or "), ("anyOf", " or "), ("allOf", " and ")];

/// The members of a schema that other functions show: its type, its fields and its meaning.
const SHOWN_ELSEWHERE: [&str; 6] = ["type", "format", "$ref", "description", "properties", "required"];

/// Returns the name of the schema to which this schema refers.
pub(super) fn referred(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix(REFERENCE)
}

/// Returns the schema itself, or the schema to which it refers.
pub(super) fn resolved<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    match referred(schema) {
        Some(name) => &document["components"]["schemas"][name],
        None => schema,
    }
}

/// Returns the id of a type on the page.
pub(super) fn type_id(name: &str) -> String {
    escaped(&format!("type-{name}"))
}

/// Returns the type of a value. The name of a type is a link to the description of this type on the page.
pub(super) fn type_of(schema: &Value) -> String {
    if let Some(name) = referred(schema) {
        return format!("<a href=\"#{}\">{}</a>", type_id(name), escaped(name));
    }
    for (list, between) in ALTERNATIVES {
        if let Some(schemas) = schema[list].as_array() {
            let mut types: Vec<String> = Vec::new();
            for one in schemas.iter().map(type_of) {
                if !types.contains(&one) {
                    types.push(one);
                }
            }
            return types.join(between);
        }
    }
    let words: Vec<&str> = match &schema["type"] {
        Value::String(word) => vec![word],
        Value::Array(words) => words.iter().filter_map(Value::as_str).collect(),
        _ => return "any".to_owned(),
    };
    let format = schema["format"].as_str().map(|format| format!(" ({})", escaped(format)));
    let one = |word: &&str| match (*word, &schema["items"]) {
        ("array", items @ Value::Object(_)) => format!("array of {}", type_of(items)),
        ("null", _) => "null".to_owned(),
        (word, _) => escaped(word) + format.as_deref().unwrap_or_default(),
    };
    words.iter().map(one).collect::<Vec<_>>().join(" or ")
}

/// Returns which values are valid, and examples, each as one item. `is_row` leaves out the default, because the default
/// has its own column.
pub(super) fn facts(schema: &Value, is_row: bool) -> Vec<String> {
    let Some(members) = schema.as_object() else { return Vec::new() };
    let mut facts = Vec::new();
    for (name, value) in members.iter().filter(|(name, _)| !SHOWN_ELSEWHERE.contains(&name.as_str())) {
        match (name.as_str(), value) {
            ("default", _) if is_row => {}
            ("default", value) => facts.push(format!("Default: {}", json(value))),
            ("enum", Value::Array(values)) => {
                let values: Vec<String> = values.iter().map(json).collect();
                facts.push(format!("One of {}", values.join(", ")));
            }
            ("examples", Value::Array(values)) => {
                facts.extend(values.iter().map(|value| format!("Example: {}", json(value))));
            }
            ("example", value) => facts.push(format!("Example: {}", json(value))),
            ("items", items) => facts.extend(part("Each entry", items)),
            ("propertyNames", names) => facts.extend(part("Each name", names)),
            ("additionalProperties", Value::Bool(true)) => facts.push("Other fields are allowed.".to_owned()),
            ("additionalProperties", Value::Bool(false)) => facts.push("No other fields.".to_owned()),
            ("additionalProperties", values) => {
                facts.push(format!("Each value: {}", type_of(values)));
                facts.extend(part("Each value", values));
            }
            ("prefixItems", Value::Array(entries)) => {
                for (at, entry) in entries.iter().enumerate() {
                    facts.push(format!("Entry {}: {}", at + 1, type_of(entry)));
                    facts.extend(part(&format!("Entry {}", at + 1), entry));
                }
            }
            (list, Value::Array(schemas)) if ALTERNATIVES.iter().any(|(name, _)| *name == list) => {
                for one in schemas {
                    facts.extend(part(&format!("As {}", type_of(one)), one));
                }
            }
            (name, value) => match BOUNDS.iter().find(|(known, _)| *known == name) {
                Some((_, word)) => facts.push(format!("{word} {}", json(value))),
                None => facts.push(format!("{}: {}", escaped(name), json(value))),
            },
        }
    }
    facts
}

/// Returns the text about a part of a schema. The text begins with `what`, which names the part. The type of the part
/// is shown elsewhere.
fn part(what: &str, schema: &Value) -> Vec<String> {
    let mut inner: Vec<String> = Vec::new();
    inner.extend(schema["description"].as_str().map(prose));
    inner.extend(facts(schema, false));
    if let Some(properties) = schema["properties"].as_object() {
        inner.push(fields(schema, properties));
    }
    if inner.is_empty() { Vec::new() } else { vec![format!("{what}: {}", items(&inner))] }
}

/// Returns items as a list. A single item stands alone.
fn items(facts: &[String]) -> String {
    match facts {
        [] => String::new(),
        [one] => one.clone(),
        many => {
            format!("<ul>{}</ul>", many.iter().map(|fact| format!("<li>{fact}</li>")).collect::<String>())
        }
    }
}

/// Returns what a schema means, which values are valid, and its fields.
pub(super) fn meaning(description: Option<&str>, schema: &Value, is_row: bool) -> String {
    let own = schema["description"].as_str().filter(|own| Some(*own) != description);
    let mut html: String =
        description.into_iter().chain(own).map(|text| format!("<p>{}</p>", prose(text))).collect();
    let facts = facts(schema, is_row);
    if !facts.is_empty() {
        let facts: String = facts.iter().map(|fact| format!("<li>{fact}</li>")).collect();
        html.push_str(&format!("<ul class=\"facts\">{facts}</ul>"));
    }
    if let Some(properties) = schema["properties"].as_object() {
        html.push_str(&fields(schema, properties));
    }
    html
}

/// Returns the default of a schema.
pub(super) fn default_of(schema: &Value) -> String {
    schema.get("default").map(json).unwrap_or_default()
}

/// Returns the table of the fields of an object.
fn fields(schema: &Value, properties: &Map<String, Value>) -> String {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let row = |(name, field): (&String, &Value)| {
        let mark =
            if required.contains(&name.as_str()) { " <span class=\"must\">required</span>" } else { "" };
        vec![code(name) + mark, type_of(field), default_of(field), meaning(None, field, true)]
    };
    let rows: Vec<Vec<String>> = properties.iter().map(row).collect();
    table("fields", &["Field", "Type", "Default", "Meaning"], &rows)
}

/// Returns a value as JSON.
fn json(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => code(&value.to_string()),
        Value::String(text) => code(&format!("\"{text}\"")),
        value => code(&value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_are_named_in_words() {
        for (schema, expected) in [
            (json!({"type": "string"}), "string"),
            (json!({"type": ["integer", "null"], "format": "int64"}), "integer (int64) or null"),
            (json!({"type": "array", "items": {"type": "string"}}), "array of string"),
            (json!({"oneOf": [{"type": "string"}, {"type": "string"}, {"type": "null"}]}), "string or null"),
            (json!({"$ref": "#/components/schemas/Job"}), "<a href=\"#type-Job\">Job</a>"),
            (json!({}), "any"),
        ] {
            assert_eq!(type_of(&schema), expected);
        }
    }

    #[test]
    fn a_keyword_that_nobody_knows_is_shown_too() {
        let html = meaning(None, &json!({"type": "integer", "multipleOf": 7, "minimum": 1}), false);
        assert!(html.contains("multipleOf: <code>7</code>"), "{html}");
        assert!(html.contains("At least <code>1</code>"), "{html}");
    }

    #[test]
    fn a_row_shows_a_default_once_and_marks_what_is_required() {
        let html = meaning(
            None,
            &json!({"properties": {"a": {"type": "string", "default": "x"}}, "required": ["a"]}),
            false,
        );
        assert_eq!(html.matches("<code>&quot;x&quot;</code>").count(), 1, "{html}");
        assert!(html.contains("<code>a</code> <span class=\"must\">required</span>"), "{html}");
    }
}
