//! Ranks of one node meet at a socket with a predictable name. Other processes' sockets there have
//! no effect.

use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::ranks::{RankJob, assert_digests};
use crate::support::{Samples, cache_root, number};

/// Another user.
const OTHER: u32 = 64_123;

/// The launcher's part of the socket name for this port.
fn words(port: &str) -> String {
    format!("RANK and WORLD_SIZE {port}")
}

/// The name that rank 0 of user `uid` tries at this attempt.
fn name(uid: u32, attempt: u32, port: &str) -> String {
    let digest = Sha256::digest(format!("foreread {uid} {attempt} 0 {}", words(port)));
    let hex: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("foreread-{hex}")
}

/// A socket with this name that belongs to `user`. Only the calling thread switches to that user.
fn listen(name: &str, user: Option<u32>) -> UnixListener {
    let name = name.to_owned();
    let listen = move || {
        if let Some(user) = user {
            let uid = rustix::process::Uid::from_raw(user);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        }
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
    };
    std::thread::spawn(listen).join().unwrap()
}

/// Two ranks that a user started manually on this machine, without token and directory.
fn two(port: &str, samples: &Samples) -> Vec<Value> {
    let job = RankJob::new(2, samples, &["--epochs", "2", "--memory", "20MiB", "--digest"]);
    let command = |rank| -> Command {
        let mut command = job.command(rank);
        command.env_remove("FOREREAD_MEET").env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port);
        command
    };
    let ranks: Vec<_> = (0..2).map(|rank| job.start_as(&mut command(rank))).collect();
    ranks.into_iter().map(|rank| rank.wait().json()).collect()
}

/// A port as text, without a listener.
fn port(number: u32) -> String {
    (30_000 + (std::process::id() * 8 + number) % 30_000).to_string()
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn rank_0s_socket_names_are_as_computed() {
    let (samples, port) = (Samples::awkward(60, 2_000), port(0));
    // A socket of this user, which accepts connections and sends nothing.
    let silent: Vec<_> = (0..2).map(|attempt| listen(&name(own_uid(), attempt, &port), None)).collect();
    let reports = two(&port, &samples);
    assert_digests(&samples, &reports);
    for one in &silent {
        one.set_nonblocking(true).unwrap();
        assert!(one.accept().is_ok(), "a rank looked there");
    }
}

#[test]
// semantics: RANK-8
fn other_users_sockets_block_no_rank_and_get_no_data() {
    if cache_root(Path::new("")) != Path::new("foreread-cache-0") {
        println!("skipped: only root can become other users");
        return;
    }
    let (samples, port) = (Samples::awkward(60, 2_000), port(1));
    let foreign: Vec<_> = (0..7).map(|attempt| listen(&name(0, attempt, &port), Some(OTHER))).collect();
    let reports = two(&port, &samples);
    assert_digests(&samples, &reports);
    let shared = number(&reports[1], "/epochs/1/reads/agent/samples");
    assert!(shared > 0, "they work together");
    for one in &foreign {
        one.set_nonblocking(true).unwrap();
        while let Ok((mut stream, _)) = one.accept() {
            stream.set_nonblocking(false).unwrap();
            let mut heard = Vec::new();
            // It was closed or reset without data.
            let _ = stream.read_to_end(&mut heard);
            assert!(heard.is_empty(), "{heard:?}");
        }
    }
}
