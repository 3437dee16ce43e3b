//! Reads a scenario's fields one by one, with errors that name the field.
//!
//! Serde's derived errors span several lines, and name a missing field without its table. A
//! scenario has some twenty numbers, so they are read by hand. Every error is one line that begins
//! with the field's full name, `storage[1].capacity`. An unknown field is an error too, because it
//! is most likely misspelt.

use std::cell::RefCell;
use std::collections::BTreeSet;

use toml::{Table, Value};

use crate::error::{SimulateError, SimulateReason};

/// One table of the file, with its path.
#[derive(Debug)]
pub(crate) struct ScenarioFields<'a> {
    table: &'a Table,
    path: String,
    known: RefCell<BTreeSet<String>>,
}

/// Parses the text as a table.
pub(crate) fn parse(text: &str) -> Result<Table, SimulateError> {
    text.parse().map_err(|error: toml::de::Error| {
        let until = error.span().map_or(0, |span| span.start).min(text.len());
        let line = text.as_bytes()[..until].iter().filter(|&&byte| byte == b'\n').count() + 1;
        let problem = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        SimulateReason::Syntax { line, problem }.into()
    })
}

impl<'a> ScenarioFields<'a> {
    /// The fields of the whole file.
    pub(crate) fn new(table: &'a Table) -> Self {
        Self::at(table, String::new())
    }

    fn at(table: &'a Table, path: String) -> Self {
        Self { table, path, known: RefCell::new(BTreeSet::new()) }
    }

    /// The full name of one of this table's fields.
    pub(crate) fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// An error about one of this table's fields.
    pub(crate) fn error(&self, key: &str, problem: impl Into<String>) -> SimulateError {
        SimulateError::field(self.name(key), problem)
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.known.borrow_mut().insert(key.to_owned());
        self.table.get(key)
    }

    fn need(&self, key: &str, what: &str) -> Result<&'a Value, SimulateError> {
        self.get(key).ok_or_else(|| self.error(key, format!("missing, expected {what}")))
    }

    /// A table within this one.
    pub(crate) fn table(&self, key: &str, what: &str) -> Result<ScenarioFields<'a>, SimulateError> {
        match self.need(key, what)? {
            Value::Table(table) => Ok(ScenarioFields::at(table, self.name(key))),
            other => Err(self.error(key, format!("expected {what}, found {}", other.type_str()))),
        }
    }

    /// A list of tables within this one.
    pub(crate) fn tables(&self, key: &str, what: &str) -> Result<Vec<ScenarioFields<'a>>, SimulateError> {
        let Value::Array(list) = self.need(key, what)? else {
            return Err(self.error(key, format!("expected {what}")));
        };
        let each = list.iter().enumerate().map(|(index, value)| match value {
            Value::Table(table) => Ok(ScenarioFields::at(table, format!("{}[{index}]", self.name(key)))),
            _ => Err(self.error(key, format!("expected {what}"))),
        });
        each.collect()
    }

    /// A text, or a default.
    pub(crate) fn text(&self, key: &str, default: &str) -> Result<String, SimulateError> {
        match self.get(key) {
            None => Ok(default.to_owned()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(other) => Err(self.error(key, format!("expected a string, found {}", other.type_str()))),
        }
    }

    /// A boolean, or a default.
    pub(crate) fn boolean(&self, key: &str, default: bool) -> Result<bool, SimulateError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Boolean(value)) => Ok(*value),
            Some(other) => {
                Err(self.error(key, format!("expected true or false, found {}", other.type_str())))
            }
        }
    }

    /// An integer from `least` to `most`.
    pub(crate) fn whole(&self, key: &str, what: &str, least: u64, most: u64) -> Result<u64, SimulateError> {
        let value = self.need(key, what)?;
        self.check_whole(key, value, what, least, most)
    }

    /// An integer of at least 0, or a default.
    pub(crate) fn whole_or(&self, key: &str, what: &str, default: u64) -> Result<u64, SimulateError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => self.check_whole(key, value, what, 0, i64::MAX as u64),
        }
    }

    fn check_whole(
        &self,
        key: &str,
        value: &Value,
        what: &str,
        least: u64,
        most: u64,
    ) -> Result<u64, SimulateError> {
        let Value::Integer(number) = value else {
            return Err(self.error(key, format!("expected {what} as an integer, found {}", value.type_str())));
        };
        match u64::try_from(*number) {
            Ok(number) if number >= least && number <= most => Ok(number),
            Ok(number) if number > most => {
                Err(self.error(key, format!("must be at most {most}, found {number}")))
            }
            _ => Err(self.error(key, format!("must be at least {least}, found {number}"))),
        }
    }

    /// A quantity above 0.
    pub(crate) fn positive(&self, key: &str, what: &str) -> Result<f64, SimulateError> {
        let value = self.need(key, what)?;
        self.quantity(key, value, what, false)
    }

    /// A quantity of at least 0.
    pub(crate) fn not_negative(&self, key: &str, what: &str) -> Result<f64, SimulateError> {
        let value = self.need(key, what)?;
        self.quantity(key, value, what, true)
    }

    fn quantity(&self, key: &str, value: &Value, what: &str, zero: bool) -> Result<f64, SimulateError> {
        let number = match value {
            Value::Integer(number) => *number as f64,
            Value::Float(number) => *number,
            other => {
                return Err(
                    self.error(key, format!("expected {what} as a number, found {}", other.type_str()))
                );
            }
        };
        if !number.is_finite() {
            return Err(self.error(key, format!("must be finite, found {number}")));
        }
        if number < 0.0 || (number == 0.0 && !zero) {
            let least = if zero { "at least 0" } else { "above 0" };
            return Err(self.error(key, format!("must be {least}, found {number}")));
        }
        Ok(number)
    }

    /// A curve: quantities above 0 by ascending integers above 0.
    pub(crate) fn curve(&self, key: &str, what: &str) -> Result<Vec<(u32, f64)>, SimulateError> {
        let fields = self.table(key, what)?;
        let mut points = Vec::with_capacity(fields.table.len());
        for (at, value) in fields.table {
            let number = at.parse::<u32>().ok().filter(|&number| number > 0);
            let number = number.ok_or_else(|| fields.error(at, "expected an integer above 0 as the key"))?;
            points.push((number, fields.quantity(at, value, "MB/s", false)?));
        }
        points.sort_by_key(|&(at, _)| at);
        if let Some(twice) = points.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(fields.error(&twice[0].0.to_string(), "is given twice"));
        }
        if points.is_empty() {
            return Err(self.error(key, format!("has no points, expected {what}")));
        }
        Ok(points)
    }

    /// As [`curve`](Self::curve), or `None` if the field is missing.
    pub(crate) fn curve_or_none(
        &self,
        key: &str,
        what: &str,
    ) -> Result<Option<Vec<(u32, f64)>>, SimulateError> {
        if self.get(key).is_none() { Ok(None) } else { self.curve(key, what).map(Some) }
    }

    /// A list of at most `most` quantities above 0 and at most 1. Empty if the field is missing.
    pub(crate) fn shares_or_none(
        &self,
        key: &str,
        what: &str,
        most: usize,
    ) -> Result<Vec<f64>, SimulateError> {
        let shares = self.numbers(key, what, most, false)?;
        for (index, &share) in shares.iter().enumerate() {
            self.at_most_1(&format!("{key}[{index}]"), share)?;
        }
        Ok(shares)
    }

    /// A list of at most `most` quantities of at least 0. Empty if the field is missing.
    pub(crate) fn numbers_or_none(
        &self,
        key: &str,
        what: &str,
        most: usize,
    ) -> Result<Vec<f64>, SimulateError> {
        self.numbers(key, what, most, true)
    }

    fn numbers(&self, key: &str, what: &str, most: usize, zero: bool) -> Result<Vec<f64>, SimulateError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list = value.as_array().filter(|list| (1..=most).contains(&list.len()));
        let list = list.ok_or_else(|| self.error(key, format!("expected {what}, 1 to {most} numbers")))?;
        let each = list.iter().enumerate();
        each.map(|(index, value)| self.quantity(&format!("{key}[{index}]"), value, what, zero)).collect()
    }

    /// A quantity that was read, if it is at most 1.
    pub(crate) fn at_most_1(&self, key: &str, share: f64) -> Result<f64, SimulateError> {
        if share > 1.0 {
            return Err(self.error(key, format!("must be at most 1, found {share}")));
        }
        Ok(share)
    }

    /// Whether a field is there.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns an error for the first unknown field.
    pub(crate) fn reject_unknown(&self) -> Result<(), SimulateError> {
        let known = self.known.borrow();
        match self.table.keys().find(|key| !known.contains(*key)) {
            None => Ok(()),
            Some(key) => {
                let known: Vec<_> = known.iter().map(String::as_str).collect();
                Err(self.error(key, format!("unknown field, expected one of {}", known.join(" "))))
            }
        }
    }
}
