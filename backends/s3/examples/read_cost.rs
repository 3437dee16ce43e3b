//! Compares the cost of a read with a bare GET of `object_store`: CPU time of the reading thread
//! per sample, in alternation.
//!
//! ```text
//! cargo run --release -p foreread-s3 --example read_cost [ROUNDS]
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use foreread_s3::{Environment, S3Backend};
use foreread_tier::{ArenaBuffers, Backend, Object, OpenContext, OpenOptions, ReadRequest, Span};
use foreread_tier_testing::store::{HttpStore, NumberedObjects};
use foreread_types::{SampleId, SampleKey, Tick};
use futures::{StreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

const SAMPLES: u64 = 4_000;
const SIZE: u64 = 110_000;
const PARALLELISM: usize = 64;

/// The CPU time of this thread.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = HttpStore::start();
    store.numbered("bench", NumberedObjects::new(SAMPLES, SIZE));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let environment = Environment::new([
        ("AWS_ENDPOINT_URL", store.endpoint().as_str()),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ]);
    let buffers = Arc::new(ArenaBuffers::default());
    let context = OpenContext { buffers, runtime: runtime.handle().clone(), seed: 0 };
    let mut options = OpenOptions::default();
    options.parallelism = Some(PARALLELISM);
    let backend = S3Backend::new().with_environment(environment);
    let origin = runtime.block_on(backend.open("s3://bench", &options, &context))?;
    // After the backend, because it installs the TLS library.
    let bare: Arc<dyn ObjectStore> = Arc::new(
        AmazonS3Builder::new()
            .with_bucket_name("bench")
            .with_region("us-east-1")
            .with_endpoint(store.endpoint())
            .with_access_key_id("key")
            .with_secret_access_key("secret")
            .with_client_options(ClientOptions::new().with_allow_http(true))
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .build()?,
    );
    let objects: Vec<Object> =
        runtime.block_on(origin.list("", None).collect::<Vec<_>>()).into_iter().collect::<Result<_, _>>()?;
    let rounds = std::env::args().nth(1).map_or(Ok(12), |text| text.parse())?;
    for round in 0..rounds {
        let (began, from) = (Instant::now(), cpu());
        let bytes: usize = runtime.block_on(async {
            let get = |object: &Object| {
                let (bare, path) = (Arc::clone(&bare), Path::from(&*object.path));
                async move {
                    Ok::<_, object_store::Error>(
                        bare.get_opts(&path, Default::default()).await?.bytes().await?.len(),
                    )
                }
            };
            let gets =
                stream::iter(objects.iter().map(get).collect::<Vec<_>>()).buffer_unordered(PARALLELISM);
            gets.map(|length| length.unwrap_or(0)).fold(0, |sum, length| async move { sum + length }).await
        });
        let (bare_time, bare_cpu) = (began.elapsed(), cpu() - from);
        let (began, from) = (Instant::now(), cpu());
        let batch = (0..).zip(&objects).map(|(id, object)| {
            let key = SampleKey::new(Default::default(), SampleId(id));
            origin.read(Arc::new(ReadRequest::new(key, object.clone(), Span::Whole, Tick(0))))
        });
        // As many as the bare loop has. The engine starts as many.
        let reads = stream::iter(batch).buffer_unordered(PARALLELISM);
        let ours: usize = runtime.block_on(
            reads
                .map(|bytes| bytes.map_or(0, |bytes| bytes.len()))
                .fold(0, |sum, length| async move { sum + length }),
        );
        let (time, used) = (began.elapsed(), cpu() - from);
        assert_eq!((bytes as u64, ours as u64), (SAMPLES * SIZE, SAMPLES * SIZE));
        let each = |time: Duration| time.as_secs_f64() * 1e6 / SAMPLES as f64;
        println!(
            "round {round}: bare GET {:.1} us CPU, {:.1} us; tier {:.1} us CPU, {:.1} us; CPU ratio {:.3}",
            each(bare_cpu),
            each(bare_time),
            each(used),
            each(time),
            used.as_secs_f64() / bare_cpu.as_secs_f64()
        );
    }
    println!("{:?}", store.requests());
    Ok(())
}
