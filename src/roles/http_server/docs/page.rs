//! The page: its head, the list of operations, the operations by tag, and the types. Pure.

use serde_json::Value;

use super::html::{code, escaped, prose};
use super::operation::{method_mark, section};
use super::shape::{meaning, type_id, type_of};

/// The order in which methods of a path are shown.
const METHODS: [&str; 8] = ["get", "post", "put", "patch", "delete", "head", "options", "trace"];

/// An operation of the document.
struct OpenApiOperation<'d> {
    method: String,
    path: &'d str,
    value: &'d Value,
}

/// Returns the page of a document of OpenAPI 3.1.
pub(super) fn render(document: &Value, style: &str) -> String {
    let info = &document["info"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let operations = operations(document);
    let groups = groups(document, &operations);
    let title = format!("{} {}: the API", escaped(&text(&info["title"])), escaped(&text(&info["version"])));
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"robots\" content=\"noindex\">\n\
         <title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#main\">Skip the list of operations</a>\n"
    );
    html.push_str(&index(&groups, document));
    html.push_str(&format!(
        "<main id=\"main\">\n<h1>{title}</h1>\n<p>{}</p>\n",
        prose(&text(&info["description"]))
    ));
    html.push_str(&head(document));
    for (name, about, members) in &groups {
        let id = group_id(name);
        html.push_str(&format!("<h2 id=\"{id}\">{}</h2>\n<p>{}</p>\n", escaped(name), prose(about)));
        for operation in members {
            html.push_str(&section(document, &operation.method, operation.path, operation.value));
        }
    }
    html.push_str("<h2 id=\"types\">Types</h2>\n<p>The parts of bodies and answers.</p>\n");
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        let id = type_id(name);
        html.push_str(&format!(
            "<section class=\"type\" id=\"{id}\" aria-labelledby=\"{id}-name\">\n<h3 id=\"{id}-name\">{}</h3>\n\
             <p class=\"kind\">{}</p>\n{}</section>\n",
            escaped(name),
            type_of(schema),
            meaning(None, schema, false)
        ));
    }
    html.push_str("</main>\n</body>\n</html>\n");
    html
}

/// Returns the text that applies to all operations: how to read the examples, and who may call.
fn head(document: &Value) -> String {
    let mut html = "<p>The same as data: <a href=\"/openapi.json\">/openapi.json</a>. In the examples, <code>DQ</code> is \
        the address of the daemon, and <code>TOKEN</code> a token:</p>\n\
        <pre><code>DQ=http://127.0.0.1:8088 TOKEN=dq_…</code></pre>\n"
        .to_owned();
    for (name, scheme) in document["components"]["securitySchemes"].as_object().into_iter().flatten() {
        html.push_str(&format!(
            "<p>Access: {} ({} {}). {}</p>\n",
            code(name),
            escaped(scheme["type"].as_str().unwrap_or_default()),
            escaped(scheme["scheme"].as_str().unwrap_or_default()),
            prose(scheme["description"].as_str().unwrap_or_default())
        ));
    }
    html
}

/// Returns all operations, in the order of their paths.
fn operations(document: &Value) -> Vec<OpenApiOperation<'_>> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for method in METHODS {
            if let Some(value) = item.get(method) {
                all.push(OpenApiOperation { method: method.to_ascii_uppercase(), path, value });
            }
        }
    }
    all
}

/// Returns the tags in the order of the document, each with its description and its operations. Tags that the document
/// does not describe, and operations without a tag, come last.
fn groups<'d, 'o>(
    document: &'d Value,
    all: &'o [OpenApiOperation<'d>],
) -> Vec<(&'d str, &'d str, Vec<&'o OpenApiOperation<'d>>)> {
    let tag_of = |operation: &OpenApiOperation<'d>| operation.value["tags"][0].as_str().unwrap_or("other");
    let mut names: Vec<(&str, &str)> = Vec::new();
    for tag in document["tags"].as_array().into_iter().flatten() {
        names.push((
            tag["name"].as_str().unwrap_or_default(),
            tag["description"].as_str().unwrap_or_default(),
        ));
    }
    for operation in all {
        if !names.iter().any(|(name, _)| *name == tag_of(operation)) {
            names.push((tag_of(operation), ""));
        }
    }
    let members = |name: &str| all.iter().filter(|operation| tag_of(operation) == name).collect();
    names.into_iter().map(|(name, about)| (name, about, members(name))).collect()
}

fn group_id(name: &str) -> String {
    escaped(&format!("group-{}", name.replace(' ', "-")))
}

/// Returns the list of operations, with a link to each operation.
fn index(groups: &[(&str, &str, Vec<&OpenApiOperation<'_>>)], document: &Value) -> String {
    let mut html = "<nav aria-label=\"Operations\">\n".to_owned();
    for (name, _, members) in groups {
        html.push_str(&format!("<p><a href=\"#{}\">{}</a></p>\n<ul>\n", group_id(name), escaped(name)));
        for operation in members {
            let id = escaped(operation.value["operationId"].as_str().unwrap_or_default());
            let mark = method_mark(&operation.method);
            html.push_str(&format!("<li><a href=\"#{id}\">{mark} {}</a></li>\n", escaped(operation.path)));
        }
        html.push_str("</ul>\n");
    }
    html.push_str("<p><a href=\"#types\">Types</a></p>\n<ul>\n");
    for name in document["components"]["schemas"].as_object().into_iter().flatten().map(|(name, _)| name) {
        html.push_str(&format!("<li><a href=\"#{}\">{}</a></li>\n", type_id(name), escaped(name)));
    }
    html.push_str("</ul>\n</nav>\n");
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_document_cannot_put_markup_on_the_page() {
        let evil = "<script>alert(\"'1'\")</script>";
        let document = json!({
            "info": {"title": evil, "version": evil, "description": evil},
            "tags": [{"name": evil, "description": evil}],
            "paths": {evil: {"get": {
                "operationId": evil, "summary": evil, "description": evil, "tags": [evil],
                "parameters": [{"name": evil, "in": evil, "description": evil, "example": evil,
                    "schema": {"type": evil, "format": evil, "pattern": evil, "enum": [evil], "default": evil, evil: evil}}],
                "requestBody": {"description": evil, "content": {evil: {"example": {evil: evil},
                    "schema": {"$ref": format!("#/components/schemas/{evil}")}}}},
                "responses": {evil: {"description": evil, "headers": {evil: {"description": evil, "schema": {"type": evil}}},
                    "content": {evil: {"schema": {"type": evil, "examples": [evil]}}}}},
            }}},
            "components": {
                "schemas": {evil: {"properties": {evil: {"description": evil}}, "required": [evil]}},
                "securitySchemes": {evil: {"type": evil, "scheme": evil, "description": evil}},
            },
        });
        let html = render(&document, "");
        assert!(!html.contains("<script"), "{html}");
        let after = html.split("&lt;script&gt;").count();
        assert!(after > 30, "{after}");
        // The text does not break out of an attribute either.
        assert!(!html.contains("alert(\""), "{html}");
    }

    #[test]
    fn operations_without_a_known_tag_are_on_the_page_too() {
        let document = json!({"tags": [{"name": "jobs"}], "paths": {
            "/a": {"get": {"operationId": "a", "tags": ["jobs"]}},
            "/b": {"post": {"operationId": "b", "tags": ["more"]}, "delete": {"operationId": "c"}},
        }});
        let html = render(&document, "");
        for id in ["a", "b", "c"] {
            assert_eq!(html.matches(&format!("<section class=\"operation\" id=\"{id}\"")).count(), 1, "{id}");
        }
    }
}
