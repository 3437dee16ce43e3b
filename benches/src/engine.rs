//! The engine's core without tiers: every action completes immediately, in order.

use anyhow::{Result, ensure};
use foreread::plan::Planned;
use foreread::{Config, Memory};
use foreread_loader::core::{CacheLevel, Core, CoreAction, CoreEvent};
use foreread_loader::{OnError, ReadSource};
use foreread_planner::LocalPlan;
use foreread_types::{Footprint, Sizes};

const BYTES: u64 = 100_000;
const LOOK_AHEAD: u64 = 256 << 20;

/// A planned run that can be replayed many times.
#[derive(Debug)]
pub struct CoreReplay {
    planned: Planned,
    plan: LocalPlan,
    sizes: Vec<Sizes>,
    in_memory: bool,
}

impl CoreReplay {
    /// Two epochs over `samples` samples of 100 KB, all from the origin or all from memory.
    ///
    /// # Errors
    /// If the run cannot be planned, or does not complete.
    pub fn new(samples: u64, in_memory: bool) -> Result<Self> {
        let sizes = vec![Sizes::uniform(samples, BYTES)];
        let mut config = Config::default();
        (config.epochs, config.look_ahead) = (2, LOOK_AHEAD);
        config.memory = Memory::Bytes(if in_memory { 2 * samples * BYTES } else { 0 });
        let planned = Planned::new(config, &sizes)?;
        let plan = planned.local_plan().clone();
        let replay = Self { planned, plan, sizes, in_memory };
        let batches = replay.run(&mut replay.core());
        let all = replay.planned.run().passes().map(|pass| pass.batches).sum::<u64>();
        ensure!(batches == all, "{batches} batches delivered of {all}");
        Ok(replay)
    }

    /// Uses of samples in one replay.
    pub fn uses(&self) -> u64 {
        self.planned.run().samples()
    }

    /// A core in its initial state.
    pub fn core(&self) -> Core {
        let memory = CacheLevel { source: ReadSource::Memory, read: Footprint::EXACT };
        let levels = if self.in_memory { vec![memory] } else { Vec::new() };
        let config = foreread_loader::core::Config {
            look_ahead: LOOK_AHEAD,
            on_error: OnError::Fail,
            levels,
            warm: false,
        };
        Core::new(config, self.planned.run().clone(), self.plan.clone(), self.sizes.clone())
    }

    /// Replays the run for a trainer that takes each batch immediately. Returns the number of
    /// batches.
    pub fn run(&self, core: &mut Core) -> u64 {
        let run = self.planned.run();
        let (mut events, mut actions, mut batches) = (Vec::new(), Vec::new(), 0);
        loop {
            for event in events.drain(..).chain([CoreEvent::Proceed]) {
                core.on(event, &mut actions);
            }
            if actions.is_empty() {
                return batches;
            }
            for action in actions.drain(..) {
                match action {
                    CoreAction::Deal { pass } => {
                        let stream = run.pass(pass).and_then(|of| run.stream(&of).ok());
                        events.extend(stream.map(|stream| CoreEvent::Dealt { pass, stream }));
                    }
                    CoreAction::Find { tick, .. } if self.in_memory => events.push(CoreEvent::Found(tick)),
                    CoreAction::Find { tick, .. } => events.push(CoreEvent::Absent(tick)),
                    CoreAction::Read { tick, .. } | CoreAction::Fetch { tick, .. } => {
                        events.push(CoreEvent::Arrived(tick))
                    }
                    CoreAction::Hand { ticks, .. } => {
                        batches += 1;
                        if !self.in_memory {
                            events.push(CoreEvent::Released { bytes: ticks * BYTES });
                        }
                        events.push(CoreEvent::Taken);
                    }
                    CoreAction::End => return batches,
                    _ => {}
                }
            }
        }
    }
}
