//! Repositories of the Hugging Face Hub, by its HTTP interface.
//!
//! Files are read from `resolve`, which redirects to the server that has them, and listed by
//! `tree`, page by page. Decision: OpenDAL's own service for the Hub reads chunks by a transport
//! with 2.8 MB of code and a second TLS library. Ranges over HTTP need neither. The price is that
//! chunks which files share are read once per file. Servers behind `resolve` answer with tags of
//! their own, so files have no versions: name a commit as the revision to be sure of them.

use std::collections::BTreeMap;
use std::fmt;

use http::{Request, StatusCode};
use opendal::raw::{
    OpCopy, OpCreateDir, OpList, OpPresign, OpRead, OpRename, OpStat, OpWrite, RpCreateDir, RpPresign,
    RpRename, RpStat, Service, ServiceInfo, oio,
};
use opendal::services::{Http, HttpConfig};
use opendal::{
    Buffer, Builder, Capability, Error, ErrorKind, MetadataBuilder, OperationContext, Operator, Result,
};
use serde::Deserialize;

/// The Hub, if the setting `endpoint` names no mirror.
const ENDPOINT: &str = "https://huggingface.co";

/// The operator for a repository. Missing options come from the variables of the Hub's own tools:
/// `HF_TOKEN` and `HF_ENDPOINT`.
///
/// # Errors
/// If an option is invalid.
pub(crate) fn operator(mut options: BTreeMap<String, String>) -> Result<Operator> {
    for (name, variable) in [("token", "HF_TOKEN"), ("endpoint", "HF_ENDPOINT")] {
        if let Ok(value) = std::env::var(variable) {
            options.entry(name.to_owned()).or_insert(value);
        }
    }
    Operator::new(HubBuilder(options))
}

#[derive(Default)]
struct HubBuilder(BTreeMap<String, String>);

impl HubBuilder {
    fn option(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

impl Builder for HubBuilder {
    type Config = HttpConfig;

    fn build(self) -> Result<impl Service> {
        let endpoint =
            Some(self.option("endpoint")).filter(|endpoint| !endpoint.is_empty()).unwrap_or(ENDPOINT);
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let revision =
            Some(self.option("revision")).filter(|revision| !revision.is_empty()).unwrap_or("main");
        if revision.contains(['%', '?', '#']) {
            let why = "a revision is the name of a branch, tag or commit without special characters";
            return Err(Error::new(ErrorKind::ConfigInvalid, why));
        }
        let (repository, root) = (self.option("repo_id"), self.option("root").trim_matches('/'));
        // Models have no prefix.
        let (web, api) = match self.option("repo_type") {
            "model" => ("", "models"),
            "space" => ("spaces/", "spaces"),
            _ => ("datasets/", "datasets"),
        };
        let files = Http::default()
            .endpoint(&endpoint)
            .root(&format!("{web}{repository}/resolve/{revision}/{root}"))
            .token(self.option("token"))
            .build()?;
        let token = Some(self.option("token")).filter(|token| !token.is_empty());
        Ok(HubService {
            files,
            tree: HubTree {
                url: format!("{endpoint}/api/{api}/{repository}/tree/{revision}"),
                endpoint,
                root: root.to_owned(),
                authorization: token.map(|token| format!("Bearer {token}")),
            },
        })
    }
}

/// A repository: its files by HTTP, and its tree.
#[derive(Debug)]
struct HubService<S> {
    files: S,
    tree: HubTree,
}

impl<S: Service> Service for HubService<S> {
    type Reader = S::Reader;
    type Writer = ();
    type Lister = oio::PageLister<HubLister>;
    type Deleter = ();
    type Copier = ();
    type Composer = ();

    fn info(&self) -> ServiceInfo {
        ServiceInfo::new("hf", format!("/{}", self.tree.root), "")
    }

    fn capability(&self) -> Capability {
        Capability {
            stat: true,
            read: true,
            list: true,
            list_with_recursive: true,
            shared: true,
            ..Capability::default()
        }
    }

    async fn create_dir(&self, _: &OperationContext, _: &str, _: OpCreateDir) -> Result<RpCreateDir> {
        Err(unsupported())
    }

    async fn stat(&self, context: &OperationContext, path: &str, options: OpStat) -> Result<RpStat> {
        let found = self.files.stat(context, path, options).await?.into_metadata();
        // Without the tag of the server behind it.
        let plain = if found.is_dir() {
            MetadataBuilder::dir()
        } else {
            MetadataBuilder::file(found.content_length())
        };
        Ok(RpStat::new(plain.build()))
    }

    fn read(&self, context: &OperationContext, path: &str, options: OpRead) -> Result<Self::Reader> {
        self.files.read(context, path, options)
    }

    fn write(&self, _: &OperationContext, _: &str, _: OpWrite) -> Result<Self::Writer> {
        Err(unsupported())
    }

    fn delete(&self, _: &OperationContext) -> Result<Self::Deleter> {
        Err(unsupported())
    }

    fn list(&self, context: &OperationContext, path: &str, options: OpList) -> Result<Self::Lister> {
        let first = self.tree.first(path, options.recursive());
        Ok(oio::PageLister::new(HubLister { tree: self.tree.clone(), context: context.clone(), first }))
    }

    fn copy(&self, _: &OperationContext, _: &str, _: &str, _: OpCopy) -> Result<Self::Copier> {
        Err(unsupported())
    }

    async fn rename(&self, _: &OperationContext, _: &str, _: &str, _: OpRename) -> Result<RpRename> {
        Err(unsupported())
    }

    async fn presign(&self, _: &OperationContext, _: &str, _: OpPresign) -> Result<RpPresign> {
        Err(unsupported())
    }
}

fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, "repositories are only read")
}

/// Where the files of a repository are listed.
#[derive(Clone)]
struct HubTree {
    endpoint: String,
    url: String,
    /// The directory that paths begin in.
    root: String,
    authorization: Option<String>,
}

impl fmt::Debug for HubTree {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubTree").field("url", &self.url).field("root", &self.root).finish_non_exhaustive()
    }
}

impl HubTree {
    /// The address of the first page.
    fn first(&self, path: &str, recursive: bool) -> String {
        let (root, path) = (self.root.as_str(), path.trim_matches('/'));
        let between = if root.is_empty() || path.is_empty() { "" } else { "/" };
        let path = opendal::raw::percent_encode_path(&format!("{root}{between}{path}"));
        let slash = if path.is_empty() { "" } else { "/" };
        format!("{}{slash}{path}?recursive={recursive}", self.url)
    }

    /// A path of the repository as one below the root.
    fn relative<'a>(&self, path: &'a str) -> Option<&'a str> {
        match self.root.as_str() {
            "" => Some(path),
            root => path.strip_prefix(root)?.strip_prefix('/'),
        }
    }
}

/// The pages of a listing.
#[derive(Debug)]
struct HubLister {
    tree: HubTree,
    context: OperationContext,
    first: String,
}

/// A file or directory in the tree.
#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
}

impl oio::PageList for HubLister {
    async fn next_page(&self, page: &mut oio::PageContext) -> Result<()> {
        let url = if page.token.is_empty() { &self.first } else { &page.token };
        let mut request = Request::get(url);
        if let Some(authorization) = &self.tree.authorization {
            request = request.header(http::header::AUTHORIZATION, authorization);
        }
        let malformed = |why: &str| Error::new(ErrorKind::Unexpected, format!("the Hub's answer {why}"));
        let request = request.body(Buffer::new()).map_err(|_| malformed("names no address"))?;
        let answer = self.context.http_transport().send(request).await?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    "there is no such repository, revision or directory",
                ));
            }
            StatusCode::FORBIDDEN => {
                return Err(Error::new(
                    ErrorKind::PermissionDenied,
                    "the Hub denies access to the repository",
                ));
            }
            status => return Err(malformed(&format!("is {status}"))),
        }
        let next = answer.headers().get(http::header::LINK).and_then(|link| next_page(link.to_str().ok()?));
        page.done = next.is_none();
        if let Some(next) = next {
            // The token goes to no other host.
            if !next.starts_with(&format!("{}/", self.tree.endpoint)) {
                return Err(malformed("continues on another host"));
            }
            page.token = next.to_owned();
        }
        let entries: Vec<TreeEntry> = serde_json::from_slice(&answer.into_body().to_bytes())
            .map_err(|error| malformed("is no list of files").set_source(error))?;
        for entry in entries {
            let Some(path) = self.tree.relative(&entry.path).filter(|path| !path.is_empty()) else {
                continue;
            };
            page.entries.push_back(match entry.kind.as_str() {
                "file" => oio::Entry::new(path, MetadataBuilder::file(entry.size).build()),
                _ => oio::Entry::new(&format!("{path}/"), MetadataBuilder::dir().build()),
            });
        }
        Ok(())
    }
}

/// The address of the next page in a `Link` header.
fn next_page(link: &str) -> Option<&str> {
    let next = link.split(',').find(|link| link.contains("rel=\"next\""))?;
    next.trim().strip_prefix('<')?.split('>').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_page_is_that_of_the_header() {
        assert_eq!(next_page("<https://h/api?cursor=a%3D>; rel=\"next\""), Some("https://h/api?cursor=a%3D"));
        assert_eq!(
            next_page("<https://h/1>; rel=\"first\", <https://h/2>; rel=\"next\""),
            Some("https://h/2")
        );
        assert_eq!(next_page("<https://h/1>; rel=\"last\""), None);
    }

    #[test]
    fn paths_are_below_the_root() {
        let tree = HubTree {
            endpoint: "https://h".to_owned(),
            url: "https://h/api/datasets/o/n/tree/main".to_owned(),
            root: "train".to_owned(),
            authorization: Some("Bearer secret".to_owned()),
        };
        assert_eq!(
            tree.first("a b/", true),
            "https://h/api/datasets/o/n/tree/main/train/a%20b?recursive=true"
        );
        assert_eq!((tree.relative("train/x/1"), tree.relative("training/1")), (Some("x/1"), None));
        assert!(!format!("{tree:?}").contains("secret"));
        let whole = HubTree { root: String::new(), ..tree };
        assert_eq!(whole.first("", true), "https://h/api/datasets/o/n/tree/main?recursive=true");
    }
}
