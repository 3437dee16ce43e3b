//! `foreread token` as a user sees it.

use crate::support::{foreread, output};

/// The output of the command, which must print nothing to standard error.
fn printed() -> String {
    let printed = output(&mut foreread(["token"]));
    assert!(printed.status.success() && printed.stderr.is_empty(), "{printed:?}");
    String::from_utf8(printed.stdout).unwrap()
}

#[test]
// semantics: RANK-32
fn token_is_new_each_time_and_printed_alone() {
    let (one, other) = (printed(), printed());
    assert_ne!(one, other);
    for text in [one, other] {
        let token = text.strip_suffix('\n').unwrap();
        assert_eq!(token.len(), 32, "{token}");
        assert!(token.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{token}");
    }
}

#[test]
// semantics: RANK-32
fn weak_token_is_refused_with_its_bits_and_the_remedy() {
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("a"), b"a").unwrap();
    for (token, bits) in [("hunter2", 36), ("0123456789abcdef", 64), ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 4)]
    {
        let mut command = foreread(["load", data.path().to_str().unwrap()]);
        command.envs([("RANK", "1"), ("WORLD_SIZE", "2"), ("FOREREAD_MEET", "127.0.0.1:1")]);
        let printed = output(command.env("FOREREAD_TOKEN", token));
        let line = String::from_utf8(printed.stderr).unwrap();
        assert_eq!(printed.status.code(), Some(1), "{line}");
        let found = format!(
            "FOREREAD_TOKEN cannot be used: a token needs 128 random bits and this one has at most {bits}"
        );
        assert!(line.contains(&found) && line.contains("`foreread token` prints a new one"), "{line}");
        assert!(!line.contains(token), "{line}");
    }
}
