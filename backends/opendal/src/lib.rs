//! Stores that [OpenDAL](https://opendal.apache.org) knows, as origins: WebDAV, WebHDFS, web servers, OSS, COS by default;
//! the Hugging Face Hub, HDFS and SFTP by features of their own. Google's and Azure's are in `foreread-s3`.
//!
//! [`OpendalBackend`] opens one by its URL's scheme; [`OpendalOrigin::new`] takes any `opendal::Operator` that a program
//! has made itself.
//!
//! Decision: OpenDAL is called directly and alone. Its own retries, time-outs and limits are off for reads, because those
//! are layers around every origin alike, which do not see listings: there OpenDAL's own are on. Nothing is registered or installed in the process, so that a program which uses
//! OpenDAL itself keeps its own. TLS is rustls with ring and the platform's certificates, as a client of our own. A read
//! is one request; whether an object is still the one that was indexed is asked in that request where the store can
//! answer (`If-Match`, `If-Unmodified-Since`), and told from its answer where not. The price is that stores which tell
//! nothing of an object when it is read (WebHDFS, HDFS, SFTP) show a change only in its length.
//!
//! # Settings
//!
//! A setting is OpenDAL's own option of the service, given in [`OpenOptions::settings`](foreread_tier::OpenOptions) or as
//! `FOREREAD_<SERVICE>_<OPTION>` in the environment, for example `FOREREAD_WEBDAV_USERNAME`. Stores whose tools have variables
//! of their own (`ALIBABA_CLOUD_ACCESS_KEY_ID`, ...) follow those too.
//!
//! | service | URLs | settings |
//! |---|---|---|
//! | `http` | `http://host/path`, `https://` | `username`, `password`, `token`, `host`, `list` |
//! | `webdav` | `webdav://host/path`, `webdavs://` | `username`, `password`, `token`, `host` |
//! | `webhdfs` | `webhdfs://namenode:9870/path`, `swebhdfs://` | `user_name`, `delegation`, `host` |
//! | `oss` | `oss://bucket/prefix` | `endpoint`, `access_key_id`, `access_key_secret`, `security_token`, `skip_signature`, ... |
//! | `cos` | `cos://bucket/prefix` | `endpoint`, `secret_id`, `secret_key`, `security_token` |
//! | `hf` | `hf://datasets/owner/name@revision/path` | `token`, `endpoint`, `download_mode` |
//! | `hdfs` | `hdfs://namenode:8020/path` | `options` |
//! | `sftp` | `sftp://user@host:port/path` | `key`, `known_hosts_strategy` |
//!
//! Passwords and tokens of the first three are bound to a host: `host` names it (`dav.example.org`, with `:port` where it
//! is not the usual one, with `http://` before it where they may be sent unencrypted). They go to no other host, because a
//! URL may come from a catalog that somebody else has made. Without `host` they are an error. Redirects are followed for
//! `http`, `webhdfs` and `hf` alone: five at most, never from https to http, and without credentials to another host.
//!
//! A web server lists nothing. Its `list` names a file here with one path a line, below the URL; each is then asked for
//! its length once, when the catalog is made.
//!
//! ```
//! use std::sync::Arc;
//! use foreread_opendal::{OpendalConfig, OpendalOrigin};
//! use foreread_tier::{Context, HeapBuffers, OriginTier};
//! use futures::StreamExt;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
//! # runtime.block_on(async {
//! let context = Context { buffers: Arc::new(HeapBuffers), runtime: tokio::runtime::Handle::current(), seed: 0 };
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
mod lister;
mod reader;
mod service;
mod transport;

pub use backend::OpendalBackend;
pub use config::OpendalConfig;
pub use core::OpendalOrigin;
