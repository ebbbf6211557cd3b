//! The language of `-S`: comparisons of fields, joined by `&&` or `,`, `||` or `#`, `!(…)` and
//! parentheses (`libdm-report.c`, 1.02.185).

mod parse;
mod regex;

pub(super) use parse::parse;

use super::fields::{self, Value};
use regex_lite::Regex;

/// What rows are selected. The default selects all.
#[derive(Debug, Default)]
pub(super) struct Selection {
    root: Option<Node>,
}

#[derive(Debug)]
enum Node {
    Test(Test),
    All(Vec<Node>),
    Any(Vec<Node>),
    Not(Box<Node>),
}

/// A comparison of the value in a column.
#[derive(Debug)]
struct Test {
    column: usize,
    with: With,
}

#[derive(Debug)]
enum With {
    String { equal: bool, operand: String },
    Regex { matching: bool, regex: Regex },
    Number { operator: Operator, operand: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operator {
    Equal,
    NotEqual,
    GreaterOrEqual,
    Greater,
    LessOrEqual,
    Less,
}

/// A selection cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SelectError {
    pub(super) message: String,
    /// The list of fields would help.
    pub(super) unknown_field: bool,
}

impl Selection {
    /// Is a row of these values selected?
    pub(super) fn matches(&self, values: &[Value]) -> bool {
        self.root.as_ref().is_none_or(|root| root.matches(values))
    }
}

impl Node {
    fn matches(&self, values: &[Value]) -> bool {
        match self {
            Self::Test(test) => test.matches(&values[test.column]),
            Self::All(nodes) => nodes.iter().all(|n| n.matches(values)),
            Self::Any(nodes) => nodes.iter().any(|n| n.matches(values)),
            Self::Not(node) => !node.matches(values),
        }
    }
}

impl Test {
    fn matches(&self, value: &Value) -> bool {
        match (&self.with, value) {
            (With::String { equal, operand }, value) => (value.text() == operand) == *equal,
            (With::Regex { matching, regex }, value) => regex.is_match(value.text()) == *matching,
            (With::Number { operator, operand }, Value::Number(n, _)) => match operator {
                Operator::Equal => n == operand,
                Operator::NotEqual => n != operand,
                Operator::GreaterOrEqual => n >= operand,
                Operator::Greater => n > operand,
                Operator::LessOrEqual => n <= operand,
                Operator::Less => n < operand,
            },
            (With::Number { .. }, Value::String(_)) => false,
        }
    }
}

/// Fields and operators, for `-S help`.
pub(super) fn help() -> String {
    let operators = "\
Operators of -S:
  =~  !~             matches a regular expression, or does not (string)
  =   !=             equal, or not (string, number)
  >=  >  <=  <       in order (number)
  &&  ,              both
  ||  #              either
  !( )               not
  ( )                first
A string may stand in ' or \"; a regular expression also in ( ), [ ] or { }.
";
    format!("{}{operators}", fields::help(true))
}
