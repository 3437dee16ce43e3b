//! The files of the HTTP interface in the agent's directory: a socket, a token, and a link.
//!
//! Decision: clients find the page by files, and not by the agent's answers. A file's mode protects
//! the token, and no report or log contains it. Prometheus reads `http.token` as it is. The price
//! is that a killed agent leaves the files. The next one replaces them.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// The paths of an agent's HTTP interface.
#[derive(Debug)]
pub struct HttpFiles {
    socket: PathBuf,
    token: PathBuf,
    link: PathBuf,
    /// Whether they are removed on drop.
    is_own: bool,
}

impl HttpFiles {
    /// The files of the agent that serves at a socket. It may be of another process.
    pub fn of(agent_socket: &Path) -> Self {
        Self::paths(agent_socket.parent().unwrap_or(Path::new("/")), false)
    }

    /// The files of this process's agent, which removes them on drop.
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self::paths(directory, true)
    }

    fn paths(directory: &Path, is_own: bool) -> Self {
        let [socket, token, link] = ["http.sock", "http.token", "http.url"].map(|name| directory.join(name));
        Self { socket, token, link, is_own }
    }

    /// The Unix socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The file with the token of the loopback port.
    pub fn token(&self) -> &Path {
        &self.token
    }

    /// The file with the page's link for a browser, token included.
    pub fn link(&self) -> &Path {
        &self.link
    }

    /// The page's link, if the agent has a loopback port and this user may read the token.
    pub fn page(&self) -> Option<String> {
        let text = std::fs::read_to_string(&self.link).ok()?;
        let link = text.trim();
        link.starts_with("http://").then(|| link.to_owned())
    }

    /// Removes the files of an ended agent. A file in the socket's place stays: it may be of value
    /// to its user.
    pub(super) fn remove(&self) {
        let is_socket = |path: &Path| path.symlink_metadata().is_ok_and(|it| it.file_type().is_socket());
        if is_socket(&self.socket) {
            // A file that stays is reported when it is in the way.
            let _ = std::fs::remove_file(&self.socket);
        }
        let _ = std::fs::remove_file(&self.token);
        let _ = std::fs::remove_file(&self.link);
    }

    /// Binds the socket. Only its user can open it, whatever the directory allows later.
    pub(super) fn bind_socket(&self) -> io::Result<UnixListener> {
        let listener = UnixListener::bind(&self.socket)?;
        std::fs::set_permissions(&self.socket, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Writes the token and the link, readable by this user alone.
    pub(super) fn write_token(&self, token: &str, link: &str) -> io::Result<()> {
        write_private(&self.token, token)?;
        write_private(&self.link, link)
    }
}

impl Drop for HttpFiles {
    fn drop(&mut self) {
        if self.is_own {
            self.remove();
        }
    }
}

/// Writes a new file of mode 0600. One in its place is replaced, so that its mode does not stay.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{text}")
}
