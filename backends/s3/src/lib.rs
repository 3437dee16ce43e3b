//! Object stores as origins: S3 and compatible services. The features `gcs` and `azure` add
//! Google's and Azure's.
//!
//! [`S3Backend`] opens `s3://bucket/prefix`. A sample is one GET, of the version that was indexed
//! (`If-Match`), without a HEAD or another request before it. A part of an object is one GET with a
//! range. `object_store` makes the requests. It retries none of them. This crate retries in one
//! case: if the origin reports that the credentials have expired, they are fetched again and the
//! request is repeated once. All other retries belong to the layers, which see the error kinds that
//! this crate sets.
//!
//! The layers do not see listings, and a caller cannot restart half a listing without losing its
//! position. So listings retry their own pages.
//!
//! ```
//! use std::sync::Arc;
//! use foreread_s3::{Environment, S3Backend};
//! use foreread_tier::{Backend, OpenContext, HeapBuffers, OpenOptions, Tier};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! let (buffers, runtime_handle) = (Arc::new(HeapBuffers), runtime.handle().clone());
//! let context = OpenContext { buffers, runtime: runtime_handle, seed: 0 };
//! // The default is the process's environment.
//! let variables = [("AWS_SKIP_SIGNATURE", "true"), ("AWS_ENDPOINT_URL", "http://localhost:9000")];
//! let environment = Environment::new(variables);
//! let backend = S3Backend::new().with_environment(environment);
//! let options = OpenOptions::default();
//! let origin = runtime.block_on(backend.open("s3://bucket/images", &options, &context))?;
//! assert_eq!(origin.name(), "s3");
//! # Ok(())
//! # }
//! ```
//!
//! [`ObjectStoreOrigin`] reads any other implementation of
//! [`ObjectStore`](object_store::ObjectStore) as an origin, for backends of other programs:
//!
//! ```
//! use std::sync::Arc;
//! use foreread_s3::ObjectStoreOrigin;
//! use foreread_s3::object_store::{ObjectStoreExt, memory::InMemory};
//! use foreread_tier::{OpenContext, HeapBuffers, OriginTier};
//! use futures::StreamExt;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let store = InMemory::new();
//! store.put(&"class/a.jpg".into(), vec![1, 2, 3].into()).await?;
//! let runtime = tokio::runtime::Handle::current();
//! let context = OpenContext { buffers: Arc::new(HeapBuffers), runtime, seed: 0 };
//! let origin = ObjectStoreOrigin::new(Arc::new(store), "memory example", &context);
//! let object = origin.list("", None).next().await.ok_or("nothing")??;
//! assert_eq!((&*object.path, object.size), ("class/a.jpg", 3));
//! # Ok(())
//! # })
//! # }
//! ```

#[cfg(feature = "azure")]
mod azure_url;
mod backend;
mod config;
mod core;
mod credential_chain;
mod credentials;
mod environment;
mod error;
#[cfg(any(feature = "gcs", feature = "azure"))]
mod gcs_azure;
mod lister;
mod ordered;
mod pages;
mod profile;
mod proxy;
mod reader;
mod retry;
mod shell_words;
mod source_failure;
mod sso;
mod transport;
mod unordered;

pub use backend::S3Backend;
pub use core::ObjectStoreOrigin;
pub use environment::Environment;
pub use object_store;
