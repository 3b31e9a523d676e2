//! From words to a tree, by PHP's order of operators: `!` and signs, `<`, `==`, `&&`, `||`, `and`, `or`. Comparisons stand in no
//! row (`1 < 2 < 3`), as in PHP. Pure.

use super::read::{Word, words};
use super::{Compare, DEPTH_MAX, Mistake, Term};

/// How tightly an operator between two terms binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Or,
    And,
    Either,
    Both,
    Equality,
    Order,
}

impl Rank {
    fn of(word: &Word) -> Option<Rank> {
        Some(match word {
            Word::Or => Rank::Or,
            Word::And => Rank::And,
            Word::Either => Rank::Either,
            Word::Both => Rank::Both,
            Word::Compare(Compare::Equal | Compare::Unequal | Compare::Identical | Compare::NotIdentical) => {
                Rank::Equality
            }
            Word::Compare(_) => Rank::Order,
            _ => return None,
        })
    }
}

pub(super) fn parse(text: &str) -> Result<Term, Mistake> {
    let words = words(text)?;
    if words.is_empty() {
        let problem = "there is nothing; such as {res.code} == 0 would do".to_owned();
        return Err(Mistake { at: 1, problem });
    }
    let mut parser = Parser { words, at: 0, end: text.chars().count() + 1 };
    let term = parser.term(Rank::Or, 0)?;
    match parser.words.get(parser.at) {
        None => Ok(term),
        Some((_, Word::Close)) => Err(parser.wrong("this ) closes nothing")),
        Some(_) => Err(parser.wrong("an operator is missing before this, such as == or &&")),
    }
}

struct Parser {
    words: Vec<(usize, Word)>,
    at: usize,
    end: usize,
}

impl Parser {
    /// A mistake at the coming word.
    fn wrong(&self, problem: impl Into<String>) -> Mistake {
        let at = self.words.get(self.at).map_or(self.end, |(at, _)| *at);
        Mistake { at, problem: problem.into() }
    }

    fn peek(&self) -> Option<&Word> {
        self.words.get(self.at).map(|(_, word)| word)
    }

    /// A term of operators that bind at least as tightly as `least`.
    fn term(&mut self, least: Rank, depth: usize) -> Result<Term, Mistake> {
        let mut left = self.operand(depth)?;
        let mut compared = None;
        while let Some(rank) = self.peek().and_then(Rank::of).filter(|rank| *rank >= least) {
            if compared == Some(rank) {
                return Err(self.wrong("comparisons do not stand in a row: put one of them into ( )"));
            }
            let word = self.peek().cloned();
            self.at += 1;
            let tighter = match rank {
                Rank::Or => Rank::And,
                Rank::And => Rank::Either,
                Rank::Either => Rank::Both,
                Rank::Both => Rank::Equality,
                Rank::Equality => Rank::Order,
                // Nothing binds more tightly: an operand.
                Rank::Order => {
                    let right = self.operand(depth)?;
                    left = compare(left, word, right);
                    compared = Some(rank);
                    continue;
                }
            };
            let right = self.term(tighter, depth)?;
            left = match rank {
                Rank::Or | Rank::Either => joined(left, right, Term::Any),
                Rank::And | Rank::Both => joined(left, right, Term::All),
                _ => compare(left, word, right),
            };
            compared = Some(rank).filter(|rank| *rank >= Rank::Equality);
        }
        Ok(left)
    }

    fn operand(&mut self, depth: usize) -> Result<Term, Mistake> {
        if depth > DEPTH_MAX {
            return Err(
                self.wrong(format!("more than {DEPTH_MAX} parentheses and signs stand within each other"))
            );
        }
        let Some(word) = self.peek().cloned() else {
            return Err(self.wrong("something is missing at the end"));
        };
        self.at += 1;
        Ok(match word {
            Word::Null => Term::Null,
            Word::Bool(b) => Term::Bool(b),
            Word::Int(n) => Term::Int(n),
            Word::Float(n) => Term::Float(n),
            Word::Text(text) => Term::Text(text),
            Word::Status => Term::Status,
            Word::Member(path) => Term::Member(path),
            Word::Not => Term::Not(Box::new(self.operand(depth + 1)?)),
            Word::Minus => match self.operand(depth + 1)? {
                Term::Int(n) => Term::Int(-n),
                Term::Float(n) => Term::Float(-n),
                term => Term::Minus(Box::new(term)),
            },
            // Twice the sign: also of a text, as PHP has it.
            Word::Plus => Term::Minus(Box::new(Term::Minus(Box::new(self.operand(depth + 1)?)))),
            Word::Open => {
                let term = self.term(Rank::Or, depth + 1)?;
                if self.peek() != Some(&Word::Close) {
                    return Err(self.wrong("a ) is missing here"));
                }
                self.at += 1;
                // A row in parentheses is a row of its own.
                match term {
                    Term::All(terms) => Term::All(vec![Term::All(terms)]),
                    Term::Any(terms) => Term::Any(vec![Term::Any(terms)]),
                    term => term,
                }
            }
            Word::Close | Word::Compare(_) | Word::Both | Word::Either | Word::And | Word::Or => {
                self.at -= 1;
                return Err(self.wrong("a member, a number or a text is missing before this"));
            }
        })
    }
}

fn compare(left: Term, word: Option<Word>, right: Term) -> Term {
    match word {
        Some(Word::Compare(how)) => Term::Compare(Box::new(left), how, Box::new(right)),
        _ => unreachable!("only comparisons have such a rank"),
    }
}

/// Two terms as one row, or one more in the row that the left one is.
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
