//! The engine's core alone: events and actions of an epoch, with nothing behind them.

use std::sync::Arc;

use anyhow::{Context, Result};
use criterion::{BatchSize, Criterion, Throughput};
use foreread::{Config, Memory, Planned};
use foreread_loader::core::{Action, Core, Event};
use foreread_loader::{OnError, Source};
use foreread_oracle::Run;
use foreread_types::Sizes;

const SAMPLES: u64 = 20_000;
const EPOCHS: u64 = 2;

/// Answers every action at once; a trainer that takes each batch as it comes. Returns the number of batches.
fn play(core: &mut Core, run: &Run, in_memory: bool, bytes: u64) -> u64 {
    let (mut events, mut actions, mut batches) = (Vec::new(), Vec::new(), 0);
    loop {
        for event in events.drain(..).chain([Event::Proceed]) {
            core.on(event, &mut actions);
        }
        if actions.is_empty() {
            return batches;
        }
        for action in actions.drain(..) {
            match action {
                Action::Deal { pass } => {
                    let stream = run.pass(pass).and_then(|of| run.stream(&of).ok());
                    events.extend(stream.map(|stream| Event::Dealt { pass, stream }));
                }
                Action::Find { tick, .. } if in_memory => events.push(Event::Found(tick)),
                Action::Find { tick, .. } => events.push(Event::Absent(tick)),
                Action::Read { tick, .. } | Action::Fetch { tick, .. } => events.push(Event::Arrived(tick)),
                Action::Hand { ticks, .. } => {
                    batches += 1;
                    if !in_memory {
                        events.push(Event::Released { bytes: ticks * bytes });
                    }
                    events.push(Event::Taken);
                }
                Action::End => return batches,
                _ => {}
            }
        }
    }
}

pub fn parts(criterion: &mut Criterion) -> Result<()> {
    let bytes = 100_000;
    let sizes = vec![Sizes::uniform(SAMPLES, bytes)];
    let mut group = criterion.benchmark_group("core, a use");
    group.throughput(Throughput::Elements(SAMPLES * EPOCHS));
    for (name, memory) in [("from the origin", 0), ("from memory", u64::MAX / 2)] {
        let mut config = Config::default();
        (config.epochs, config.memory) = (EPOCHS, Memory::Bytes(memory));
        let planned = Planned::new(config, &sizes)?;
        let levels = if memory > 0 { vec![Source::Memory] } else { Vec::new() };
        let settings = || foreread_loader::core::Config {
            look_ahead: 256 << 20,
            on_error: OnError::Fail,
            levels: levels.clone(),
        };
        let plan = Arc::new(planned.plan().clone());
        let fresh = || Core::new(settings(), planned.run().clone(), Arc::clone(&plan), sizes.clone());
        let batches = play(&mut fresh(), planned.run(), memory > 0, bytes);
        let all = planned.run().passes().map(|pass| pass.batches).sum::<u64>();
        (batches == all).then_some(()).with_context(|| format!("{batches} batches of {all} came"))?;
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                fresh,
                |core| play(core, planned.run(), memory > 0, bytes),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
    Ok(())
}
