//! The end of each help text: examples, and the part common to all commands.

/// The end of a help text, with the given examples.
macro_rules! help {
    ($($example:literal),+ $(,)?) => {
        concat!(
            "Examples:\n",
            $("  ", $example, "\n",)+
            "\n\
Settings: an argument wins over the environment (--look-ahead: FOREREAD_LOOK_AHEAD), and that over \
foreread.toml in the working directory (look-ahead = \"1GiB\"). Options that describe one call, such as \
--digest or --plot, are arguments only. --explain shows where each value came from; docs/settings.md \
lists all.\n\
Units: bytes, plain or with B KB MB GB TB or KiB MiB GiB TiB; rates have /s at the end.\n\
Messages: -v, -vv, -q, or RUST_LOG=debug, which wins. NO_COLOR=1 turns colours off.\n\
Exit codes: 0 done, 1 failed, 2 wrong usage, 128 + n ended by signal n after the state was saved, 141 \
the reader of the output has gone."
        )
    };
}

pub(super) const MAIN: &str = help![
    "foreread demo                        # what it does, in under a minute",
    "foreread load /data/train            # read a dataset as a training would",
    "foreread plan /data/train --memory 8GiB --epochs 90",
];
pub(super) const DEMO: &str =
    help!["foreread demo", "foreread demo --directory /local/scratch --report json"];
pub(super) const INDEX: &str = help![
    "foreread index /data/train -o train.foreread",
    "foreread index s3://bucket/images --include '*.jpg'",
    "foreread index '/data/shards/train-{000000..000146}.tar'",
];
pub(super) const ORDER: &str = help![
    "foreread order --samples 1281167 --seed 1 --epoch 7 --sampler torch --world-size 8 --rank 3",
    "foreread order --samples 50000 --batch-size 64 --drop-last --report json",
];
pub(super) const LOAD: &str = help![
    "foreread load /data/train --batch-size 64 --epochs 3",
    "foreread load s3://bucket/images --memory 8GiB --disk /local/scratch=200GB --state run.state",
    "foreread load train.foreread --compute-ms 210     # would a step of 210 ms wait for data?",
    "foreread load /data/train --decode image --memory 8GiB     # how many images a second can be decoded?",
];
pub(super) const PLAN: &str = help![
    "foreread plan /data/train --memory 8GiB --epochs 90",
    "foreread plan --samples 1281167 --sample-bytes 110KB --memory 16GiB --world-size 8 --rank 0",
    "foreread plan /data/train --unchanged --disk /local/scratch=400GB     # for foreread run",
];
pub(super) const CALIBRATE: &str = help![
    "foreread calibrate /data/train --disk /local/scratch",
    "foreread calibrate s3://bucket/images --seconds 60 --origin-limit 1GB/s",
];
pub(super) const SIMULATE: &str = help![
    "foreread simulate crates/simulator/scenarios/thesis-s1.toml",
    "foreread simulate scenario.toml --policy foreread --plot policies.svg --report csv",
    "foreread simulate crates/simulator/scenarios/four-jobs.toml",
    "foreread simulate crates/simulator/scenarios/unchanged-files.toml",
];
#[cfg(feature = "share")]
pub(super) const TOKEN: &str = help![
    "export FOREREAD_TOKEN=$(foreread token)     # in the job script, before the ranks start",
    "foreread token --report json",
];
#[cfg(feature = "share")]
pub(super) const AGENT: &str = help![
    "foreread agent run --memory 40GiB -- torchrun --nproc-per-node 4 train.py",
    "foreread agent start --memory 200GiB && foreread agent status",
];
#[cfg(feature = "share")]
pub(super) const AGENT_START: &str = help![
    "foreread agent start --memory 200GiB",
    "foreread agent start --memory 200GiB --socket /run/user/1000/foreread/node.sock",
    "foreread agent start --memory 200GiB --http 127.0.0.1:9464",
];
#[cfg(feature = "share")]
pub(super) const AGENT_SERVE: &str = help![
    "foreread agent serve --memory 200GiB",
    "foreread agent serve --memory 200GiB --origin-limit 500MB/s --idle-exit 3600",
];
#[cfg(feature = "share")]
pub(super) const AGENT_RUN: &str = help![
    "foreread agent run --memory 40GiB -- torchrun --nproc-per-node 4 train.py",
    "foreread agent run --memory 40GiB -- sh -c 'python a.py & python b.py & wait'",
];
#[cfg(feature = "share")]
pub(super) const AGENT_STATUS: &str =
    help!["foreread agent status", "foreread agent status --report json --socket /run/user/1000/a/node.sock"];
#[cfg(feature = "share")]
pub(super) const AGENT_SET: &str = help![
    "foreread agent set memory=100GiB",
    "foreread agent set limit@s3://bucket=100MB/s 'weight@search-*=4'",
    "foreread agent set pin@s3://bucket/train=true --socket /run/user/1000/a/node.sock"
];
#[cfg(feature = "share")]
pub(super) const CONTROL: &str = help![
    "foreread control start --tokens ~/.foreread-tokens",
    "foreread agent start --memory 200GiB --control login1:7400 --control-token ~/.foreread-token",
    "foreread control status",
];
#[cfg(feature = "share")]
pub(super) const CONTROL_START: &str = help![
    "foreread control start --tokens ~/.foreread-tokens",
    "foreread control start --tokens ~/.foreread-tokens --listen 10.0.0.1:7400 --http 127.0.0.1:9465",
];
#[cfg(feature = "share")]
pub(super) const CONTROL_SERVE: &str = help![
    "foreread control serve --tokens /etc/foreread/tokens --policy /etc/foreread/agent.toml",
    "foreread control serve --tokens tokens --listen 127.0.0.1:7400 --socket /run/user/1000/c/control.sock",
];
#[cfg(feature = "share")]
pub(super) const CONTROL_STATUS: &str =
    help!["foreread control status", "foreread control status --report json"];
#[cfg(feature = "share")]
pub(super) const CONTROL_SET: &str = help![
    "foreread control set limit@s3://bucket=2GB/s",
    "foreread control set user-weight@alice=2 'weight@alice/search-*=4' rate-floor@alice/final=100MB/s",
    "foreread control set drain@node7=none",
];
#[cfg(feature = "share")]
pub(super) const CONTROL_DRAIN: &str =
    help!["foreread control drain node7", "foreread control drain node7 --wait 0"];
#[cfg(feature = "share")]
pub(super) const CONTROL_FORGET: &str = help![
    "foreread control forget node7",
    "foreread control forget alice@node7 --socket /run/user/1000/c/control.sock",
];
#[cfg(feature = "share")]
pub(super) const CONTROL_WARM: &str =
    help!["foreread control warm s3://bucket/train", "foreread control warm /shared/train.foreread"];
#[cfg(feature = "share")]
pub(super) const CONTROL_STOP: &str =
    help!["foreread control stop", "foreread control stop --socket /run/user/1000/c/control.sock"];
#[cfg(target_os = "linux")]
pub(super) const RUN: &str = help![
    "foreread run --root /lustre/imagenet --disk /local/scratch=400GB -- python train.py",
    "srun foreread run --root /lustre/imagenet --disk $TMPDIR=400GB -- python train.py",
    "foreread run --root /nfs/images --memory 64GiB --sampler torch:seed=0 -- torchrun train.py"
];
#[cfg(feature = "share")]
pub(super) const WARM: &str = help![
    "foreread warm s3://bucket/train",
    "foreread warm s3://bucket/train --wait 80% && torchrun train.py",
];
#[cfg(feature = "share")]
pub(super) const AGENT_STOP: &str =
    help!["foreread agent stop", "foreread agent stop --socket /run/user/1000/foreread/node.sock"];
pub(super) const CACHE: &str = help![
    "foreread cache list /local/scratch",
    "foreread cache clean /local/scratch --older-than 30 --dry-run",
];
pub(super) const CACHE_LIST: &str =
    help!["foreread cache list /local/scratch", "foreread cache list /local/scratch --report json"];
pub(super) const CACHE_CLEAN: &str = help![
    "foreread cache clean /local/scratch --dry-run          # all that could be removed",
    "foreread cache clean /local/scratch --older-than 30",
    "foreread cache clean /local/scratch --all",
];
pub(super) const COMPLETIONS: &str = help![
    "foreread completions bash > ~/.local/share/bash-completion/completions/foreread",
    "foreread completions zsh > ~/.zfunc/_foreread",
];
pub(super) const MAN: &str =
    help!["foreread man | man -l -", "foreread man ~/.local/share/man/man1     # man foreread-load",];
