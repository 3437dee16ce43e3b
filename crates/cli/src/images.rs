//! The bytes of a sample's image.

use bytes::Bytes;
use foreread::{Catalog, SampleId};

/// The ends of names that image members of packed samples have.
const FIELDS: &[&str] = &["jpg", "jpeg", "png", "webp", "image"];

/// The bytes of the member of a sample that has an image's name (WebDataset's `jpg`, a column
/// `image`), or all `bytes` of the sample.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// # std::fs::write(directory.path().join("a.jpg"), "...")?;
/// # let path = directory.path().to_str().expect("a path of ASCII");
/// let loader = foreread::Loader::builder(path).batch_size(1).epochs(1).start()?;
/// let batch = loader.batches().next().expect("one batch")?;
/// let sample = batch.samples().next().expect("one sample");
/// let image = foreread_cli::image_of(&loader.catalog(&batch), sample.id(), &sample.bytes());
/// assert_eq!(image, "...");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn image_of(catalog: &Catalog, id: SampleId, bytes: &Bytes) -> Bytes {
    let field = FIELDS.iter().find_map(|name| catalog.field(id, name));
    let range = field.and_then(|field| {
        let range = usize::try_from(field.start).ok()?..usize::try_from(field.end).ok()?;
        (range.start <= range.end && range.end <= bytes.len()).then_some(range)
    });
    range.map_or_else(|| bytes.clone(), |range| bytes.slice(range))
}
