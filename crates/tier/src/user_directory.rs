//! The directory of what processes of one user share on a machine.

use std::path::{Path, PathBuf};

/// The directory for sockets and links of this user's processes, which need not exist: in
/// `XDG_RUNTIME_DIR`, else in `/tmp`. Anyone may create the one in `/tmp`, so it proves nothing.
pub fn user_directory() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute());
    match runtime {
        Some(runtime) => Path::new(&runtime).join("foreread"),
        None => PathBuf::from(format!("/tmp/foreread-{}", rustix::process::geteuid().as_raw())),
    }
}
