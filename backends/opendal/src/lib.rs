//! Services of [OpenDAL](https://opendal.apache.org) as origins: WebDAV, WebHDFS, web servers, OSS
//! and COS by default. The Hugging Face Hub, HDFS and SFTP by separate features. Google's and
//! Azure's buckets are in `foreread-s3`.
//!
//! [`OpendalBackend`] opens an origin by its URL's scheme. [`OpendalOrigin::new`] takes any
//! `opendal::Operator`.
//!
//! Decision: reads bypass OpenDAL's retries, timeouts and limits, because the layers around every
//! origin provide these. Those layers do not cover listings, so listings use OpenDAL's. Nothing is
//! registered or installed in the process, so a program's own use of OpenDAL is unaffected. TLS is
//! rustls with ring and the platform's certificates, in a separate client. A read is one request.
//! It is conditional on the indexed version where the origin supports that (`If-Match`,
//! `If-Unmodified-Since`), and its answer is compared where not. The price: origins that return no
//! version with a read (WebHDFS, HDFS, SFTP) reveal a change only by its length.
//!
//! # Settings
//!
//! A setting is an OpenDAL option of the service, given in
//! [`OpenOptions::settings`](foreread_tier::OpenOptions) or as `FOREREAD_<SERVICE>_<OPTION>` in the
//! environment, for example `FOREREAD_WEBDAV_USERNAME`. The variables of a service's own tools
//! (`ALIBABA_CLOUD_ACCESS_KEY_ID`, ...) work too. [`services`] lists them.
//!
//! Passwords and tokens of web servers, WebDAV and WebHDFS are bound to the host in `host`
//! (`dav.example.org`). It may have a `:port`, and `http://` allows unencrypted transfer. They go
//! to no other host, because a URL may come from a foreign catalog. Without `host` they are an
//! error. Redirects are followed for `http`, `webhdfs` and `hf` only: five at most, never from
//! https to http, and without credentials to another host.
//!
//! A web server cannot list. Its `list` names a local file with one path per line, below the URL.
//! Each object's length is requested once, when the catalog is made.
//!
//! ```
//! use std::sync::Arc;
//! use foreread_opendal::{OpendalConfig, OpendalOrigin};
//! use foreread_tier::{OpenContext, HeapBuffers, OriginTier};
//! use futures::StreamExt;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
//! # runtime.block_on(async {
//! let runtime = tokio::runtime::Handle::current();
//! let context = OpenContext { buffers: Arc::new(HeapBuffers), runtime, seed: 0 };
//! let operator = opendal::Operator::new(opendal::services::Memory::default())?;
//! operator.write("class/a.jpg", vec![1, 2, 3]).await?;
//! let origin = OpendalOrigin::new(operator, OpendalConfig::default(), &context);
//! let object = origin.list("", None).next().await.ok_or("nothing")??;
//! assert_eq!((&*object.path, object.size), ("class/a.jpg", 3));
//! # Ok(())
//! # })
//! # }
//! ```

mod backend;
mod config;
mod core;
mod error;
#[cfg(feature = "huggingface")]
mod hub;
mod lister;
mod reader;
pub mod services;
mod transport;

pub use backend::OpendalBackend;
pub use config::OpendalConfig;
pub use core::OpendalOrigin;
