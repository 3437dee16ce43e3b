//! The cost of a sample on its way to a worker process, in microseconds of processor time at either
//! end.
//!
//! `cargo run --release -p foreread-store --example worker_cost [bytes] [samples at once]`

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
mod linux {
    use std::process::Command;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use bytes::Bytes;
    use foreread_store::{Client, SampleProvider, SampleRequest, Server, ServerSettings, WorkerCall};
    use foreread_tier::{ArenaBuffers, Buffers, Lifetime};
    use foreread_types::SampleId;
    use rustix::time::{ClockId, clock_gettime};

    const SAMPLES: u64 = 40_000;
    /// More than fit a processor cache.
    const DIFFERENT: u64 = 2000;

    struct InMemory(Vec<Bytes>);

    impl SampleProvider for InMemory {
        fn get(&self, sample_requests: Vec<SampleRequest>) {
            for request in sample_requests {
                let bytes = self.0[request.id().0 as usize % self.0.len()].clone();
                request.answer(Ok(bytes));
            }
        }

        fn call(&self, _: WorkerCall) {}
    }

    fn processor_time() -> Duration {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    fn each(time: Duration) -> f64 {
        time.as_secs_f64() * 1e6 / SAMPLES as f64
    }

    fn worker(address: &str, at_once: u64) -> Result<(), Box<dyn std::error::Error>> {
        let client = Client::connect(address)?;
        let all = |read: bool| -> Result<(Duration, Duration), Box<dyn std::error::Error>> {
            let (begun, spent) = (Instant::now(), processor_time());
            let mut sum = 0_u64;
            for first in (0..SAMPLES).step_by(at_once as usize) {
                let ids: Vec<_> = (first..first + at_once).map(SampleId).collect();
                for held in client.get(&ids) {
                    if read {
                        let (words, _) = held.as_ref().map_err(Clone::clone)?.as_ref().as_chunks::<8>();
                        sum = words.iter().fold(sum, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
                    }
                }
            }
            std::hint::black_box(sum);
            Ok((processor_time() - spent, begun.elapsed()))
        };
        all(true)?;
        let (bare, _) = all(false)?;
        let (read, took) = all(true)?;
        println!(
            "worker: {:.1} us a sample, {:.1} with reading each word; {:.0} samples/s",
            each(bare),
            each(read),
            SAMPLES as f64 / took.as_secs_f64()
        );
        Ok(())
    }

    /// The variable with the server's address, which is secret: every user can read a process's
    /// arguments.
    const ADDRESS: &str = "FOREREAD_EXAMPLE_ADDRESS";

    pub fn main() -> Result<(), Box<dyn std::error::Error>> {
        let mut arguments = std::env::args().skip(1);
        let bytes: u64 = arguments.next().map_or(Ok(110_000), |bytes| bytes.parse())?;
        let at_once: u64 = arguments.next().map_or(Ok(64), |count| count.parse())?;
        if let Ok(address) = std::env::var(ADDRESS) {
            return worker(&address, at_once);
        }
        let buffers = Arc::new(ArenaBuffers::default());
        buffers.share();
        let sample = |id: u64| {
            let mut buffer = buffers.allocate_for(Lifetime::Kept, bytes as usize, 1)?;
            buffer.extend(&vec![id as u8; bytes as usize]);
            Some(buffer.freeze())
        };
        let different = (0..DIFFERENT).map(sample).collect::<Option<Vec<_>>>().ok_or("memory is short")?;
        let settings = ServerSettings::default();
        let server = Server::start(Arc::new(InMemory(different)), Arc::clone(&buffers) as _, settings)?;
        let before = processor_time();
        let status = Command::new(std::env::current_exe()?)
            .args([bytes.to_string(), at_once.to_string()])
            .env(ADDRESS, server.address())
            .status()?;
        let spent = processor_time() - before;
        println!("server: {:.1} us a sample ({status}; {:?})", each(spent) / 3.0, server.status());
        Ok(())
    }
}
