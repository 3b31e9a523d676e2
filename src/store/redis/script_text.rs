//! Makes the text of a script as it is sent to servers. The text is made from the file of the script and from its
//! parts, and changed so that a call costs the server less.

use std::collections::HashMap;

/// Returns the text of a script. `parts` are the names and texts of its parts.
pub(super) fn assemble(parts: &[(&str, &str)], source: &str) -> String {
    let text: String = parts.iter().map(|(_, text)| *text).collect();
    let constants: HashMap<&str, &str> = text.lines().chain(source.lines()).flat_map(constants_of).collect();
    let first = first_functions(parts, source);
    let (text, source) = (with_values(&text, &constants), with_values(source, &constants));
    match first {
        None => text + &source,
        Some(first) => with_others_deferred(&text, &first, &source),
    }
}

/// Returns the constants that a line defines, with their values. A constant is a variable of the whole script. Its name
/// is in capital letters, and its value is a number or a string.
pub(super) fn constants_of(line: &str) -> Vec<(&str, &str)> {
    let Some((names, values)) = line.strip_prefix("local ").and_then(|rest| rest.split_once(" = ")) else {
        return Vec::new();
    };
    let (names, values): (Vec<&str>, Vec<&str>) = (names.split(", ").collect(), values.split(", ").collect());
    let is_name = |name: &&str| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    let is_string = |text: &str| {
        text.strip_prefix('\'')
            .and_then(|rest| rest.strip_suffix('\''))
            .is_some_and(|inner| !inner.contains('\''))
    };
    let is_value = |text: &&str| is_number(text) || is_string(text);
    let are_constants =
        names.len() == values.len() && names.iter().all(is_name) && values.iter().all(is_value);
    if are_constants { names.into_iter().zip(values).collect() } else { Vec::new() }
}

/// Returns a text with the values of the constants in place of their names. (Each variable that a call defines takes
/// time. If a function uses a variable from outside, the definition of the function takes longer.) Comments and line
/// numbers do not change.
fn with_values(text: &str, constants: &HashMap<&str, &str>) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        if line.trim_start().starts_with("--") {
            out.push_str(line);
        } else if constants_of(line).is_empty() {
            let is_part_of_word = |c: char| c.is_ascii_alphanumeric() || "_.".contains(c);
            let mut rest = line;
            while let Some(at) = rest.find(is_part_of_word) {
                let (before, from) = rest.split_at(at);
                let (word, after) = from.split_at(from.find(|c| !is_part_of_word(c)).unwrap_or(from.len()));
                out.push_str(before);
                out.push_str(constants.get(word).unwrap_or(&word));
                rest = after;
            }
            out.push_str(rest);
        }
        out.push('\n');
    }
    out
}

/// Returns the functions that most calls of a script need. None: the script needs all functions in most calls.
pub(super) fn first_functions<'a>(parts: &[(&'a str, &'a str)], source: &'a str) -> Option<Vec<&'a str>> {
    let after = |mark: &'static str| -> Vec<&'a str> {
        source.lines().filter_map(|line| line.strip_prefix(mark)).flat_map(|names| names.split(' ')).collect()
    };
    let (first, later) = (after("--@ first "), after("--@ later "));
    if later.is_empty() {
        return (!first.is_empty()).then_some(first);
    }
    let at_once = parts.iter().filter(|(name, _)| !later.contains(name)).flat_map(|(_, text)| text.lines());
    Some(at_once.filter_map(function_of).map(|(name, _)| name).collect())
}

/// Returns the name of the function that a line begins to define, and the rest of the line after the bracket.
fn function_of(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("local function ")?.split_once('(')
}

/// Returns the text of a script where only these functions of its parts are defined at once. `define_others()` defines
/// the other functions, in the table `OTHERS`. (A function that uses more variables from outside takes longer to
/// define. If the other functions were variables, `define_others()` and the callers of these functions would use them
/// from outside. So the other functions are fields of a table.)
fn with_others_deferred(parts: &str, first: &[&str], source: &str) -> String {
    let (mut at_once, mut deferred, mut names) = (String::new(), String::new(), Vec::new());
    let mut is_in_deferred = false;
    for line in parts.lines() {
        match function_of(line).filter(|(name, _)| !first.contains(name)) {
            Some((name, rest)) => {
                is_in_deferred = true;
                names.push(name);
                deferred.push_str(&format!("OTHERS.{name} = function({rest}\n"));
            }
            None if is_in_deferred => {
                deferred.push_str(&format!("{line}\n"));
                is_in_deferred = line != "end";
            }
            None => at_once.push_str(&format!("{line}\n")),
        }
    }
    let is_done = names[0];
    let text = format!(
        "local OTHERS = {{}}\n{at_once}local function define_others()\nif OTHERS.{is_done} then return end\n{deferred}end\n{source}"
    );
    names.iter().fold(text, |text, name| with_calls_of_others(&text, name))
}

/// Returns the text of a script with `OTHERS.` before each call of this function.
fn with_calls_of_others(text: &str, name: &str) -> String {
    let call = format!("{name}(");
    let mut out = String::with_capacity(text.len());
    for (n, part) in text.split(&call).enumerate() {
        if n > 0 {
            let is_whole = !out.ends_with(|c: char| c.is_ascii_alphanumeric() || "_.:".contains(c));
            out.push_str(if is_whole { "OTHERS." } else { "" });
            out.push_str(&call);
        }
        out.push_str(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_few_calls_need_are_defined_later() {
        let parts =
            "local a = 1\nlocal function f(x)\n  return x\nend\n\nlocal function g()\n  return f(a)\nend\n";
        let g_later = "local OTHERS = {}\nlocal a = 1\nlocal function f(x)\n  return x\nend\n\n\
                       local function define_others()\nif OTHERS.g then return end\n\
                       OTHERS.g = function()\n  return f(a)\nend\nend\nreturn OTHERS.g(string.g(beg(1)))\n";
        assert_eq!(with_others_deferred(parts, &["f"], "return g(string.g(beg(1)))\n"), g_later);
    }

    #[test]
    fn constants_are_replaced_by_their_values() {
        let text = "local MOST, NAME = 1e15, 'a b'\nlocal LATE = f()\n-- MOST\n  return MOST, x.MOST, MOSTLY, (NAME), 1.5\n";
        let expected = "\nlocal LATE = f()\n-- MOST\n  return 1e15, x.MOST, MOSTLY, ('a b'), 1.5\n";
        assert_eq!(assemble(&[], text), expected);
        let with = |part: &str, source: &str| assemble(&[("part", part)], source);
        assert_eq!(with("local A, B = 1, 2\n", "return A + B .. A"), "\nreturn 1 + 2 .. 1\n");
        assert_eq!(with("local A = 'x' .. 'y'\n", "return A"), "local A = 'x' .. 'y'\nreturn A\n");
    }

    #[test]
    fn a_script_may_name_the_parts_that_few_calls_need() {
        let parts = [("p", "local function f()\nend\n"), ("q", "local function g()\nend\n")];
        assert_eq!(first_functions(&parts, "--@ use p q\n--@ later q\n"), Some(vec!["f"]));
        assert_eq!(first_functions(&parts, "--@ use p q\n--@ first g\n"), Some(vec!["g"]));
        assert_eq!(first_functions(&parts, "--@ use p q\n"), None);
    }
}
