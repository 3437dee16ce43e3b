//! Foreign programs of the same user: bounded, refused, and without effect on workers.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use foreread_store::{Client, Server, StoreErrorKind};
use foreread_tier_testing::until;
use foreread_types::SampleId;
use proptest::prelude::*;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};

use crate::rig::{TestEngine, client, get, server, sized};

const MIB: u64 = 1 << 20;

/// A connection that has sent nothing.
fn silent(server: &Server) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let address = server.address();
    let (name, _) = address.split_once(':').unwrap();
    connect(&socket, &SocketAddrUnix::new_abstract_name(&name.as_bytes()[1..]).unwrap()).unwrap();
    socket
}

/// A record: its length in three bytes, its kind, and its content.
fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let head = content.len() as u32 | u32::from(kind) << 24;
    [&head.to_le_bytes(), content].concat()
}

/// A client's first message: the magic number, the versions and the secret.
fn greeting(address: &str) -> Vec<u8> {
    let (_, digits) = address.split_once(':').unwrap();
    let mut content = b"frsh".to_vec();
    content.extend(3_u16.to_le_bytes());
    content.extend(3_u16.to_le_bytes());
    content.extend(u128::from_str_radix(digits, 16).unwrap().to_be_bytes());
    record(4, &content)
}

/// An authenticated connection without a client.
fn bare(server: &Server) -> OwnedFd {
    let socket = silent(server);
    send(&socket, &greeting(&server.address()), SendFlags::NOSIGNAL).unwrap();
    let mut greeting = [0; 100];
    assert!(recv(&socket, &mut greeting, RecvFlags::empty()).unwrap().1 > 0);
    socket
}

/// Whether the server has ended the connection.
fn is_disconnected(socket: &OwnedFd) -> bool {
    let mut buffer = [0; 100];
    loop {
        match recv(socket, &mut buffer, RecvFlags::empty()) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return true,
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn request(id: u64) -> Vec<u8> {
    let mut content = vec![0; 8];
    content.extend(id.to_le_bytes());
    content.extend([0; 8]);
    record(1, &content)
}

#[test]
// semantics: WORKER-7
fn malformed_message_ends_only_its_connection() {
    let server = server(TestEngine::threaded(), MIB);
    let good = client(&server);
    let held = get(&good, SampleId(5));
    let cases = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0],
        vec![255; 60_000],
        vec![1, 2, 3],
        record(2, &[0; 4]), // releases a slot that it does not hold
        record(2, &[255; 4]),
        record(3, &[0, 0, 0, 0, 255, 255]),   // a call without a name
        record(3, &[0, 0, 0, 0, 9, 0, b'x']), // with a truncated name
        record(1, &[0; 23]),                  // a truncated request
        request(5)[..27].to_vec(),
        record(16, &[1; 4]), // only servers send this
        record(99, &[]),
    ];
    for case in cases {
        let socket = bare(&server);
        send(&socket, &case, SendFlags::NOSIGNAL).unwrap();
        assert!(is_disconnected(&socket), "{case:?}");
        get(&good, SampleId(6));
    }
    drop(held);
    drop(good);
    until("all is given back", || server.status().clients == 0 && server.status().used_bytes == 0);
}

#[test]
// semantics: WORKER-7
fn process_of_the_same_user_without_the_secret_is_refused() {
    let server = server(TestEngine::threaded(), MIB);
    let good = client(&server);
    let right = greeting(&server.address());
    let mut nearly = right.clone();
    *nearly.last_mut().unwrap() ^= 1;
    // Without the secret, with a wrong one, truncated, without the kind, and with a record after
    // it.
    let messages = [&request(5)[..], &nearly, &right[..7], &right[1..], &[&right[..], &request(5)].concat()];
    for message in messages {
        let socket = silent(&server);
        send(&socket, message, SendFlags::NOSIGNAL).unwrap();
        let mut answer = [0; 200];
        let (_, length) = recv(&socket, &mut answer, RecvFlags::empty()).unwrap();
        assert_eq!(answer[3], 17, "{message:?}: {:?}", String::from_utf8_lossy(&answer[..length]));
        assert!(is_disconnected(&socket), "{message:?}");
        get(&good, SampleId(6));
        assert_eq!(server.status().clients, 1);
    }
    let address = server.address();
    let other =
        address[..address.len() - 4].to_owned() + if address.ends_with("0000") { "1111" } else { "0000" };
    let error = Client::connect(&other).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(error.to_string().contains("does not have the secret"), "{error}");
}

#[test]
fn oversized_message_ends_the_connection() {
    let server = server(TestEngine::threaded(), MIB);
    let socket = bare(&server);
    let long: Vec<u8> = (0..3000).flat_map(request).collect();
    assert!(long.len() > 1 << 16);
    send(&socket, &long, SendFlags::NOSIGNAL).unwrap();
    assert!(is_disconnected(&socket));
}

#[test]
fn slots_are_released_once() {
    let server = server(TestEngine::threaded(), MIB);
    let socket = bare(&server);
    send(&socket, &request(sized(10_000, 5).0), SendFlags::NOSIGNAL).unwrap();
    let mut answer = [0; 100];
    // The region, and the lease.
    assert_eq!(recv(&socket, &mut answer, RecvFlags::empty()).unwrap().1, 16);
    assert_eq!(recv(&socket, &mut answer, RecvFlags::empty()).unwrap().1, 32);
    assert_eq!(server.status().used_bytes, 10_000);
    send(&socket, &record(2, &[0; 4]), SendFlags::NOSIGNAL).unwrap();
    until("it is given back", || server.status().used_bytes == 0);
    send(&socket, &record(2, &[0; 4]), SendFlags::NOSIGNAL).unwrap();
    assert!(is_disconnected(&socket));
}

#[test]
fn endless_requests_disconnect_the_worker() {
    let engine = TestEngine::threaded();
    let server = server(Arc::clone(&engine), MIB);
    let good = client(&server);
    let socket = bare(&server);
    // Samples that never arrive: the list of open requests is bounded.
    let many: Vec<u8> = (0..2000).flat_map(|number| request(crate::rig::PARKED + number)).collect();
    while send(&socket, &many, SendFlags::NOSIGNAL).is_ok() {}
    assert!(is_disconnected(&socket));
    get(&good, SampleId(7));
    until("it is forgotten", || server.status().clients == 1);
}

#[test]
fn unread_answers_disconnect_the_worker() {
    let server = server(TestEngine::direct(), MIB);
    let good = client(&server);
    let socket = bare(&server);
    let many: Vec<u8> = std::iter::repeat_n(request(crate::rig::MISSING.0), 1000).flatten().collect();
    let mut sent = 0;
    loop {
        match send(&socket, &many, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(_) => sent += 1,
            Err(Errno::AGAIN) => std::thread::yield_now(),
            Err(_) => break,
        }
        assert!(sent < 10_000, "{sent} thousand questions were taken");
    }
    get(&good, SampleId(7));
}

#[test]
fn silent_connections_are_bounded() {
    let server = server(TestEngine::threaded(), MIB);
    let mut silent = Vec::new();
    let refused = loop {
        match Client::connect(&server.address()) {
            Ok(client) => silent.push(client),
            Err(error) => break error,
        }
        assert!(silent.len() <= 1024);
    };
    // The limit of open files comes first, or the server's own.
    assert!(
        [StoreErrorKind::Refused, StoreErrorKind::System, StoreErrorKind::Gone].contains(&refused.kind()),
        "{refused}"
    );
    get(&silent[0], SampleId(3));
    drop(silent);
    get(&client(&server), SampleId(3));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Another worker gets its samples, whatever messages a program sends.
    #[test]
    fn random_messages_harm_no_other_worker(
        messages in proptest::collection::vec(
            (0_u8..6, proptest::collection::vec(any::<u8>(), 0..64)), 1..12
        )
    ) {
        let server = server(TestEngine::threaded(), MIB);
        let good = client(&server);
        let socket = bare(&server);
        for (kind, message) in messages {
            if send(&socket, &record(kind, &message), SendFlags::NOSIGNAL).is_err() {
                break;
            }
        }
        get(&good, SampleId(9));
        drop(socket);
        drop(good);
        until("all is given back", || server.status().used_bytes == 0 && server.status().clients == 0);
    }
}
