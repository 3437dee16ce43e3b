//! The groups and datasets of a file, found from the root or by a path.

use std::collections::HashSet;

use super::chunk;
use super::dataset::Dataset;
use super::file::File;
use super::group;
use super::header::{self, Header};
use super::link::{GroupLink, LinkTarget};
use crate::{FormatError, FormatErrorKind};

/// The most levels of groups, and the most soft links of a path.
const MOST_LEVELS: usize = 32;

/// A group and the datasets directly in it.
#[derive(Debug)]
pub(super) struct Group {
    /// The path from the root group, without the first slash.
    pub(super) path: String,
    /// Sorted by name.
    pub(super) datasets: Vec<Dataset>,
    /// The number of groups directly in it.
    pub(super) groups: u64,
    /// Soft links, which are not followed, and named types.
    pub(super) skipped: u64,
    /// The names of soft links.
    pub(super) soft: Vec<String>,
    /// The name of a link to another file, if there is one.
    pub(super) external: Option<String>,
}

/// Soft links that are followed to see whether their objects exist.
const MOST_FOLLOWED: usize = 64;

/// A link whose object is not in the file, for people. `None` if there is none.
pub(super) async fn missing(file: &File<'_>, groups: &[Group]) -> Result<Option<String>, FormatError> {
    let external = |group: &Group| Some(joined(&group.path, group.external.as_ref()?));
    if let Some(path) = groups.iter().find_map(external) {
        return Ok(Some(format!("/{path} is a link to another file")));
    }
    let soft = groups.iter().flat_map(|group| group.soft.iter().map(|name| joined(&group.path, name)));
    let soft: Vec<String> = soft.take(MOST_FOLLOWED).collect();
    for path in soft {
        match find(file, &path).await {
            Err(error) if error.kind() == FormatErrorKind::Unsupported => {
                return Ok(Some(format!("the link /{path} refers to an object that is missing")));
            }
            other => drop(other?),
        }
    }
    Ok(None)
}

/// Headers that are read together, and then the chunk trees of their datasets. So few that the
/// reader keeps the blocks of all headers in between.
const HEADERS: usize = 128;

/// All groups of the file, the root first. A group with several names is found once.
pub(super) async fn walk(file: &File<'_>) -> Result<Vec<Group>, FormatError> {
    let root = header::read_one(file, file.root).await?;
    let mut seen = HashSet::from([file.root]);
    let mut level = vec![(String::new(), root)];
    let mut groups = Vec::new();
    for _ in 0..MOST_LEVELS {
        let mut next = Vec::new();
        for (path, header) in level {
            let (group, inner) = list(file, path, &header).await?;
            next.extend(inner.into_iter().filter(|(_, header)| seen.insert(header.at)));
            groups.push(group);
        }
        if next.is_empty() {
            return Ok(groups);
        }
        level = next;
    }
    Err(FormatError::unsupported(file.root, "the HDF5 file has groups of more than 32 levels"))
}

/// A group's datasets, and the paths and headers of groups in it.
pub(super) async fn list(
    file: &File<'_>,
    path: String,
    header: &Header,
) -> Result<(Group, Vec<(String, Header)>), FormatError> {
    let mut group =
        Group { path, datasets: Vec::new(), groups: 0, skipped: 0, soft: Vec::new(), external: None };
    let mut objects = Vec::new();
    for GroupLink { name, target } in group::links(file, header).await? {
        // Paths of deep groups have the names of all groups above.
        file.spend(group.path.len() as u64)?;
        match target {
            LinkTarget::Object(at) => objects.push((joined(&group.path, &name), at)),
            LinkTarget::Soft(_) => {
                group.skipped += 1;
                group.soft.push(name);
            }
            LinkTarget::External => group.external = Some(name),
        }
    }
    let mut inner = Vec::new();
    for batch in objects.chunks(HEADERS) {
        let known = group.datasets.len();
        // Many links may have one object.
        let mut places: Vec<u64> = batch.iter().map(|&(_, at)| at).collect();
        places.sort_unstable();
        places.dedup();
        let headers = header::read(file, &places).await?;
        for (path, at) in batch {
            let Some(header) = places.binary_search(at).ok().map(|index| &headers[index]) else { continue };
            if Dataset::is(header) {
                group.datasets.push(Dataset::parse(file, path.clone(), header).await?);
            } else if group::is_group(header) {
                group.groups += 1;
                inner.push((path.clone(), header.clone()));
            } else {
                group.skipped += 1;
            }
        }
        chunk::only_chunks(file, &mut group.datasets[known..]).await?;
    }
    Ok((group, inner))
}

/// The header of an object by its path. Soft links are followed.
pub(super) async fn find(file: &File<'_>, path: &str) -> Result<Header, FormatError> {
    let mut header = header::read_one(file, file.root).await?;
    let mut left: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
    let mut followed = 0;
    while let Some(name) = left.pop() {
        if name.is_empty() || name == "." {
            continue;
        }
        let links = if group::is_group(&header) { group::links(file, &header).await? } else { Vec::new() };
        let Some(link) = links.iter().find(|link| link.name == name) else {
            let names: Vec<&str> = links.iter().take(8).map(|link| link.name.as_str()).collect();
            let why = format!("HDF5 path {path}: {name} is missing; there are: {}", names.join(", "));
            return Err(FormatError::unsupported(header.at, why));
        };
        match &link.target {
            LinkTarget::Object(at) => header = header::read_one(file, *at).await?,
            LinkTarget::Soft(to) => {
                followed += 1;
                if followed > MOST_LEVELS {
                    let why = format!("HDF5 path {path}: more than 32 soft links follow each other");
                    return Err(FormatError::unsupported(header.at, why));
                }
                if to.starts_with('/') {
                    header = header::read_one(file, file.root).await?;
                }
                left.extend(to.split('/').rev().map(str::to_owned));
            }
            LinkTarget::External => {
                let why = format!("HDF5 path {path}: {name} is a link to another file: index that file");
                return Err(FormatError::unsupported(header.at, why));
            }
        }
    }
    Ok(header)
}

/// The path of a name in a group.
pub(super) fn joined(group: &str, name: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{group}/{name}") }
}
