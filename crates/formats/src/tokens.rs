//! Windows of tokens over one long array: raw `.bin` files, `.npy` files of one dimension.
//!
//! Window `i` holds the tokens `i * stride` to `i * stride + window`. The windows are one [`Run`]
//! whatever their number. The price is that windows ignore the boundaries of documents.

use foreread_types::setting;

use crate::element::ElementType;
use crate::found::{Extents, FoundSamples, Run};
use crate::{FileSource, FormatError, npy};

/// How tokens are cut into windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowOptions {
    /// The number of tokens of a window, at least 1.
    pub window: u64,
    /// The number of tokens between the beginnings of two windows, at least 1. Windows overlap if
    /// it is less than `window`.
    pub stride: u64,
    /// The element type of a token: `uint16`, or `<u2`. It may be empty for files that have it.
    pub dtype: String,
}

/// Finds the windows of a file that has nothing but tokens.
///
/// # Errors
/// [`Damaged`](crate::FormatErrorKind::Damaged) if the size of the file is not a multiple of the
/// size of a token. [`Unsupported`](crate::FormatErrorKind::Unsupported) if the options are
/// invalid.
pub async fn raw(source: &dyn FileSource, options: &WindowOptions) -> Result<FoundSamples, FormatError> {
    if options.dtype.is_empty() {
        let why = format!("the file has only tokens: set their type, e.g. {}", setting("dtype").to("u16"));
        return Err(FormatError::unsupported(0, why));
    }
    let element = ElementType::parse(&options.dtype, 0)?;
    let size = source.size();
    if !size.is_multiple_of(element.size()) {
        let why = format!(
            "{size} bytes are not whole tokens of type {}: the file was cut short or has another type",
            element.name()
        );
        return Err(FormatError::damaged(size - size % element.size(), why));
    }
    windows(0, size / element.size(), &element, options)
}

/// Finds the windows of an `.npy` file of one dimension.
///
/// # Errors
/// Those of [`npy::index`]. [`Unsupported`](crate::FormatErrorKind::Unsupported) if the array has
/// another number of dimensions or another element type than `options`, or the options are invalid.
pub async fn npy(source: &dyn FileSource, options: &WindowOptions) -> Result<FoundSamples, FormatError> {
    let header = npy::header(source).await?;
    let &[tokens] = &header.shape[..] else {
        let rank = header.shape.len();
        let why = format!("tokens have one dimension, this array has {rank}: write array.reshape(-1)");
        return Err(FormatError::unsupported(0, why));
    };
    agree(&header.element, options)?;
    windows(header.data, tokens, &header.element, options)
}

/// Checks that the type of the options, if they have one, is that of the file.
pub(crate) fn agree(element: &ElementType, options: &WindowOptions) -> Result<(), FormatError> {
    if !options.dtype.is_empty() && ElementType::parse(&options.dtype, 0)? != *element {
        let why = format!("the tokens are of type {}, not {}", element.name(), options.dtype);
        return Err(FormatError::unsupported(0, why));
    }
    Ok(())
}

/// The windows over `tokens` tokens that begin at the offset `start` and lie in the file.
pub(crate) fn windows(
    start: u64,
    tokens: u64,
    element: &ElementType,
    options: &WindowOptions,
) -> Result<FoundSamples, FormatError> {
    let &WindowOptions { window, stride, .. } = options;
    let bytes = |tokens: u64| tokens.checked_mul(element.size());
    let (Some(length), Some(distance)) = (bytes(window), bytes(stride)) else {
        let why = "window and stride are numbers of tokens: expected e.g. 4096";
        return Err(FormatError::unsupported(0, why));
    };
    if window == 0 || stride == 0 {
        return Err(FormatError::unsupported(0, "window and stride must be at least 1"));
    }
    let count = tokens.checked_sub(window).map_or(0, |rest| rest / stride + 1);
    // The last window ends in the file, so no product overflows.
    let covered = count.checked_sub(1).map_or(0, |last| last * stride + window);
    let rest = tokens - covered;
    // One more, short window would begin after the gap that a long stride leaves.
    let gap = if count == 0 { 0 } else { stride.saturating_sub(window) };
    let rest = rest.saturating_sub(gap);
    let run = Run { start, stride: distance, length, count };
    let summary = format!(
        "{tokens} tokens {}: {count} windows of {window}, one every {stride}, {rest} at the end left out",
        element.name()
    );
    let mut found = FoundSamples::at(Extents::Runs(vec![run]), summary);
    found.array = Some(element.array(vec![Some(window)]));
    found.skipped = u64::from(rest > 0);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn count(tokens: u64, window: u64, stride: u64) -> (u64, u64) {
        let options = WindowOptions { window, stride, dtype: String::new() };
        let element = ElementType::parse("uint16", 0).unwrap();
        let found = windows(0, tokens, &element, &options).unwrap();
        let Extents::Runs(runs) = &found.extents else { panic!("no runs") };
        let [run] = runs[..] else { panic!("several runs") };
        assert!(run.count == 0 || run.end().unwrap() <= tokens * 2);
        (run.count, found.skipped)
    }

    proptest! {
        #[test]
        fn windows_are_those_of_a_loop(tokens in 0u64..200, window in 1u64..30, stride in 1u64..30) {
            let starts: Vec<u64> =
                (0..).map(|index| index * stride).take_while(|start| start + window <= tokens).collect();
            let mut left = vec![true; tokens as usize];
            for &start in &starts {
                left[start as usize..(start + window) as usize].fill(false);
            }
            let next = starts.len() as u64 * stride;
            let rest = left.iter().skip(next as usize).any(|&left| left);
            prop_assert_eq!(count(tokens, window, stride), (starts.len() as u64, u64::from(rest)));
        }
    }

    #[test]
    fn large_numbers_do_not_overflow() {
        let tokens = u64::MAX / 2;
        assert_eq!(count(tokens, 1, 1), (tokens, 0));
        assert_eq!(count(tokens, tokens, tokens), (1, 0));
        assert_eq!(count(tokens, 1, tokens), (1, 0));
        assert_eq!(count(1_000_000_000_000, 1001, 1000), (999_999_999, 1));
    }
}
