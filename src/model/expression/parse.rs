//! Parses words into a tree of terms. The precedence of the operators is that of PHP, from the tightest to the loosest:
//! `!` and signs, `%`, `<`, `==`, `&&`, `||`, `and`, `or`. Comparisons cannot be chained (`1 < 2 < 3`), as in PHP.
//! Pure.

use super::function::Function;
use super::read::{Lexeme, words};
use super::{Comparison, DEPTH_MAX, ExpressionError, Term};

/// How tightly an operator between two terms binds. The variants are in order, the loosest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Precedence {
    Or,
    And,
    Either,
    Both,
    Equality,
    Order,
    Product,
}

impl Precedence {
    fn from_lexeme(word: &Lexeme) -> Option<Precedence> {
        Some(match word {
            Lexeme::Or => Precedence::Or,
            Lexeme::And => Precedence::And,
            Lexeme::Either => Precedence::Either,
            Lexeme::Both => Precedence::Both,
            Lexeme::Comparison(
                Comparison::Equal | Comparison::Unequal | Comparison::Identical | Comparison::NotIdentical,
            ) => Precedence::Equality,
            Lexeme::Comparison(_) => Precedence::Order,
            Lexeme::Percent => Precedence::Product,
            _ => return None,
        })
    }
}

/// Parses a text. A flag is evaluated as in the PHP daemon: as `$ret=<text>`. An assignment binds more tightly than
/// `and` and `or`. So if one of these words stands outside of parentheses, the text after it is checked but has no
/// effect.
pub(super) fn parse(text: &str, is_flag: bool) -> Result<Term, ExpressionError> {
    let mut words = words(text)?;
    // PHP ends a statement with a semicolon.
    if words.len() > 1 && words.last().is_some_and(|(_, word)| *word == Lexeme::End) {
        words.pop();
    }
    if words.is_empty() {
        let problem = "the expression is empty; an example is {res.code} == 0".to_owned();
        return Err(ExpressionError { at: 1, problem });
    }
    let mut parser = Parser { words, at: 0, end: text.chars().count() + 1 };
    let term = match is_flag {
        true => parser.assigned()?,
        false => parser.term(Precedence::Or, 0)?,
    };
    match parser.words.get(parser.at) {
        None => Ok(term),
        Some((_, Lexeme::Close)) => Err(parser.wrong("this ) has no matching (")),
        Some((_, Lexeme::CloseList)) => Err(parser.wrong("this ] has no matching [ before it")),
        Some(_) => Err(parser.wrong("an operator is missing before this, such as == or &&")),
    }
}

struct Parser {
    words: Vec<(usize, Lexeme)>,
    at: usize,
    end: usize,
}

impl Parser {
    /// Makes an error at the next word.
    fn wrong(&self, problem: impl Into<String>) -> ExpressionError {
        let at = self.words.get(self.at).map_or(self.end, |(at, _)| *at);
        ExpressionError { at, problem: problem.into() }
    }

    fn peek(&self) -> Option<&Lexeme> {
        self.words.get(self.at).map(|(_, word)| word)
    }

    /// Parses the part of the text that belongs to the assignment: everything before the first `and` or `or`. The text
    /// after this word is also parsed, but has no effect.
    fn assigned(&mut self) -> Result<Term, ExpressionError> {
        let term = self.term(Precedence::Either, 0)?;
        if matches!(self.peek(), Some(Lexeme::And | Lexeme::Or)) {
            self.at += 1;
            self.term(Precedence::Or, 0)?;
        }
        Ok(term)
    }

    /// Parses a term. All operators between the parts of the term bind at least as tightly as `least`.
    fn term(&mut self, least: Precedence, depth: usize) -> Result<Term, ExpressionError> {
        let mut left = self.operand(depth)?;
        let mut compared = None;
        while let Some(rank) = self.peek().and_then(Precedence::from_lexeme).filter(|rank| *rank >= least) {
            if compared == Some(rank) {
                return Err(self.wrong("comparisons cannot be chained: put one of them into ( )"));
            }
            let word = self.peek().cloned();
            self.at += 1;
            let tighter = match rank {
                Precedence::Or => Precedence::And,
                Precedence::And => Precedence::Either,
                Precedence::Either => Precedence::Both,
                Precedence::Both => Precedence::Equality,
                Precedence::Equality => Precedence::Order,
                Precedence::Order => Precedence::Product,
                // No other operator between two terms binds more tightly than `%`, so the right side is one operand.
                Precedence::Product => {
                    left = Term::Remainder(Box::new(left), Box::new(self.operand(depth)?));
                    continue;
                }
            };
            let right = self.term(tighter, depth)?;
            left = match rank {
                Precedence::Or | Precedence::Either => joined(left, right, Term::Any),
                Precedence::And | Precedence::Both => joined(left, right, Term::All),
                _ => compare(left, word, right),
            };
            compared = Some(rank).filter(|rank| *rank >= Precedence::Equality);
        }
        Ok(left)
    }

    /// Parses the arguments of a function, in parentheses.
    fn arguments(&mut self, function: Function, depth: usize) -> Result<Vec<Term>, ExpressionError> {
        if self.peek() != Some(&Lexeme::Open) {
            return Err(self.wrong(format!("a ( is missing after {}", function.name())));
        }
        let mut arguments = Vec::new();
        let start = self.at;
        loop {
            self.at += 1;
            arguments.push(self.term(Precedence::Or, depth)?);
            match self.peek() {
                Some(Lexeme::Comma) => {}
                Some(Lexeme::Close) => break,
                _ => return Err(self.wrong("a , or ) is missing here")),
            }
        }
        let wanted = function.arguments();
        if !wanted.contains(&arguments.len()) {
            self.at = start;
            let problem =
                format!("{} takes {} to {} arguments", function.name(), wanted.start(), wanted.end());
            return Err(self.wrong(problem));
        }
        self.at += 1;
        Ok(arguments)
    }

    /// Parses the items of a list, up to the word that closes it. A comma may stand after the last item, as in PHP.
    fn items(&mut self, closing: &Lexeme, depth: usize) -> Result<Vec<Term>, ExpressionError> {
        let mut items = Vec::new();
        while self.peek() != Some(closing) {
            items.push(self.term(Precedence::Or, depth)?);
            match self.peek() {
                Some(Lexeme::Comma) => self.at += 1,
                word if word == Some(closing) => {}
                _ => {
                    let sign = if *closing == Lexeme::CloseList { "]" } else { ")" };
                    return Err(self.wrong(format!("a , or {sign} is missing here")));
                }
            }
        }
        self.at += 1;
        Ok(items)
    }

    fn operand(&mut self, depth: usize) -> Result<Term, ExpressionError> {
        if depth > DEPTH_MAX {
            return Err(self.wrong(format!("more than {DEPTH_MAX} parentheses, lists and signs are nested")));
        }
        let Some(word) = self.peek().cloned() else {
            return Err(self.wrong("a member, a number or a text is missing at the end"));
        };
        self.at += 1;
        Ok(match word {
            Lexeme::Null => Term::Null,
            Lexeme::Bool(b) => Term::Bool(b),
            Lexeme::Int(n) => Term::Int(n),
            Lexeme::Float(n) => Term::Float(n),
            Lexeme::Text(text) => Term::Text(text),
            Lexeme::Status => Term::Status,
            Lexeme::Member(path) => Term::Member(path),
            Lexeme::Not => Term::Not(Box::new(self.operand(depth + 1)?)),
            Lexeme::Minus => match self.operand(depth + 1)? {
                Term::Int(n) => Term::Int(-n),
                Term::Float(n) => Term::Float(-n),
                term => Term::Minus(Box::new(term)),
            },
            // For a plus, the operand is negated twice, so that a string becomes a number, as in PHP.
            Lexeme::Plus => Term::Minus(Box::new(Term::Minus(Box::new(self.operand(depth + 1)?)))),
            Lexeme::Function(function) => Term::Call(function, self.arguments(function, depth + 1)?),
            Lexeme::OpenList => Term::List(self.items(&Lexeme::CloseList, depth + 1)?),
            Lexeme::Array => {
                if self.peek() != Some(&Lexeme::Open) {
                    return Err(self.wrong("a ( is missing after array"));
                }
                self.at += 1;
                Term::List(self.items(&Lexeme::Close, depth + 1)?)
            }
            Lexeme::Open => {
                let term = self.term(Precedence::Or, depth + 1)?;
                if self.peek() != Some(&Lexeme::Close) {
                    return Err(self.wrong("a ) is missing here"));
                }
                self.at += 1;
                // A chain in parentheses becomes the only item of a new chain. So `joined` does not add terms to the
                // chain in parentheses.
                match term {
                    Term::All(terms) => Term::All(vec![Term::All(terms)]),
                    Term::Any(terms) => Term::Any(vec![Term::Any(terms)]),
                    term => term,
                }
            }
            Lexeme::Close
            | Lexeme::CloseList
            | Lexeme::Comma
            | Lexeme::Percent
            | Lexeme::Comparison(_)
            | Lexeme::Both
            | Lexeme::Either
            | Lexeme::And
            | Lexeme::Or
            | Lexeme::End => {
                self.at -= 1;
                return Err(self.wrong("a member, a number or a text is missing before this"));
            }
        })
    }
}

fn compare(left: Term, word: Option<Lexeme>, right: Term) -> Term {
    match word {
        Some(Lexeme::Comparison(how)) => Term::Comparison(Box::new(left), how, Box::new(right)),
        _ => unreachable!("only comparisons have such a rank"),
    }
}

/// Joins two terms to one chain. If the left term is already a chain of the same kind, the right term is added to that
/// chain. `row` is the kind: `Term::All` or `Term::Any`.
fn joined(left: Term, right: Term, row: fn(Vec<Term>) -> Term) -> Term {
    match (left, row(Vec::new())) {
        (Term::All(mut terms), Term::All(_)) if terms.len() > 1 => {
            terms.push(right);
            Term::All(terms)
        }
        (Term::Any(mut terms), Term::Any(_)) if terms.len() > 1 => {
            terms.push(right);
            Term::Any(terms)
        }
        (left, _) => row(vec![left, right]),
    }
}
