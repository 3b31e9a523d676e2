//! Texts as HTML. Everything that the page shows passes through [`escaped`], [`code`] or [`prose`]. Pure.

/// Returns a text as HTML, for content and for quoted attributes.
pub(super) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
    }
    html
}

/// Returns a text that is marked as code.
pub(super) fn code(text: &str) -> String {
    format!("<code>{}</code>", escaped(text))
}

/// Returns sentences as HTML. Backticks in the text mark code.
pub(super) fn prose(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    // If the number of backticks is odd, the last backtick marks nothing.
    let is_paired = parts.len() % 2 == 1;
    let mut html = String::with_capacity(text.len() + 16);
    for (at, part) in parts.iter().enumerate() {
        let is_last = at + 1 == parts.len();
        match at % 2 {
            1 if is_paired || !is_last => html.push_str(&code(part)),
            1 => html.push_str(&escaped(&format!("`{part}"))),
            _ => html.push_str(&escaped(part)),
        }
    }
    html
}

/// Returns a table. `head` names the columns, and the first cell of each row is the head of the row.
pub(super) fn table(class: &str, head: &[&str], rows: &[Vec<String>]) -> String {
    let columns: String =
        head.iter().map(|name| format!("<th scope=\"col\">{}</th>", escaped(name))).collect();
    let mut body = String::new();
    for row in rows {
        body.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            body.push_str(&match at {
                0 => format!("<th scope=\"row\">{cell}</th>"),
                _ => format!("<td>{cell}</td>"),
            });
        }
        body.push_str("</tr>\n");
    }
    format!("<table class=\"{class}\"><thead><tr>{columns}</tr></thead><tbody>\n{body}</tbody></table>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_never_become_markup() {
        assert_eq!(escaped("<a href=\"x\" id='y'>&"), "&lt;a href=&quot;x&quot; id=&#39;y&#39;&gt;&amp;");
        assert_eq!(prose("a `<b>` c"), "a <code>&lt;b&gt;</code> c");
        assert_eq!(prose("`a` and `b`"), "<code>a</code> and <code>b</code>");
        assert_eq!(prose("one ` and <i>"), "one ` and &lt;i&gt;");
        assert_eq!(prose("`a` and one ` more"), "<code>a</code> and one ` more");
    }
}
