//! The decoder of a pool of threads.

use std::fmt::Debug;

use crate::draw::Draw;
use crate::error::DecodeError;

/// Makes a sample's bytes a fixed number of output bytes.
///
/// Must be deterministic: the output depends on the sample's bytes and the [`Draw`] only.
///
/// ```
/// use foreread_decode::{DecodeError, DecodeErrorKind, Decoder, Draw};
///
/// /// The first four bytes of each sample.
/// #[derive(Debug)]
/// struct Header;
///
/// impl Decoder for Header {
///     type Scratch = ();
///
///     fn output_bytes(&self) -> usize {
///         4
///     }
///
///     fn decode(
///         &self,
///         sample: &[u8],
///         _: Draw,
///         (): &mut (),
///         output: &mut [u8],
///     ) -> Result<(), DecodeError> {
///         let short = || DecodeError::new(DecodeErrorKind::Corrupt, "too short");
///         output.copy_from_slice(sample.get(..4).ok_or_else(short)?);
///         Ok(())
///     }
/// }
/// let mut output = [0; 4];
/// Header.decode(b"RIFF....", Draw::default(), &mut (), &mut output)?;
/// assert_eq!(&output, b"RIFF");
/// # Ok::<_, DecodeError>(())
/// ```
pub trait Decoder: Debug + Send + Sync + 'static {
    /// Memory that a thread reuses from sample to sample.
    type Scratch: Default + 'static;

    /// The bytes of each decoded sample.
    fn output_bytes(&self) -> usize;

    /// Decodes `sample` into `output`, which has [`output_bytes`](Self::output_bytes) bytes with
    /// any content. After an error its content is undefined.
    ///
    /// # Errors
    /// If the sample is damaged, not supported or too large.
    fn decode(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Self::Scratch,
        output: &mut [u8],
    ) -> Result<(), DecodeError>;
}
