//! The parser of `-S`.

use super::regex::compile;
use super::{Node, Operator, SelectError, Selection, Test, With};
use crate::dmsetup::fields::{Field, FieldId, FieldType, field};
use crate::dmsetup::table_text::is_space;

/// How deep parentheses may stand in each other: more than anyone writes, less than the stack has.
const MAX_DEPTH: usize = 200;

/// Comparison operators, the longer before one that it begins with.
const COMPARISONS: [(&str, Comparison); 12] = [
    ("=~", Comparison::Regex { matching: true }),
    ("!~", Comparison::Regex { matching: false }),
    ("=", Comparison::Of(Operator::Equal)),
    ("!=", Comparison::Of(Operator::NotEqual)),
    (">=", Comparison::Of(Operator::GreaterOrEqual)),
    (">", Comparison::Of(Operator::Greater)),
    ("<=", Comparison::Of(Operator::LessOrEqual)),
    ("<", Comparison::Of(Operator::Less)),
    ("since", Comparison::Time),
    ("after", Comparison::Time),
    ("until", Comparison::Time),
    ("before", Comparison::Time),
];

#[derive(Clone, Copy)]
enum Comparison {
    Regex { matching: bool },
    Of(Operator),
    Time,
}

const AND: [&str; 2] = ["&&", ","];
const OR: [&str; 2] = ["||", "#"];

struct Parser<'a, 'c> {
    text: &'a str,
    /// What has not been read.
    rest: &'a str,
    depth: usize,
    /// Finds or makes the column of a field.
    column: &'c mut dyn FnMut(&'static Field) -> usize,
}

/// Parse a selection. `column` gives the column of each field met.
pub(in crate::dmsetup) fn parse(
    text: &str,
    column: &mut dyn FnMut(&'static Field) -> usize,
) -> Result<Selection, SelectError> {
    if text.eq_ignore_ascii_case("all") {
        return Ok(Selection::default());
    }
    let mut parser = Parser { text, rest: text, depth: 0, column };
    let root = parser.any()?;
    parser.skip_space();
    if !parser.rest.is_empty() {
        return Err(parser.error("a logical operator, one of && , || #"));
    }
    Ok(Selection { root: Some(root) })
}

impl<'a> Parser<'a, '_> {
    fn error(&self, expected: &str) -> SelectError {
        self.error_at(self.rest, expected)
    }

    fn error_at(&self, rest: &str, expected: &str) -> SelectError {
        let at = self.text[..self.text.len() - rest.len()].chars().count();
        let text = self.text;
        SelectError {
            message: format!("the selection cannot be read: expected {expected}\n  {text}\n  {:at$}^", ""),
            unknown_field: false,
        }
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches(is_space);
    }

    /// Take one of the tokens, after white space.
    fn take(&mut self, tokens: &[&str]) -> bool {
        let rest = self.rest.trim_start_matches(is_space);
        let found = tokens.iter().find_map(|t| rest.strip_prefix(t));
        if let Some(rest) = found {
            self.rest = rest;
        }
        found.is_some()
    }

    fn any(&mut self) -> Result<Node, SelectError> {
        let mut nodes = vec![self.all()?];
        while self.take(&OR) {
            nodes.push(self.all()?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Any(nodes) })
    }

    fn all(&mut self) -> Result<Node, SelectError> {
        let mut nodes = vec![self.one()?];
        while self.take(&AND) {
            nodes.push(self.one()?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::All(nodes) })
    }

    fn one(&mut self) -> Result<Node, SelectError> {
        let not = self.take(&["!"]);
        if !self.take(&["("]) {
            self.skip_space();
            return if not { Err(self.error("( after !")) } else { self.test() };
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(&format!("no more than {MAX_DEPTH} parentheses in each other")));
        }
        let node = self.any()?;
        if !self.take(&[")"]) {
            return Err(self.error(")"));
        }
        self.depth -= 1;
        Ok(if not { Node::Not(Box::new(node)) } else { node })
    }

    /// FIELD OPERATOR VALUE.
    fn test(&mut self) -> Result<Node, SelectError> {
        let start = self.rest;
        let end = start.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-').unwrap_or(start.len());
        let (name, rest) = start.split_at(end);
        if name.is_empty() {
            return Err(self.error("the name of a field"));
        }
        let Some(field) = field(name) else {
            let error = self.error(&format!("the name of a field: {name:?} is none of those above"));
            return Err(SelectError { unknown_field: true, ..error });
        };
        if field.id == FieldId::Help {
            return Err(self.error("a field that can be compared"));
        }
        self.rest = rest;
        self.skip_space();
        let operator_at = self.rest;
        let found = COMPARISONS.iter().find_map(|(word, c)| Some((operator_at.strip_prefix(word)?, *c)));
        let (rest, comparison) = found.ok_or_else(|| self.error("an operator, one of = != > >= < <= =~ !~"))?;
        self.rest = rest;
        let with = match (comparison, field.kind) {
            (Comparison::Regex { matching }, FieldType::String) => {
                let regex = compile(self.regex()?).map_err(|message| SelectError { message, unknown_field: false })?;
                With::Regex { matching, regex }
            }
            (Comparison::Regex { .. }, FieldType::Number) => {
                return Err(self.error_at(operator_at, "an operator for numbers, one of = != > >= < <="));
            }
            (Comparison::Of(operator), FieldType::Number) => With::Number { operator, operand: self.number()? },
            (Comparison::Of(operator @ (Operator::Equal | Operator::NotEqual)), FieldType::String) => {
                With::String { equal: operator == Operator::Equal, operand: self.string()?.to_owned() }
            }
            (Comparison::Of(_), FieldType::String) => {
                return Err(self.error_at(operator_at, "an operator for strings, one of = != =~ !~"));
            }
            (Comparison::Time, _) => {
                return Err(self.error_at(operator_at, "an operator for strings or numbers: no field is a time"));
            }
        };
        Ok(Node::Test(Test { column: (self.column)(field), with }))
    }

    fn number(&mut self) -> Result<u64, SelectError> {
        self.skip_space();
        let start = self.rest;
        let mut points = 0;
        let end = start.find(|c: char| {
            points += usize::from(c == '.');
            !(c.is_ascii_digit() || c == '.' && points == 1)
        });
        let (word, rest) = start.split_at(end.unwrap_or(start.len()));
        if word.is_empty() {
            return Err(self.error("a number, 0 or more"));
        }
        if rest.starts_with('%') || rest.starts_with(|c: char| "hHrRbBsSkKmMgGtTpPeE".contains(c)) {
            return Err(self.error_at(rest, "a plain number, without % or a unit"));
        }
        self.rest = rest;
        // What follows a point does not count.
        match word.split('.').next() {
            Some("") | None => Ok(0),
            Some(digits) => digits.parse().map_err(|_| self.error_at(start, "a number below 2^64")),
        }
    }

    fn string(&mut self) -> Result<&'a str, SelectError> {
        self.skip_space();
        match self.rest.chars().next() {
            Some(quote @ ('"' | '\'')) => self.quoted(quote),
            _ => Ok(self.unquoted()),
        }
    }

    fn regex(&mut self) -> Result<&'a str, SelectError> {
        self.skip_space();
        match self.rest.chars().next() {
            None => Err(self.error("a regular expression")),
            Some(quote @ ('"' | '\'')) => self.quoted(quote),
            Some('(') => self.quoted(')'),
            Some('[') => self.quoted(']'),
            Some('{') => self.quoted('}'),
            Some(_) => Ok(self.unquoted()),
        }
    }

    fn quoted(&mut self, end: char) -> Result<&'a str, SelectError> {
        let (value, rest) = self.rest[1..]
            .split_once(end)
            .ok_or_else(|| self.error(&format!("{end} at the end of what begins here")))?;
        self.rest = rest;
        Ok(value)
    }

    /// Up to a space or an operator.
    fn unquoted(&mut self) -> &'a str {
        let ends = |(at, c): (usize, char)| {
            let here = self.rest[at..].trim_start_matches(is_space);
            let operator = AND.iter().chain(&OR).chain(&[")"]).any(|t| here.starts_with(t));
            (c == ' ' || operator).then_some(at)
        };
        let end = self.rest.char_indices().find_map(ends).unwrap_or(self.rest.len());
        let (value, rest) = self.rest.split_at(end);
        self.rest = rest;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dmsetup::fields::Value;

    /// Is a device of that name with that many openers selected?
    fn selects(text: &str, name: &str, open: i32) -> Result<bool, SelectError> {
        let mut values = Vec::new();
        let selection = parse(text, &mut |field| {
            values.push(match field.name {
                "name" => Value::String(name.into()),
                "open" => Value::number(open),
                other => panic!("{other}"),
            });
            values.len() - 1
        })?;
        Ok(selection.matches(&values))
    }

    #[test]
    fn accepted() {
        let check = |text: &str, expect: bool| assert_eq!(selects(text, "top x", 1), Ok(expect), "{text}");
        for text in [
            "all",
            "name='top x'",
            "name = \"top x\"",
            "NAME!=top",
            "name=~^top",
            "name=~(top|str)",
            "name!~{lin}",
            "name=~'[xy]$'",
            "open=1",
            "open = 01.5",
            "open!=2",
            "open>0&&open>=1&&open<2&&open<=1",
            "open>0 , open<2",
            "open=7||open=1",
            "open=7 # open=1",
            "!(open=7)",
            "! ( open=7 || open=8 )",
            "(open=7||open=1)&&(name=~top)",
            "open=7||open=1&&name=~top",
            "((((open=1))))",
        ] {
            check(text, true);
        }
        check("name=top", false);
        check("name!='top x'", false);
        check("open=.5", false);
        check("open=0&&open=1||open=2", false);
        check("!(open=1)", false);
        assert_eq!(selects("name=[a]", "[a]", 0), Ok(true));
        assert_eq!(selects("name=", "", 0), Ok(true));
    }

    #[test]
    fn refused() {
        let check = |text: &str, column: usize, expect: &str| {
            let error = selects(text, "a", 1).unwrap_err().message;
            assert!(error.contains(expect), "{text}: {error}");
            let caret = error.lines().last().unwrap_or("");
            assert_eq!(caret.find('^'), Some(2 + column), "{text}: {error}");
        };
        check("nonsense=1", 0, "\"nonsense\"");
        check("=1", 0, "name of a field");
        check("help=1", 0, "can be compared");
        check("name", 4, "an operator");
        check("name>a", 4, "for strings");
        check("open=~1", 4, "for numbers");
        check("open since 1", 5, "no field is a time");
        check("open=-3", 5, "a number, 0 or more");
        check("open=three", 5, "a number, 0 or more");
        check("open=18446744073709551616", 5, "below 2^64");
        check("open=3k", 6, "without % or a unit");
        check("open=3%", 6, "without % or a unit");
        check("name=\"a", 5, "\" at the end");
        check("name=~", 6, "a regular expression");
        check("open=1 open=2", 7, "logical operator");
        check("(open=1", 7, ")");
        check("!open=1", 1, "( after !");
        check("open=1&&", 8, "name of a field");
        check(&"(".repeat(100_000), 201, "no more than 200");
        assert!(selects("name=~[", "a", 1).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(name|open|[=~!<>&|,#() '\"\\[\\]{}1a%.]){0,20}") {
            let _ = selects(&text, "a", 1);
        }
    }
}
