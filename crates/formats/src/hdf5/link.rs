//! Link messages.

use super::file::File;
use crate::FormatError;

/// A named link of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupLink {
    pub(super) name: String,
    pub(super) target: LinkTarget,
}

/// The target of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkTarget {
    /// The object whose header is at this place.
    Object(u64),
    /// A path in this file.
    Soft(String),
    /// An object of another file, or a type that a plugin defines.
    External,
}

/// The link in a message.
pub(super) fn parse(file: &File<'_>, at: u64, bytes: &[u8]) -> Result<GroupLink, FormatError> {
    let mut cursor = file.cursor("link", at, bytes);
    cursor.version(1)?;
    let flags = cursor.u8()?;
    let kind = if flags & 8 != 0 { cursor.u8()? } else { 0 };
    cursor.skip(if flags & 4 != 0 { 8 } else { 0 })?;
    cursor.skip(if flags & 16 != 0 { 1 } else { 0 })?;
    let length = cursor.uint(1 << (flags & 3))?;
    let length = usize::try_from(length).map_err(|_| cursor.damaged("its name is too long"))?;
    let name = text(file, cursor.place(), cursor.take(length)?)?;
    let target = match kind {
        0 => LinkTarget::Object(cursor.place_of("the object")?),
        1 => {
            let length = cursor.u16()?.into();
            LinkTarget::Soft(text(file, cursor.place(), cursor.take(length)?)?)
        }
        _ => LinkTarget::External,
    };
    Ok(GroupLink { name, target })
}

/// A name as text. It takes from the file's limit: many links may have one long name.
pub(super) fn text(file: &File<'_>, at: u64, bytes: &[u8]) -> Result<String, FormatError> {
    file.spend(bytes.len() as u64)?;
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned).map_err(|_| FormatError::unsupported(at, "an HDF5 name is not UTF-8: rename it"))
}
