//! Conditions on the rows of a table, as pyarrow and pandas write them: `("split", "==", "train")`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use arrow_array::BooleanArray;
use foreread_dataset::{DatasetError, DatasetErrorKind};
use serde::{Deserialize, Serialize};

use crate::column::Column;
use crate::options::filters;
use crate::read::SampleTable;

/// A condition on one column. A row without a value does not meet it, as in SQL and pyarrow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Filter {
    /// The column's name.
    pub column: String,
    /// How its value is compared.
    pub comparison: Comparison,
    /// The other side of the comparison: one value, or several for [`Comparison::In`] and
    /// [`Comparison::NotIn`].
    pub values: Vec<FilterValue>,
}

/// How a value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Comparison {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `in`
    In,
    /// `not in`
    NotIn,
}

/// A value of a condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FilterValue {
    /// An integer.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(String),
    /// A text of a command line, which stands for a number where the column has numbers.
    Any(String),
}

impl fmt::Display for FilterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => write!(f, "the integer {value}"),
            Self::Float(value) => write!(f, "the number {value}"),
            Self::Text(text) | Self::Any(text) => write!(f, "the text {text:?}"),
        }
    }
}

impl Comparison {
    /// The comparison that is written like this: `=` and `==` are the same.
    pub fn of(text: &str) -> Option<Self> {
        Some(match text.trim() {
            "==" | "=" => Self::Equal,
            "!=" => Self::NotEqual,
            "<" => Self::Less,
            "<=" => Self::LessOrEqual,
            ">" => Self::Greater,
            ">=" => Self::GreaterOrEqual,
            "in" => Self::In,
            "not in" => Self::NotIn,
            _ => return None,
        })
    }

    fn holds(self, found: Ordering) -> bool {
        match self {
            Self::Equal | Self::In => found.is_eq(),
            Self::NotEqual | Self::NotIn => found.is_ne(),
            Self::Less => found.is_lt(),
            Self::LessOrEqual => found.is_le(),
            Self::Greater => found.is_gt(),
            Self::GreaterOrEqual => found.is_ge(),
        }
    }
}

impl FromStr for Filter {
    type Err = DatasetError;

    /// A condition of a command line: `split==train`, `year>=2020`, `split in train,val`.
    fn from_str(text: &str) -> Result<Self, DatasetError> {
        const SIGNS: [&str; 7] = ["==", "!=", "<=", ">=", "<", ">", "="];
        let values =
            |list: &str| list.split(',').map(|one| FilterValue::Any(one.trim().to_owned())).collect();
        for (word, comparison) in [(" not in ", Comparison::NotIn), (" in ", Comparison::In)] {
            if let Some((column, list)) = text.split_once(word) {
                return Ok(Self { column: column.trim().to_owned(), comparison, values: values(list) });
            }
        }
        // The first sign, and of several at one place the longest.
        let found = SIGNS.iter().filter_map(|sign| Some((text.find(sign)?, *sign)));
        let found = found.min_by_key(|(at, sign)| (*at, usize::MAX - sign.len()));
        let condition = found.and_then(|(at, sign)| {
            let (column, value) = (text[..at].trim(), text[at + sign.len()..].trim());
            let values = vec![FilterValue::Any(value.to_owned())];
            Some(Self { column: column.to_owned(), comparison: Comparison::of(sign)?, values })
        });
        condition.filter(|condition| !condition.column.is_empty()).ok_or_else(|| {
            let message = format!(
                "{text:?} is no condition on a column; write `split==train`, `year>=2020` or \
                 `split in train,val`"
            );
            DatasetError::new(DatasetErrorKind::Invalid, message)
        })
    }
}

/// A value of the type of a column.
enum Wanted<'a> {
    Integer(i64),
    Float(f64),
    Text(&'a str),
}

impl Filter {
    /// Which rows of a table meet the condition.
    fn mask(&self, table: &SampleTable) -> Result<BooleanArray, DatasetError> {
        let column = table.column(&self.column, &filters().to_string())?;
        let wanted = self.values.iter().map(|value| self.wanted(table, &column, value));
        let wanted: Vec<Wanted<'_>> = wanted.collect::<Result<_, _>>()?;
        let is_list = matches!(self.comparison, Comparison::In | Comparison::NotIn);
        if wanted.is_empty() && !is_list {
            return Err(table.invalid(format!("a filter of the column {:?} has no value", self.column)));
        }
        let holds = |row: usize| {
            let mut found = wanted.iter().map(|wanted| compare(&column, row, wanted));
            match self.comparison {
                Comparison::NotIn => found.all(|found| found != Some(Ordering::Equal)),
                comparison => found.any(|found| found.is_some_and(|found| comparison.holds(found))),
            }
        };
        let present = |row: usize| column.array().is_valid(row);
        Ok((0..column.array().len()).map(|row| Some(present(row) && holds(row))).collect())
    }

    /// The value as one of the column.
    fn wanted<'a>(
        &self,
        table: &SampleTable,
        column: &Column,
        value: &'a FilterValue,
    ) -> Result<Wanted<'a>, DatasetError> {
        let number = |text: &str| text.parse().ok().map(Wanted::Float);
        let fitting = match (column, value) {
            (Column::Integers(_), FilterValue::Integer(value)) => Some(Wanted::Integer(*value)),
            (Column::Integers(_), FilterValue::Any(text)) => {
                text.parse().ok().map(Wanted::Integer).or_else(|| number(text))
            }
            (Column::Floats(_), FilterValue::Integer(value)) => Some(Wanted::Float(*value as f64)),
            (Column::Integers(_) | Column::Floats(_), FilterValue::Float(value)) => {
                Some(Wanted::Float(*value))
            }
            (Column::Floats(_), FilterValue::Any(text)) => number(text),
            (Column::Texts(_), FilterValue::Text(text) | FilterValue::Any(text)) => Some(Wanted::Text(text)),
            _ => None,
        };
        fitting.ok_or_else(|| {
            let (name, kind) = (&self.column, column.kind());
            table.invalid(format!("{} compares the column {name:?} of {kind} with {value}", filters()))
        })
    }
}

fn compare(column: &Column, row: usize, wanted: &Wanted<'_>) -> Option<Ordering> {
    match (column, wanted) {
        (Column::Integers(array), Wanted::Integer(wanted)) => Some(array.value(row).cmp(wanted)),
        (Column::Integers(array), Wanted::Float(wanted)) => (array.value(row) as f64).partial_cmp(wanted),
        (Column::Floats(array), Wanted::Float(wanted)) => array.value(row).partial_cmp(wanted),
        (Column::Texts(array), Wanted::Text(wanted)) => Some(array.value(row).cmp(wanted)),
        _ => None,
    }
}

/// The rows that meet all conditions of one of these lists. `None` if there are no conditions.
pub(crate) fn mask(table: &SampleTable, any: &[Vec<Filter>]) -> Result<Option<BooleanArray>, DatasetError> {
    let mut kept: Option<Vec<bool>> = None;
    for all in any {
        let mut of_list = vec![true; table.len()];
        for filter in all {
            let mask = filter.mask(table)?;
            of_list.iter_mut().enumerate().for_each(|(row, keep)| *keep &= mask.value(row));
        }
        kept = Some(match kept {
            None => of_list,
            Some(before) => before.iter().zip(&of_list).map(|(one, other)| *one || *other).collect(),
        });
    }
    Ok(kept.map(BooleanArray::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_written_as_people_write_them() {
        let of = |text: &str| text.parse::<Filter>().unwrap();
        let any = |value: &str| FilterValue::Any(value.to_owned());
        for (text, column, comparison, values) in [
            ("split==train", "split", Comparison::Equal, vec![any("train")]),
            ("split=a==b", "split", Comparison::Equal, vec![any("a==b")]),
            ("year >= 2020", "year", Comparison::GreaterOrEqual, vec![any("2020")]),
            ("x<3", "x", Comparison::Less, vec![any("3")]),
            ("x!=", "x", Comparison::NotEqual, vec![any("")]),
            ("split in a, b", "split", Comparison::In, vec![any("a"), any("b")]),
            ("split not in a", "split", Comparison::NotIn, vec![any("a")]),
        ] {
            assert_eq!(of(text), Filter { column: column.to_owned(), comparison, values }, "{text}");
        }
        for text in ["split", "==train", ""] {
            assert!(text.parse::<Filter>().is_err(), "{text}");
        }
    }
}
