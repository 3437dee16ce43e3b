//! The links of a group: symbol tables of old files, messages and dense storage of new ones.

use super::file::{BATCH, File};
use super::fractal_heap::FractalHeap;
use super::header::{Header, kind};
use super::{btree1, btree2, link};
use crate::FormatError;
use link::{GroupLink, LinkTarget};

/// A node of an old group's tree, in bytes, with the library's default sizes.
const NODE: u64 = 544;

/// A symbol table node, in bytes, with the library's default sizes.
const SYMBOLS: u64 = 328;

/// Whether the header is that of a group.
pub(super) fn is_group(header: &Header) -> bool {
    [kind::SYMBOL_TABLE, kind::LINK_INFO, kind::LINK].iter().any(|&kind| header.find(kind).is_some())
}

/// The links of a group, sorted by name.
pub(super) async fn links(file: &File<'_>, header: &Header) -> Result<Vec<GroupLink>, FormatError> {
    let mut links = Vec::new();
    if let Some(message) = header.find(kind::SYMBOL_TABLE) {
        let mut cursor = file.cursor("symbol table", message.at, &message.data);
        let tree = cursor.place_of("the group's tree")?;
        symbol_table(file, tree, cursor.place_of("the group's names")?, &mut links).await?;
    }
    for message in header.all(kind::LINK) {
        links.push(link::parse(file, message.at, &message.data)?);
    }
    if let Some(message) = header.find(kind::LINK_INFO) {
        let mut cursor = file.cursor("link information", message.at, &message.data);
        cursor.version(0)?;
        let ordered = cursor.u8()? & 1 != 0;
        cursor.skip(if ordered { 8 } else { 0 })?;
        if let (Some(heap), Some(names)) = (cursor.address()?, cursor.address()?) {
            dense(file, heap, names, &mut links).await?;
        }
    }
    links.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(links)
}

async fn symbol_table(
    file: &File<'_>,
    tree: u64,
    heap: u64,
    links: &mut Vec<GroupLink>,
) -> Result<(), FormatError> {
    let head = file.read_part(heap, 32).await?;
    let mut cursor = file.cursor("local heap", heap, &head);
    cursor.signature(b"HEAP")?;
    cursor.version(0)?;
    cursor.skip(3)?;
    let length = cursor.length()?;
    cursor.length()?;
    let names_at = cursor.place_of("its names")?;
    let names = file.read(names_at, length).await?;
    for batch in symbol_nodes(file, tree).await?.chunks(BATCH) {
        let entry = 2 * file.widths().offset as u64 + 24;
        let found = file.read_sized(batch, SYMBOLS, |at, bytes| {
            let mut cursor = file.cursor("symbol table node", at, bytes);
            cursor.signature(b"SNOD")?;
            cursor.version(1)?;
            cursor.skip(1)?;
            Ok(8 + entry * u64::from(cursor.u16()?))
        });
        for (bytes, &at) in found.await?.iter().zip(batch) {
            let mut cursor = file.cursor("symbol table node", at, bytes);
            cursor.skip(6)?;
            for _ in 0..cursor.u16()? {
                let name = cursor.uint(file.widths().offset)?;
                let object = cursor.address()?;
                let cached = cursor.u32()?;
                cursor.skip(4)?;
                let scratch = cursor.u32()?;
                cursor.skip(12)?;
                let text = |offset: u64| {
                    let rest = names.get(usize::try_from(offset).ok()?..)?;
                    rest.iter().position(|&byte| byte == 0).map(|end| &rest[..end])
                };
                let outside = || cursor.damaged("a name lies outside of the group's names");
                let name = link::text(file, names_at, text(name).ok_or_else(outside)?)?;
                let target = match (cached, object) {
                    (2, _) => {
                        let path = text(scratch.into()).ok_or_else(outside)?;
                        LinkTarget::Soft(link::text(file, names_at, path)?)
                    }
                    (_, Some(object)) => LinkTarget::Object(object),
                    (_, None) => return Err(cursor.damaged("the address of an object is undefined")),
                };
                links.push(GroupLink { name, target });
            }
        }
    }
    Ok(())
}

/// The places of symbol table nodes below a tree.
async fn symbol_nodes(file: &File<'_>, tree: u64) -> Result<Vec<u64>, FormatError> {
    let (offset, key) = (file.widths().offset, file.widths().length);
    let length = |entries| (8 + 2 * offset + key) as u64 + (offset + key) as u64 * entries;
    btree1::walk(file, tree, "group tree", (NODE, length), |at, bytes| {
        let mut cursor = file.cursor("group tree", at, bytes);
        cursor.skip(4)?;
        if cursor.u8()? != 0 {
            return Err(cursor.damaged("it is not the tree of a group"));
        }
        let level = cursor.u8()?;
        let count = cursor.u16()?;
        cursor.skip(2 * offset)?;
        let mut child = || {
            cursor.skip(key)?;
            cursor.place_of("a node")
        };
        let children = (0..count).map(|_| child()).collect::<Result<_, _>>()?;
        Ok((level, children))
    })
    .await
}

async fn dense(
    file: &File<'_>,
    heap: u64,
    names: u64,
    links: &mut Vec<GroupLink>,
) -> Result<(), FormatError> {
    let heap = FractalHeap::open(file, heap).await?;
    let mut ids = Vec::new();
    btree2::walk(file, names, &[5], |_, record| {
        // The hash of the name comes first.
        ids.push(record.get(4..).unwrap_or_default().to_vec());
        Ok(())
    })
    .await?;
    for batch in ids.chunks(BATCH) {
        for (at, bytes) in heap.read_all(file, batch).await? {
            links.push(link::parse(file, at, &bytes)?);
        }
    }
    Ok(())
}
