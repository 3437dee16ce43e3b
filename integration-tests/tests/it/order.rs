//! `foreread order` as a user sees it.

use crate::support::{foreread, run};

#[test]
fn settings_precede_as_argument_environment_file() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("foreread.toml"), "seed = 1\nsampler = 'torch'\n").unwrap();
    let mut command = foreread(["order", "--explain", "--samples", "7"]);
    command.current_dir(directory.path()).env("FOREREAD_SEED", "2").env("RANK", "1").env("WORLD_SIZE", "3");
    let explained = run(&mut command).ok();
    let line = |name: &str| {
        let line = explained.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("samples"), "samples 7 argument");
    assert_eq!(line("seed"), "seed 2 environment FOREREAD_SEED");
    assert_eq!(line("sampler"), "sampler torch file foreread.toml");
    assert_eq!(line("rank"), "rank 1 environment RANK");
    assert_eq!(line("epoch"), "epoch 0 default");
    assert!(!explained.contains("look-ahead"), "only this command's settings: {explained}");
}

#[test]
fn early_closed_output_of_order_is_not_an_error() {
    let line = format!("{} order --samples 3000000 | head -n 1", crate::support::binary().display());
    let output = crate::support::output(std::process::Command::new("sh").args(["-c", &line]));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout.iter().filter(|&&byte| byte == b'\n').count(), 1);
}
