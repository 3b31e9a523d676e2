//! Expressions over an answer: `{status} == 200 && {res.code} === 0`. Pure: no clock, no I/O, and nothing in an
//! expression can be executed.
//!
//! Expressions have the syntax of PHP conditions, and the same meaning as in PHP 8, because topics of the PHP daemon
//! contain such texts (`re_notify_flag`). Members of the answer are written in braces. A missing member is null.

mod function;
mod parse;
mod read;
mod value;

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value as Json;

use self::function::Function;
use self::value::ExpressionValue;

/// The longest text, in bytes.
pub const LENGTH_MAX: usize = 4096;

/// How deep parentheses, lists and the signs `!`, `-` and `+` may be nested.
const DEPTH_MAX: usize = 32;

/// Why a text is not an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpressionError {
    /// The position of the character that is wrong, from 1.
    pub at: usize,
    /// What is wrong there, and what would be accepted.
    pub problem: String,
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at character {}: {}", self.at, self.problem)
    }
}

impl std::error::Error for ExpressionError {}

/// The answer that an expression is evaluated on.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// `{status}`.
    pub status: u16,
    /// `{res}`, the body. None: the body is not JSON.
    pub res: Option<&'a Json>,
}

/// A condition, parsed and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Expression(Term);

#[derive(Debug, Clone, PartialEq)]
enum Term {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// `[1, 'a']` or `array(1, 'a')`.
    List(Vec<Term>),
    /// `{status}`.
    Status,
    /// `{res.a.b}`: the names after `res`.
    Member(Vec<String>),
    Not(Box<Term>),
    Minus(Box<Term>),
    Comparison(Box<Term>, Comparison, Box<Term>),
    /// `%`.
    Remainder(Box<Term>, Box<Term>),
    Call(Function, Vec<Term>),
    /// True if all terms are true. The terms are a flat list and not nested pairs, so that a long chain is not a deep
    /// tree.
    All(Vec<Term>),
    /// True if at least one of the terms is true.
    Any(Vec<Term>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    Identical,
    NotIdentical,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Expression {
    /// Parses a text.
    pub fn parse(text: &str) -> Result<Expression, ExpressionError> {
        parse::parse(text, false).map(Expression)
    }

    /// Parses a `re_notify_flag`. As in the PHP daemon, the text after an `and` or `or` outside of parentheses has no
    /// effect.
    pub fn parse_flag(text: &str) -> Result<Expression, ExpressionError> {
        parse::parse(text, true).map(Expression)
    }

    /// Returns whether the condition is true for an answer.
    pub fn holds(&self, answer: Answer<'_>) -> bool {
        self.0.value(answer).is_true()
    }
}

impl Term {
    fn value<'a>(&'a self, answer: Answer<'a>) -> ExpressionValue<'a> {
        match self {
            Term::Null => ExpressionValue::Null,
            Term::Bool(b) => ExpressionValue::Bool(*b),
            Term::Int(n) => ExpressionValue::Int(*n),
            Term::Float(n) => ExpressionValue::Float(*n),
            Term::Text(text) => ExpressionValue::Text(text),
            Term::List(terms) => ExpressionValue::List(terms.iter().map(|term| term.value(answer)).collect()),
            Term::Status => ExpressionValue::Int(answer.status.into()),
            Term::Member(path) => {
                answer.res.map_or(ExpressionValue::Null, |res| ExpressionValue::member(res, path))
            }
            Term::Not(term) => ExpressionValue::Bool(!term.value(answer).is_true()),
            Term::Minus(term) => term.value(answer).negated(),
            Term::Comparison(a, how, b) => {
                ExpressionValue::Bool(how.holds(&a.value(answer), &b.value(answer)))
            }
            Term::Remainder(a, b) => a.value(answer).remainder(&b.value(answer)),
            Term::Call(function, terms) => {
                let values: Vec<ExpressionValue<'a>> = terms.iter().map(|term| term.value(answer)).collect();
                function.call(&values)
            }
            Term::All(terms) => ExpressionValue::Bool(terms.iter().all(|term| term.value(answer).is_true())),
            Term::Any(terms) => ExpressionValue::Bool(terms.iter().any(|term| term.value(answer).is_true())),
        }
    }
}

impl Comparison {
    fn holds(self, a: &ExpressionValue<'_>, b: &ExpressionValue<'_>) -> bool {
        match self {
            Comparison::Equal => a.equals(b),
            Comparison::Unequal => !a.equals(b),
            Comparison::Identical => a.is_identical(b),
            Comparison::NotIdentical => !a.is_identical(b),
            Comparison::Less => a.compare(b) == Some(Ordering::Less),
            Comparison::LessOrEqual => a.compare(b).is_some_and(Ordering::is_le),
            Comparison::Greater => a.compare(b) == Some(Ordering::Greater),
            Comparison::GreaterOrEqual => a.compare(b).is_some_and(Ordering::is_ge),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn holds(text: &str, res: Json) -> bool {
        let expression = Expression::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        expression.holds(Answer { status: 200, res: Some(&res) })
    }

    /// Evaluates a condition without members.
    fn says(text: &str) -> bool {
        holds(text, Json::Null)
    }

    #[test]
    fn what_topics_of_the_php_daemon_say_means_what_it_meant() {
        assert!(holds("{res.code} != 0", json!({"code": 1})));
        assert!(!holds("{res.code} != 0", json!({"code": 0})));
        assert!(!holds("{res.code} != 0", json!({"code": "0"})));
        let waits = r#"{res.code}==1 && {res.data.state}=="wait""#;
        assert!(holds(waits, json!({"code": 1, "data": {"state": "wait"}})));
        assert!(holds(waits, json!({"code": "1", "data": {"state": "wait"}})));
        assert!(!holds(waits, json!({"code": 1, "data": {"state": "done"}})));
        assert!(!holds(waits, json!({"code": 1})));
        assert!(holds("{res.list.1.x} === 'b'", json!({"list": [{"x": "a"}, {"x": "b"}]})));
    }

    #[test]
    fn a_member_that_is_not_there_is_null() {
        for res in [json!({}), json!([]), json!("text"), json!(7), json!(null), json!({"a": {"c": 1}})] {
            assert!(holds("{res.a.b} === null", res.clone()), "{res}");
            assert!(holds("{res.a.b} == 0 && !{res.a.b}", res.clone()), "{res}");
            assert!(!holds("{res.a.b} > 0", res.clone()), "{res}");
        }
        // An answer that is not JSON has no members.
        let text = "{res} === null && {res.a} === null && {status} === 404";
        assert!(Expression::parse(text).unwrap().holds(Answer { status: 404, res: None }));
    }

    /// Checks the tables of the PHP manual, and the rules of PHP 8 for the comparison of numbers with strings.
    #[test]
    fn values_are_compared_as_php_8_compares_them() {
        let loosely = [
            ("0 == 'foo'", false),
            ("0 == ''", false),
            ("'' == null", true),
            ("'0' == null", false),
            ("0 == null", true),
            ("'0' == false", true),
            ("'' == false", true),
            ("'a' == true", true),
            ("'0.0' == false", false),
            ("1 == '1'", true),
            ("1 == '01'", true),
            ("10 == '1e1'", true),
            ("100 == '1e2'", true),
            ("'1' == '01'", true),
            ("'10' == '1e1'", true),
            ("'abc' == 0", false),
            ("'1abc' == 1", false),
            ("' 1' == 1", true),
            ("'1 ' == 1", true),
            ("'1' == ' 1 '", true),
            ("null == false", true),
            ("true == -1", true),
            ("'php' == 'PHP'", false),
            ("1.0 == 1", true),
            ("'1.0' == '1'", true),
            ("'.5' == 0.5", true),
            ("'5.' == 5", true),
            ("'0x1' == 1", false),
            ("'inf' == 'nan'", false),
            ("'9223372036854775808' == 9223372036854775808", true),
        ];
        let strictly = [
            ("1 === 1", true),
            ("1 === 1.0", false),
            ("1 === '1'", false),
            ("'a' === \"a\"", true),
            ("null === false", false),
            ("1 !== '1'", true),
            ("true === TRUE", true),
        ];
        let ordered = [
            ("null < 'a'", true),
            ("null < -1", true),
            ("'abc' < 'abd'", true),
            ("'10' < '9'", false),
            ("'10' < '9a'", true),
            ("10 < 'abc'", true),
            ("2 >= 2.0 && 2 <= 2", true),
            ("-1 < 0 && - 1 > -2", true),
            ("false < true", true),
            ("1 <> 2", true),
        ];
        for (text, expected) in loosely.iter().chain(&strictly).chain(&ordered) {
            assert_eq!(says(text), *expected, "{text}");
        }
        for (text, _) in &loosely {
            assert_ne!(says(text), says(&text.replace("==", "!=")), "{text}");
        }
    }

    #[test]
    fn arrays_are_compared_by_length_and_then_by_what_is_in_them() {
        let res = json!({"a": [1, 2], "b": [1, "2"], "c": [1], "d": {"0": 1, "1": 2}, "e": {}, "f": {"x": 1}, "g": {"y": 1}});
        for (text, expected) in [
            ("{res.a} == {res.b}", true),
            ("{res.a} === {res.b}", false),
            ("{res.a} === {res.a}", true),
            ("{res.a} == {res.d}", true),
            ("{res.c} < {res.a}", true),
            ("{res.e} == null && !{res.e}", true),
            ("{res.f} == {res.g}", false),
            ("{res.f} < {res.g} || {res.f} >= {res.g}", false),
            ("{res.a} > 'z' && {res.a} > 999", true),
            ("{res.a} == true", true),
        ] {
            assert_eq!(holds(text, res.clone()), expected, "{text}");
        }
    }

    #[test]
    fn operators_bind_as_in_php() {
        for (text, expected) in [
            ("true || false && false", true),
            ("(true || false) && false", false),
            ("true or false and false", true),
            // `and` binds less tightly than `||`.
            ("false and true || true", false),
            ("false && true || true", true),
            ("!1 == 0", true),
            ("!(1 == 0)", true),
            ("!!1", true),
            ("1 == 2 < 3", true),
            ("-'5' == -5 && +'5' == 5 && -null == 0 && -'x' === null", true),
            ("1 && 2 && 3 && (0 || 0 || 4)", true),
            ("(1 && 1) && 0", false),
            ("(0 || 1) || 0", true),
            ("TRUE AND True oR nULL", true),
            ("'it\\'s' == \"it's\" && '\\n' !== \"\\n\" && '{a}' != 'b'", true),
            ("1.5e3 == 1500 && .5 < 1 && 1. == 1", true),
            // Two numbers are compared as strings if they are so long that they are equal as floating-point numbers.
            ("'12345678901234567890' == '12345678901234567891'", false),
            ("'12345678901234567890' == '12345678901234567890'", true),
        ] {
            assert_eq!(says(text), expected, "{text}");
        }
    }

    #[test]
    fn functions_and_remainders_are_those_of_php() {
        let res = json!({
            "n": 7, "t": "abc", "zh": "中", "list": [1, "2", null], "e": [], "o": {"a": 1}, "nul": null, "f": 7.9, "yes": true
        });
        for (text, expected) in [
            ("{res.n} % 2 == 1", true),
            ("-7 % 3 === -1", true),
            ("7 % -3 === 1", true),
            ("{res.f} % 4 === 3", true),
            ("'7' % 4 === 3", true),
            ("1 == 5 % 2", true),
            ("5 % 3 % 2 === 0", true),
            // PHP ends with an error here, so the flag is not true.
            ("{res.n} % 0", false),
            ("'abc' % 2 === null", true),
            ("'2abc' % 8 === 2 && -'2abc' === -2 && +' 3x' === 3 && -'1.5e1z' === -15.0", true),
            ("strlen({res.t}) == 3 && strlen('') === 0", true),
            ("strlen({res.zh}) === 3", true),
            ("strlen({res.n}) === 1 && strlen({res.yes}) === 1 && strlen({res.nul}) === 0", true),
            ("strlen({res.list}) === null", true),
            ("count({res.list}) === 3 && count({res.o}) === 1 && count({res.e}) === 0", true),
            ("count({res.n}) === null", true),
            ("in_array(2, {res.list})", true),
            ("in_array(2, {res.list}, true)", false),
            ("in_array('x', {res.list})", false),
            ("in_array('1', {res.o})", true),
            ("in_array(1, {res.n})", false),
            ("isset({res.n}) && !isset({res.nul}) && !isset({res.none.x})", true),
            ("isset({res.n}, {res.t})", true),
            ("isset({res.n}, {res.none})", false),
            ("empty({res.e}) && empty({res.nul}) && empty({res.none}) && empty('0') && !empty('0.0')", true),
            ("intval('12abc') === 12 && intval(' 12') === 12 && intval('abc') === 0", true),
            (
                "intval({res.f}) === 7 && intval('1e3') === 1000 && intval(null) === 0 && intval(true) === 1",
                true,
            ),
            ("intval({res.e}) === 0 && intval({res.list}) === 1 && intval('-3.9') === -3", true),
            ("strpos({res.t}, 'c') === 2 && strpos({res.t}, 'a') === 0", true),
            ("strpos({res.t}, 'x') === false && strpos({res.t}, '') === 0", true),
            ("strpos({res.zh}, '中') !== FALSE && STRLEN('a') == 1", true),
        ] {
            assert_eq!(holds(text, res.clone()), expected, "{text}");
        }
    }

    /// The expected values are those of PHP 8.2.
    #[test]
    fn lists_in_expressions_are_arrays_of_php() {
        let res = json!({"code": 2, "list": [1, 2], "deep": [1, [2, 3]], "o": {"0": 1, "1": 2}, "none": []});
        for (text, expected) in [
            ("in_array({res.code}, [1, 2])", true),
            ("in_array({res.code}, array(1, 3))", false),
            ("in_array('2', [1, 2], true) || !in_array('2', [1, 2])", false),
            ("in_array({res.list}, [[1, 2], 3]) && in_array(null, [0]) && !in_array('abc', [0])", true),
            ("[1, 2] == {res.list} && {res.list} === [1, 2] && [1, 2] == {res.o}", true),
            ("[1, 2] == [1, '2'] && [1, 2] !== [1, '2'] && [null] == [false]", true),
            ("[1, 2] < [1, 3] && [3] < [1, 2] && [1] > 'z' && 1 != [1]", true),
            ("[] == null && [] == false && [] != '' && ![] && empty([]) && {res.none} === []", true),
            ("Array(1, array(2),) == [1, [2],] && array() === []", true),
            ("count([1, 2]) === 2 && count(array()) === 0 && count([{res.list}, 1]) === 2", true),
            ("count({res.deep}, 1) === 4 && count({res.deep}, 0) === 2 && count([1, [2]], true) === 3", true),
            ("count([1], 2) === null && count([1], 'abc') === null && count([1], null) === 1", true),
            ("[1] % 2 === null && -[1] === null && strlen([]) === null && intval([1], 8) === 1", true),
            ("strpos('abcabc', 'c', 3) === 5 && strpos('abcabc', 'c', -1) === 5", true),
            (
                "strpos('abcabc', 'a', -3) === 3 && strpos('abc', '', 3) === 3 && strpos('abc', 'c', '1') === 2",
                true,
            ),
            ("strpos('abc', 'c', 3) === false && strpos('abc', 'c', 4) === null", true),
            ("strpos('abc', 'c', -4) === null && strpos('abc', 'c', 'x') === null", true),
            ("strpos('中文', '文', 1) === 3 && strpos('中文', '', 1) === 1", true),
            ("intval('12', 8) === 10 && intval(42, 8) === 42 && intval(' 12abc', 16) === 76476", true),
            ("intval('0x1A', 16) === 26 && intval('0x1A', 0) === 26 && intval('042', 0) === 34", true),
            ("intval('0b11', 0) === 3 && intval('-0b11', 2) === -3 && intval('0x', 16) === 0", true),
            ("intval('zz', 36) === 1295 && intval('zz', 37) === 0 && intval('12', -3) === 0", true),
            ("intval('12', null) === 12 && intval('12', 'x') === null && intval('1e3', 10) === 1000", true),
            ("intval('99999999999999999999', 16) === 9223372036854775807", true),
        ] {
            assert_eq!(holds(text, res.clone()), expected, "{text}");
        }
    }

    #[test]
    fn a_flag_ends_at_and_or_or_as_after_an_assignment() {
        for (text, as_flag, as_condition) in [
            ("false or true", false, true),
            ("true and false", true, false),
            ("true and false;", true, false),
            ("true && false or true", false, true),
            ("(false or true)", true, true),
            ("false || true", true, true),
            ("1 == 1;", true, true),
        ] {
            let nothing = Answer { status: 200, res: None };
            assert_eq!(Expression::parse_flag(text).unwrap().holds(nothing), as_flag, "{text}");
            assert_eq!(Expression::parse(text).unwrap().holds(nothing), as_condition, "{text}");
        }
        assert_eq!(Expression::parse_flag("1 and (2").unwrap_err().at, 9);
    }

    #[test]
    fn a_bad_expression_is_refused_with_its_position_and_a_hint() {
        for (text, at, hint) in [
            ("", 1, "{res.code} == 0"),
            ("  ", 1, "{res.code} == 0"),
            ("{res.code} = 0", 12, "=="),
            ("{res.code} == 0 & 1", 17, "&&"),
            ("1 | 2", 3, "||"),
            ("{res.code", 1, "}"),
            ("{res..a} == 1", 1, "{res.a.b}"),
            ("{res.} == 1", 1, "{res.a.b}"),
            ("{body.a} == 1", 1, "{status}"),
            ("{status.a} == 1", 1, "{res.member}"),
            ("1 ==", 5, "missing"),
            ("== 1", 1, "missing"),
            ("1 2", 3, "operator"),
            ("(1", 3, ")"),
            ("1)", 2, ")"),
            ("1 < 2 < 3", 7, "( )"),
            ("1 == 2 == 3", 8, "( )"),
            ("'abc", 1, "'"),
            ("system('ls')", 1, "known are"),
            ("strlen", 7, "( is missing"),
            ("strlen()", 8, "missing"),
            ("strlen(1, 2)", 7, "1 to 1"),
            ("intval(1, 2, 3)", 7, "1 to 2"),
            ("[1", 3, "]"),
            ("[1 2]", 4, "]"),
            ("array(1]", 8, ")"),
            ("array == 1", 7, "( is missing"),
            ("[,] == 1", 2, "missing"),
            ("1]", 2, "[ "),
            ("['a' => 1]", 6, "no keys"),
            ("strlen(1", 9, ")"),
            ("1, 2", 2, "operator"),
            ("1 % ", 5, "missing"),
            ("$res == 1", 1, "known are"),
            ("{res.a} == \"$x\"", 13, "\\$"),
            ("'{res.a}' == 'b'", 1, "leave the quotes out"),
            ("nonempty", 1, "known are"),
            ("010 == 8", 1, "number"),
            ("1x == 1", 1, "number"),
            ("{res.a} == 中", 12, "known are"),
            ("\"\\x41\" == 1", 2, "\\n"),
            ("1;2", 2, "operator"),
            (";", 1, "missing"),
            ("1;;", 2, "operator"),
        ] {
            let mistake = Expression::parse(text).expect_err(text);
            assert_eq!(mistake.at, at, "{text}: {mistake}");
            assert!(mistake.to_string().contains(hint), "{text}: {mistake}");
        }
    }

    #[test]
    fn a_long_or_deep_text_is_refused_and_a_long_chain_is_accepted() {
        let deep = |n: usize| format!("{}1{}", "(".repeat(n), ")".repeat(n));
        assert!(Expression::parse(&deep(DEPTH_MAX)).is_ok());
        assert!(Expression::parse(&deep(DEPTH_MAX + 1)).unwrap_err().problem.contains("32"));
        let lists = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(Expression::parse(&lists(DEPTH_MAX)).is_ok());
        assert!(Expression::parse(&lists(DEPTH_MAX + 2)).unwrap_err().problem.contains("32"));
        assert!(Expression::parse(&format!("{}1", "!".repeat(1000))).is_err());
        assert!(Expression::parse(&" ".repeat(LENGTH_MAX + 1)).is_err());
        let row = format!("1{}", "&&1".repeat(1000));
        assert!(says(&row));
        assert!(!says(&format!("{row}&&0")));
    }

    fn pieces() -> impl Strategy<Value = String> {
        const PIECES: [&str; 41] = [
            "[",
            "]",
            " array(",
            "count(",
            "strpos(",
            "intval(",
            "-7",
            " % ",
            ",",
            "in_array(",
            "strlen(",
            "(",
            ")",
            "!",
            "-",
            "+",
            "==",
            "!=",
            "===",
            "!==",
            "<",
            ">",
            "<=",
            ">=",
            "&&",
            "||",
            " and ",
            " or ",
            "{res.a}",
            "{res.b.0}",
            "{res}",
            "{status}",
            "1",
            "1.5",
            "'x'",
            "\"10\"",
            "true",
            "null",
            "'",
            "{",
            "\\",
        ];
        proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..40).prop_map(|all| all.concat())
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in prop_oneof![pieces(), any::<String>()]) {
            let res = json!({"a": "10", "b": [1.5, {"c": null}]});
            match Expression::parse(&text) {
                Ok(expression) => {
                    expression.holds(Answer { status: 200, res: Some(&res) });
                    expression.holds(Answer { status: 500, res: None });
                }
                Err(mistake) => prop_assert!(mistake.at <= text.chars().count() + 1),
            }
        }

        #[test]
        fn a_comparison_and_its_opposite_are_never_both_true(a in 0..8usize, b in 0..8usize) {
            let values = ["null", "true", "0", "'0'", "''", "'abc'", "1.5", "{res.b}"];
            let res = json!({"b": [1]});
            for (one, other) in [("==", "!="), ("===", "!=="), ("<", ">=")] {
                let [one, other] = [one, other].map(|op| holds(&format!("{} {op} {}", values[a], values[b]), res.clone()));
                prop_assert!(one != other, "{} {}", values[a], values[b]);
            }
        }
    }
}
