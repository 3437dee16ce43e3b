//! `foreread order`: prints the ids that a rank reads in one epoch.

use std::io::Write;

use anyhow::Result;
use foreread::Error;
use foreread::order::sampler;
use foreread::order::{AccessStream, Dealing};
use foreread_settings::Provenance;
use foreread_types::{Rank, SampleId};

use crate::arguments::OrderCommand;
use crate::{output, settings};

const CHUNK: usize = 4096;

pub fn run(options: &OrderCommand) -> Result<()> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(()) };
    let json = settings::is_json(&knobs)?;
    let config = foreread_settings::config(&knobs)?;
    if config.locality {
        return Err(knobs.refuse("deal", "locality is only known in a run; expected torch or blocks").into());
    }
    let samples: u64 =
        knobs.parse("samples")?.ok_or_else(|| knobs.refuse("samples", "required: the number of samples"))?;
    let epoch: u64 = knobs.value("epoch")?;
    // The default of `load` would cut the order into batches here.
    let batches = !matches!(knobs.get("batch-size"), None | Some((_, Provenance::Default)));
    let batch_size = batches.then_some(config.batch_size);

    let order = sampler(config.sampler, samples, config.seed).and_then(|sampler| sampler.order(epoch));
    let dealing = Dealing::new(config.deal, config.rank.ranks, batch_size, config.drop_last);
    let stream = AccessStream::new(
        order.map_err(Error::from)?,
        dealing.map_err(Error::from)?,
        Rank(config.rank.rank),
        0,
    )
    .map_err(Error::from)?;
    let mut out = output::stdout();
    if json {
        write!(out, "{{\"samples\": {samples}, \"seed\": {}, \"epoch\": {epoch}, ", config.seed)?;
        write!(out, "\"rank\": {}, \"world_size\": {}, \"ids\": [", config.rank.rank, config.rank.ranks)?;
        let mut separator = "";
        each_id(&stream, |id| Ok(write!(out, "{}{id}", std::mem::replace(&mut separator, ", "))?))?;
        writeln!(out, "]}}")?;
    } else {
        each_id(&stream, |id| Ok(writeln!(out, "{id}")?))?;
    }
    Ok(out.flush()?)
}

/// Calls `each` with the ids in order. They are never all in memory.
fn each_id(stream: &AccessStream, mut each: impl FnMut(SampleId) -> Result<()>) -> Result<()> {
    let mut ids = vec![SampleId(0); CHUNK];
    let mut at = 0;
    while at < stream.len() {
        let count = CHUNK.min(usize::try_from(stream.len() - at).unwrap_or(CHUNK));
        stream.fill(at, &mut ids[..count]);
        ids[..count].iter().try_for_each(|id| each(*id))?;
        at += count as u64;
    }
    Ok(())
}
