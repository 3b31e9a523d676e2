//! The example of an operation: a command of `curl`. Pure.

use serde_json::{Map, Value};

use super::shape::resolved;

/// The maximum depth of an example of a body. There is a limit, because a schema may contain itself.
const DEPTH_MAX: usize = 6;

/// Returns the command for an operation. In the command, the shell variable `DQ` has the beginning of the URL, and
/// `TOKEN` has the token.
pub(super) fn command(document: &Value, method: &str, path: &str, operation: &Value) -> String {
    let mut url = path.to_owned();
    let mut query = String::new();
    let mut lines = Vec::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap_or_default();
        let value =
            parameter.get("example").cloned().unwrap_or_else(|| example(document, &parameter["schema"], 0));
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match parameter["in"].as_str() {
            Some("path") => url = url.replace(&format!("{{{name}}}"), &value),
            Some("query") if parameter["required"] == true => {
                query.push(if query.is_empty() { '?' } else { '&' });
                query.push_str(&format!("{name}={value}"));
            }
            Some("header") if parameter["required"] == true => {
                lines.push(format!("-H {}", quoted(&format!("{name}: {value}"))));
            }
            _ => {}
        }
    }
    let body = operation["requestBody"]["content"].as_object().and_then(|content| content.iter().next());
    if let Some((kind, media)) = body {
        let body = media.get("example").cloned().unwrap_or_else(|| example(document, &media["schema"], 0));
        lines.push(format!("-H {}", quoted(&format!("Content-Type: {kind}"))));
        lines.push(format!("-d {}", quoted(&body.to_string())));
    }
    let method = if method == "GET" { String::new() } else { format!("-X {method} ") };
    let mut command =
        format!("curl -s {method}\"$DQ\"{} -H \"Authorization: Bearer $TOKEN\"", quoted(&(url + &query)));
    for line in lines {
        command.push_str(" \\\n  ");
        command.push_str(&line);
    }
    command
}

/// Returns an example of a value: the example of the schema, or an example with the required fields.
fn example(document: &Value, schema: &Value, depth: usize) -> Value {
    let schema = resolved(document, schema);
    let own = schema.get("example").or_else(|| schema["examples"].get(0)).or_else(|| schema["enum"].get(0));
    if let Some(own) = own {
        return own.clone();
    }
    if depth == DEPTH_MAX {
        return Value::Null;
    }
    let alternatives = ["oneOf", "anyOf", "allOf"].iter().find_map(|list| schema[*list].get(0));
    if let Some(first) = alternatives {
        return example(document, first, depth + 1);
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"].get(0)?.as_str());
    match kind {
        Some("object") => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let field = |name: &str| example(document, &schema["properties"][name], depth + 1);
            Value::Object(required.map(|name| (name.to_owned(), field(name))).collect::<Map<_, _>>())
        }
        Some("array") => Value::Array(vec![example(document, &schema["items"], depth + 1)]),
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or_else(|| 1.into()),
        Some("boolean") => true.into(),
        _ => "x".into(),
    }
}

/// Returns a word in quotes for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_command_has_all_that_is_required_and_quotes_it() {
        let operation = json!({
            "parameters": [
                {"name": "topic", "in": "path", "required": true, "example": "orders"},
                {"name": "state", "in": "query", "required": true, "schema": {"enum": ["dead"]}},
                {"name": "limit", "in": "query", "required": false, "schema": {"type": "integer"}},
            ],
            "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/New"}}}},
        });
        let new =
            json!({"type": "object", "required": ["name"], "properties": {"name": {"examples": ["it's"]}}});
        let document = json!({"components": {"schemas": {"New": new}}});
        assert_eq!(
            command(&document, "POST", "/v1/topics/{topic}/jobs", &operation),
            "curl -s -X POST \"$DQ\"'/v1/topics/orders/jobs?state=dead' -H \"Authorization: Bearer $TOKEN\" \\\n  \
             -H 'Content-Type: application/json' \\\n  -d '{\"name\":\"it'\\''s\"}'"
        );
    }

    #[test]
    fn an_example_of_a_schema_that_contains_itself_has_an_end() {
        let node = json!({"type": "object", "required": ["next"],
            "properties": {"next": {"$ref": "#/components/schemas/Node"}}});
        let document = json!({"components": {"schemas": {"Node": node}}});
        let found = example(&document, &json!({"$ref": "#/components/schemas/Node"}), 0);
        assert!(found["next"]["next"].is_object(), "{found}");
    }
}
