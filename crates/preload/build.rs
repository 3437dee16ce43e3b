//! Compiles the library that programs preload, with the compiler that compiles this package.
//!
//! Cargo has one panic strategy for a workspace, and no dependency of a package may be a library
//! for the dynamic linker. So `interpose/` is compiled here. It depends on `core` alone.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=interpose");
    println!("cargo::rerun-if-changed=src/layout.rs");
    println!("cargo::rerun-if-changed=src/layout");
    let to = PathBuf::from(variable("OUT_DIR")).join("preload.so");
    if variable("CARGO_CFG_TARGET_OS") != "linux" {
        // Other systems have no programs to preload it, and the command says so.
        if let Err(error) = std::fs::write(&to, []) {
            panic!("cannot write {}: {error}", to.display());
        }
        return;
    }
    compile(Path::new("interpose/main.rs"), &to);
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

fn compile(source: &Path, to: &Path) {
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "foreread_preload"]);
    rustc.args(["--target", &variable("TARGET"), "-o"]).arg(to).arg(source);
    rustc.args(["-C", "opt-level=3", "-C", "panic=abort", "-C", "codegen-units=1", "-C", "strip=symbols"]);
    // Nothing of libc is linked: the program has one already, whichever that is.
    rustc.args(["-C", "link-args=-nostdlib -nostartfiles -Wl,-z,now -Wl,-z,relro -Wl,-Bsymbolic"]);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.args(["-C", &format!("linker={linker}")]);
    }
    match rustc.status() {
        Ok(status) => assert!(status.success(), "the preloaded library does not compile: {status}"),
        Err(error) => panic!("cannot start the compiler: {error}"),
    }
}
