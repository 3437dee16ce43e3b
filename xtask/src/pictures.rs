//! `cargo xtask pictures`: makes the pictures of the documents again, into `docs/img`.
//!
//! All numbers come from runs on this machine: the demo, a run of `foreread load`, a small training
//! on one to eight ranks, and a plan. Times differ from machine to machine, so the pictures are
//! committed and no test compares them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{cargo, run};
use crate::python;
use crate::recording;
use crate::workspace::Workspace;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// One picture: demo, timeline, run, losses or drawn
    #[arg(long)]
    only: Option<Picture>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Picture {
    /// `demo.svg`: a recording of `foreread demo`
    Demo,
    /// `timeline.svg`: when the demo's trainers compute and when they wait
    Timeline,
    /// `run.svg`: the plot of a run of `foreread load`
    Run,
    /// `losses.csv`: a training on 1, 2, 4 and 8 ranks; needs the environment of the Python tests
    Losses,
    /// `losses.svg`, `placement.svg` and `data-flow.svg`, from `losses.csv` and the planner
    Drawn,
}

/// The files of the dataset of `run.svg`, and the most bytes of one.
const FILES: usize = 600;
const LONGEST: usize = 120_000;

pub fn run_command(args: &Args) -> Result<bool> {
    let workspace = Workspace::load()?;
    let images = workspace.root.join("docs/img");
    fs::create_dir_all(&images).with_context(|| format!("cannot create {}", images.display()))?;
    let wants = |picture| args.only.is_none_or(|only| only == picture);
    let program = workspace.target.join("debug/foreread");
    if [Picture::Demo, Picture::Timeline, Picture::Run].into_iter().any(wants) {
        ensure!(run(&mut cargo(&workspace, ["build", "-p", "foreread-cli"]))?, "no command");
    }
    if wants(Picture::Demo) {
        let outputs = recording::record(&format!("{} demo", program.display()), &workspace.root)?;
        write(&images.join("demo.svg"), &recording::svg("foreread demo", &outputs))?;
    }
    if wants(Picture::Timeline) {
        let drawn = Command::new(&program).args(["demo", "--plot"]).arg(images.join("timeline.svg")).status();
        ensure!(drawn.is_ok_and(|status| status.success()), "the demo failed");
    }
    if wants(Picture::Run) {
        plot_of_a_run(&program, &images.join("run.svg"))?;
    }
    if wants(Picture::Losses) {
        let script = workspace.root.join("examples/pytorch/same_losses.py");
        let mut training = python::installed(&workspace)?;
        training.arg(script).arg(images.join("losses.csv"));
        ensure!(run(&mut training)?, "the training failed");
    }
    if wants(Picture::Drawn) {
        let mut draw = cargo(&workspace, ["run", "-p", "foreread-plot", "--example", "pictures", "--"]);
        ensure!(run(draw.arg(&images))?, "the pictures cannot be drawn");
    }
    Ok(true)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

/// A run over generated files, with limited storage and memory for half of the data.
fn plot_of_a_run(program: &Path, plot: &Path) -> Result<()> {
    let directory = tempfile::tempdir().context("cannot create a directory for the data")?;
    let data = directory.path().join("train");
    fs::create_dir(&data).context("cannot create a directory for the data")?;
    let mut bytes = 0;
    for file in 0..FILES {
        let length = LONGEST / 2 + file * 7919 % (LONGEST / 2);
        bytes += length;
        fs::write(data.join(format!("{file:05}.bin")), vec![file as u8; length])
            .context("cannot write data")?;
    }
    let mut load = Command::new(program);
    load.current_dir(directory.path()).args(["load", "train", "--epochs", "3", "--batch-size", "16"]);
    load.args([
        "--origin-limit",
        "20MiB/s",
        "--compute-ms",
        "30",
        "--look-ahead",
        "8MiB",
        "--progress",
        "off",
    ]);
    load.arg("--memory").arg((bytes / 2).to_string()).arg("--plot").arg(plot);
    ensure!(run(&mut load)?, "the run failed");
    // The directory has another name in each run.
    let drawn = fs::read_to_string(plot).context("the run has written no plot")?;
    write(plot, &drawn.replace(&data.to_string_lossy().into_owned(), "/data/train"))
}
