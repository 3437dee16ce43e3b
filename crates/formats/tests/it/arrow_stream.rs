//! Arrow streams and files: the samples and labels that pyarrow reads, and damaged files.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use foreread_formats::arrow_stream::{ArrowOptions, index};
use foreread_formats::{FileSource, FormatError, FormatErrorKind, FoundSamples};

use crate::columnar;
use crate::columnar::{Counted, fixture, run};

fn parse(source: &dyn FileSource, field: Option<String>) -> Result<FoundSamples, FormatError> {
    let mut options = ArrowOptions::default();
    options.column = field;
    run(index(source, &options))
}

#[test]
// semantics: FORMAT-1, FORMAT-2
fn arrow_samples_are_those_of_pyarrow() {
    columnar::samples_are_those_of_pyarrow(".arrow", parse);
}

#[test]
// semantics: FORMAT-4
fn arrow_files_that_are_refused_have_a_remedy() {
    columnar::refused_files_have_a_remedy(".arrow", parse);
}

#[test]
// semantics: FORMAT-4
fn damaged_arrow_files_are_errors_or_samples() {
    columnar::damaged_files_are_errors_or_samples(".arrow", 2000, parse);
}

#[test]
fn arrow_stream_takes_few_requests() {
    for name in ["datasets.arrow", "nulls.arrow", "nulls_file.arrow"] {
        let source = Counted::new(fixture(name));
        parse(&source, None).unwrap();
        assert_eq!(source.requests.load(Relaxed), 1, "{name} fits in one block");
    }
}

#[test]
fn arrow_stream_may_end_without_an_end_mark() {
    let whole = fixture("nulls.arrow");
    let open = whole.slice(..whole.len() - 8);
    assert_eq!(parse(&open, None).unwrap(), parse(&whole, None).unwrap());
    let error = parse(&whole.slice(..whole.len() - 9), None).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Damaged, "{error}");
}

/// A footer that lists one batch many times would give a small file any number of samples.
#[test]
fn arrow_footer_with_a_batch_twice_is_refused() {
    let whole = fixture("nulls_file.arrow");
    // The footer lists four blocks of 24 bytes: offset, length of the message, length of the body.
    let footer =
        whole.len() - 10 - u32::from_le_bytes(whole[whole.len() - 10..][..4].try_into().unwrap()) as usize;
    let blocks: Vec<usize> = (footer..whole.len() - 24)
        .filter(|&at| {
            let place = u64::from_le_bytes(whole[at..at + 8].try_into().unwrap());
            place >= 8
                && place < footer as u64
                && place % 8 == 0
                && whole[place as usize..].starts_with(&[0xff; 4])
        })
        .collect();
    assert!(blocks.len() >= 4, "{blocks:?}");
    let mut twice = whole.to_vec();
    let (from, to) = (blocks[blocks.len() - 1], blocks[blocks.len() - 2]);
    twice.copy_within(from..from + 24, to);
    let error = parse(&Bytes::from(twice), None).unwrap_err();
    assert!(error.why().contains("overlap"), "{error}");
}
