//! An operation as HTML: what it does, its parameters, its body, its answers and errors, and an example. Pure.

use serde_json::Value;

use super::curl;
use super::html::{code, escaped, prose, table};
use super::shape::{default_of, meaning, referred, resolved, type_of};

/// Returns the section of an operation.
pub(super) fn section(document: &Value, method: &str, path: &str, operation: &Value) -> String {
    let id = escaped(operation["operationId"].as_str().unwrap_or_default());
    let mut html = format!(
        "<section class=\"operation\" id=\"{id}\" aria-labelledby=\"{id}-name\">\n<h3 id=\"{id}-name\">{} {} \
         <a class=\"self\" href=\"#{id}\">{id}</a></h3>\n",
        method_mark(method),
        code(path)
    );
    for text in ["summary", "description"].iter().filter_map(|name| operation[*name].as_str()) {
        html.push_str(&format!("<p>{}</p>\n", prose(text)));
    }
    html.push_str(&parameters(operation));
    html.push_str(&body(document, &operation["requestBody"]));
    let responses = |is_shown: fn(&str) -> bool| -> Vec<Vec<String>> {
        let all = operation["responses"].as_object().into_iter().flatten();
        all.filter(|(status, _)| is_shown(status)).map(|(status, answer)| response(status, answer)).collect()
    };
    let is_error = |status: &str| status.starts_with(['4', '5']);
    for (title, rows) in
        [("Answers", responses(|s| !s.starts_with(['4', '5']))), ("Errors", responses(is_error))]
    {
        if !rows.is_empty() {
            html.push_str(&format!("<h4>{title}</h4>\n"));
            html.push_str(&table("answers", &["Status", "Meaning", "Body"], &rows));
        }
    }
    let example = curl::command(document, method, path, operation);
    html.push_str(&format!("<h4>Example</h4>\n<pre><code>{}</code></pre>\n</section>\n", escaped(&example)));
    html
}

/// Returns the method as a coloured mark.
pub(super) fn method_mark(method: &str) -> String {
    format!(
        "<span class=\"method method--{}\">{}</span>",
        escaped(&method.to_ascii_lowercase()),
        escaped(method)
    )
}

fn parameters(operation: &Value) -> String {
    let row = |parameter: &Value| {
        let must = if parameter["required"] == true { " <span class=\"must\">required</span>" } else { "" };
        let schema = &parameter["schema"];
        let mut about = meaning(parameter["description"].as_str(), schema, true);
        if let Some(example) = parameter.get("example") {
            about.push_str(&format!("<p>Example: {}</p>", code(&plain(example))));
        }
        vec![
            code(parameter["name"].as_str().unwrap_or_default()) + must,
            escaped(parameter["in"].as_str().unwrap_or_default()),
            type_of(schema),
            default_of(schema),
            about,
        ]
    };
    let rows: Vec<Vec<String>> = operation["parameters"].as_array().into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    "<h4>Parameters</h4>\n".to_owned()
        + &table("fields", &["Name", "In", "Type", "Default", "Meaning"], &rows)
}

fn body(document: &Value, body: &Value) -> String {
    let mut html = String::new();
    for (kind, media) in body["content"].as_object().into_iter().flatten() {
        let schema = &media["schema"];
        let must = if body["required"] == true { "required" } else { "may be left out" };
        html.push_str(&format!("<h4>Body: {}</h4>\n<p>{}, {must}.</p>\n", type_of(schema), code(kind)));
        html.push_str(
            &body["description"].as_str().map(|text| format!("<p>{}</p>\n", prose(text))).unwrap_or_default(),
        );
        if let Some(example) = media.get("example") {
            html.push_str(&format!("<p>Example: {}</p>\n", code(&plain(example))));
        }
        html.push_str(&meaning(None, resolved(document, schema), false));
    }
    html
}

/// Returns the row of an answer.
fn response(status: &str, answer: &Value) -> Vec<String> {
    let mut about = answer["description"].as_str().map(prose).unwrap_or_default();
    for (name, header) in answer["headers"].as_object().into_iter().flatten() {
        let schema = &header["schema"];
        let text = meaning(header["description"].as_str(), schema, false);
        about.push_str(&format!("<div>Header {} ({}): {text}</div>", code(name), type_of(schema)));
    }
    let mut body = String::new();
    for (kind, media) in answer["content"].as_object().into_iter().flatten() {
        body.push_str(&format!("<div>{} {}</div>", type_of(&media["schema"]), code(kind)));
        if referred(&media["schema"]).is_none() {
            body.push_str(&meaning(None, &media["schema"], false));
        }
        if let Some(example) = media.get("example") {
            body.push_str(&format!("<div>Example: {}</div>", code(&plain(example))));
        }
    }
    vec![code(status), about, body]
}

/// Returns a value as a reader writes it: a text without quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
