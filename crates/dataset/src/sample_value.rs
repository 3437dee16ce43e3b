//! A value of a sample, besides its bytes: a label, a number, a text, an array.

use std::borrow::Cow;

use foreread_formats::ArrayType;

/// A value of one sample.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SampleValue<'a> {
    /// An integer.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(Cow<'a, str>),
    /// An array: its type, and its bytes.
    Array(&'a ArrayType, &'a [u8]),
}
