#!/usr/bin/env python3
"""DLIO with the parameters of MLPerf Storage's workloads, scaled to one small machine, with and without foreread. Unofficial.

    python benches/dlio/run.py [--rounds 3] [--workload unet3d]... [--source slow|cached]... [--mode MODE]... [--json FILE]

Modes: `dlio` alone, `run` (`foreread run` around it, room for all), and plugins over `DataLoader` and `wrap` (memory for all).
TFRecord workloads are TensorFlow's: PyTorch's loader, and so `wrap`, does not read them.

Decision: the slow source is the project's stand-in for Lustre (FUSE, no page is kept, 1 ms for an open, .3 ms for a read)
with half of the bandwidth that the workload demands. It counts its bytes. The modes of a round follow one another, and rounds
rotate them, so that other work on the machine meets all. The price: the source and the trainer share the processors.

AU is DLIO's accelerator utilisation: computing time by the time of an epoch without its first step.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
EPOCHS = 3
MODES = ("dlio", "run", "DataLoader", "wrap")


@dataclass(frozen=True)
class Workload:
    """Overrides of a workload of DLIO: files, samples of each, and a step of `batch` samples and `step` seconds."""

    base: str
    format: str
    framework: str
    files: int
    samples: int
    length: int
    deviation: int
    batch: int
    step: float

    @property
    def total(self):
        return self.files * self.samples * self.length

    @property
    def demand(self):
        """Bytes per second of a trainer that never waits."""
        return self.batch * self.length / self.step


#: Steps of MLPerf Storage 2.0 for an H100. Samples are smaller (unet3d: 1/24), or batches.
WORKLOADS = {
    "unet3d": Workload("unet3d_h100", "npz", "pytorch", 64, 1, 6_108_360, 2_847_575, 4, 0.323),
    "jpeg": Workload("resnet50_h100", "jpeg", "pytorch", 576, 1, 114_660, 0, 32, 0.224),
    "resnet50": Workload("resnet50_h100", "tfrecord", "tensorflow", 16, 192, 114_660, 0, 96, 0.224),
    "cosmoflow": Workload("cosmoflow_h100", "tfrecord", "tensorflow", 144, 1, 2_828_486, 71_311, 1, 0.0352),
}


class Source:
    """The files of a workload, page-cached or on the slow file system, and the bytes that were read from it by time."""

    def __init__(self, data, scratch, stand_in, bandwidth):
        self.path, self._process, self._counts = data, None, []
        if bandwidth is None:
            for file in data.rglob("*"):
                if file.is_file():
                    file.read_bytes()
            return
        self.path = scratch / "mounted"
        self.path.mkdir()
        limits = ["--osts=1", "--metadata-ms=1", "--read-ms=0.3", f"--bandwidth={int(bandwidth)}"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen([stand_in, str(data), str(self.path), *limits], **pipes)
        if self._process.stdout.readline() != "ready\n":
            sys.exit("the slow file system does not mount: it needs FUSE, and root or fusermount3")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def _count(self):
        while not self._ended.wait(0.05):
            self._process.stdin.write("counts\n")
            self._process.stdin.flush()
            counts = json.loads(self._process.stdout.readline())
            self._counts.append((time.time(), counts["bytes"]))

    def bytes_by(self, moment):
        """The bytes that had been sent at a moment. None for page-cached files."""
        if self._process is None:
            return None
        return max((sent for at, sent in self._counts if at <= moment), default=0)

    def close(self):
        if self._process is not None:
            self._ended.set()
            self._thread.join()
            self._process.stdin.close()
            self._process.wait()


def overrides(load, folder, output):
    """DLIO's settings of a workload."""
    values = {
        "workflow.generate_data": False,
        "workflow.checkpoint": False,
        "framework": load.framework,
        "dataset.data_folder": folder,
        "dataset.format": load.format,
        "dataset.num_files_train": load.files,
        "dataset.num_samples_per_file": load.samples,
        "dataset.record_length": load.length,
        "dataset.record_length_stdev": load.deviation,
        "dataset.record_length_resize": 150_528,
        "reader.data_loader": load.framework,
        "reader.batch_size": load.batch,
        "reader.read_threads": 4,
        "train.epochs": EPOCHS,
        "train.computation_time": load.step,
    }
    return [f"workload={load.base}", f"hydra.run.dir={output}"] + [f"++workload.{name}={value}" for name, value in values.items()]


def dlio(arguments, environment, before=()):
    """Runs DLIO. Ends the program with its output if it fails."""
    command = [*before, sys.executable, "-m", "dlio_benchmark.main", *arguments]
    ran = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}")


def measure(load, source, mode, scratch, foreread):
    """One run of a mode: AU, samples/s and source bytes of each epoch, and the processor's seconds of all."""
    output = scratch / "output"
    arguments, before = overrides(load, source.path, output), []
    environment = {
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "FOREREAD_MEMORY": str(2 * load.total),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    if mode == "run":
        disk = f"{scratch / 'disk'}={2 * load.total}"
        before = [foreread, "run", "--root", str(source.path), "--disk", disk, "--"]
    elif mode != "dlio":
        plugin = {"DataLoader": "over_data_loader.OverDataLoader", "wrap": "over_wrap.OverWrap"}[mode]
        arguments += [f"++workload.reader.data_loader_classname={plugin}", "++workload.reader.data_loader_sampler=index"]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    dlio(arguments, environment, before)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    metric = json.loads((output / "summary.json").read_text())["metric"]
    epochs = json.loads((output / "per_epoch_stats.json").read_text())
    at = [datetime.fromisoformat(epochs[str(epoch + 1)]["start"]).timestamp() for epoch in range(EPOCHS)] + [time.time()]
    sent = [source.bytes_by(moment) for moment in at]
    sent[0] = None if sent[0] is None else 0
    return {
        "au": metric["train_au_percentage"],
        "samples_per_second": metric["train_throughput_samples_per_second"],
        "source_bytes": None if sent[0] is None else [after - before for before, after in zip(sent, sent[1:])],
        "cpu_seconds": ended.ru_utime + ended.ru_stime - used.ru_utime - used.ru_stime,
    }


def rounds(name, kind, modes, count, data, tools):
    """All runs of a workload on a source, by mode."""
    load, results = WORKLOADS[name], {mode: [] for mode in modes}
    for number in range(count):
        for mode in modes[number % len(modes) :] + modes[: number % len(modes)]:
            with tempfile.TemporaryDirectory() as scratch:
                source = Source(data, Path(scratch), tools["stand-in"], load.demand / 2 if kind == "slow" else None)
                try:
                    results[mode].append(measure(load, source, mode, Path(scratch), tools["foreread"]))
                finally:
                    source.close()
            print(f"  {name}, {kind}, round {number + 1} of {count}: {mode}", file=sys.stderr, flush=True)
    return results


def median(runs, name, epochs):
    """The median over runs of a figure's mean over epochs. None without the figure."""
    if any(run[name] is None for run in runs):
        return None
    return statistics.median(statistics.fmean(run[name][epoch] for epoch in epochs) for run in runs)


def row(name, kind, mode, runs, alone):
    """A row of the table. Rates are those of DLIO alone in the same rounds as 1."""
    later = range(1, EPOCHS)

    def ratio(epochs):
        pairs = zip((median([run], "samples_per_second", epochs) for run in runs), alone and ([one] for one in alone) or [])
        found = [ours / median(theirs, "samples_per_second", epochs) for ours, theirs in pairs]
        return f"{statistics.median(found):.2f}" if found else ""

    def megabytes(epochs):
        sent = median(runs, "source_bytes", epochs)
        return "" if sent is None else f"{sent / 1e6:.0f}"

    cells = [name, kind, mode]
    cells += [f"{median(runs, 'au', [0]):.1f}", f"{median(runs, 'au', later):.1f}"]
    cells += [f"{median(runs, 'samples_per_second', [0]):.1f}", f"{median(runs, 'samples_per_second', later):.1f}"]
    cells += [ratio([0]), ratio(later), megabytes([0]), megabytes(later)]
    cells += [f"{statistics.median(run['cpu_seconds'] for run in runs):.1f}"]
    return f"| {' | '.join(cells)} |"


HEAD = """| workload | source | mode | AU %, first epoch | later | samples/s, first | later | by DLIO's, first | later | source MB, first | later | CPU s |
|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""


def generate(load, folder):
    """The workload's files, made by DLIO."""
    with tempfile.TemporaryDirectory() as output:
        # DLIO calls DALI's program for indexes of TFRecords, which TensorFlow does not read.
        indexer = Path(output) / "tfrecord2idx"
        indexer.write_text('#!/bin/sh\n: > "$2"\n')
        indexer.chmod(0o755)
        chosen = ["++workload.workflow.generate_data=True", "++workload.workflow.train=False"]
        path = os.pathsep.join([output, os.environ.get("PATH", os.defpath)])
        dlio(overrides(load, folder, output) + chosen, {"TF_CPP_MIN_LOG_LEVEL": "3", "PATH": path})


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    parser.add_argument("--source", choices=("slow", "cached"), action="append")
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--json", type=Path, help="where all figures go")
    parser.add_argument("--foreread", default=shutil.which("foreread"), help="the command")
    parser.add_argument("--stand-in", default="target/release/stand-in", help="cargo build --release -p foreread-lustre-testing")
    given = parser.parse_args()
    tools, everything = {"foreread": given.foreread, "stand-in": given.stand_in}, []
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, {datetime.now():%d %B %Y}\n\n{HEAD}", flush=True)
    with tempfile.TemporaryDirectory() as made:
        for name in given.workload or WORKLOADS:
            folder = Path(made) / name
            generate(WORKLOADS[name], folder)
            is_torch = WORKLOADS[name].framework == "pytorch"
            modes = [mode for mode in MODES if mode in (given.mode or MODES) and (is_torch or mode != "wrap")]
            for kind in given.source or ("slow", "cached"):
                found = rounds(name, kind, modes, given.rounds, folder, tools)
                for mode in modes:
                    print(row(name, kind, mode, found[mode], found.get("dlio")), flush=True)
                    everything.append({"workload": name, "source": kind, "mode": mode, "runs": found[mode]})
            shutil.rmtree(folder)
    if given.json:
        given.json.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
