//! Pax headers: records `LENGTH KEYWORD=VALUE\n`. The length is that of the whole record.

/// The relevant content of pax headers (and GNU's long names) for a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pax {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) is_sparse: bool,
}

impl Pax {
    /// Adds the records. A later record of the same keyword replaces the earlier one. An empty
    /// value removes it.
    pub(crate) fn read(&mut self, mut records: &[u8]) -> Result<(), String> {
        while !records.is_empty() {
            if records.iter().all(|&byte| byte == 0) {
                return Ok(()); // some writers include the padding
            }
            let (keyword, value, rest) = record(records).ok_or("a pax header is damaged")?;
            records = rest;
            match keyword {
                b"path" => self.path = (!value.is_empty()).then(|| value.to_vec()),
                b"size" => self.size = size(value)?,
                _ if keyword.starts_with(b"GNU.sparse.") => self.is_sparse = true,
                _ => {}
            }
        }
        Ok(())
    }
}

fn size(value: &[u8]) -> Result<Option<u64>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    let digits =
        std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let size = digits.and_then(|digits| digits.parse().ok());
    size.map(Some).ok_or_else(|| "the size in a pax header is not a number or too large".to_owned())
}

/// The first record's keyword and value, and the bytes after it.
fn record(records: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = records.iter().take(20).position(|&byte| byte == b' ')?;
    let digits = std::str::from_utf8(&records[..blank]).ok()?;
    let length: usize = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    let text = records.get(blank + 1..length)?.strip_suffix(b"\n")?;
    let equals = text.iter().position(|&byte| byte == b'=')?;
    Some((&text[..equals], &text[equals + 1..], &records[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(records: &[u8]) -> Result<Pax, String> {
        let mut pax = Pax::default();
        pax.read(records).map(|()| pax)
    }

    #[test]
    fn records_are_read_and_the_last_wins() {
        let pax = read(b"12 path=a/b\n20 atime=1623.250000\n13 size=1234\n10 path=c\n").unwrap_err();
        assert_eq!(pax, "a pax header is damaged", "a length that is wrong");
        let pax = read(b"12 path=a/b\n17 mtime=16.2500\n13 size=1234\n10 path=c\n").unwrap();
        assert_eq!((pax.path.as_deref(), pax.size, pax.is_sparse), (Some(&b"c"[..]), Some(1234), false));
        assert_eq!(read(b"10 path=c\n8 path=\n\0\0\0").unwrap(), Pax::default());
        assert!(read(b"22 GNU.sparse.major=1\n").unwrap().is_sparse);
        // A value may contain any bytes, also separators.
        assert_eq!(read(b"15 path=a=\nb c\n").unwrap().path.unwrap(), b"a=\nb c");
    }

    #[test]
    fn invalid_record_is_refused() {
        for bad in [
            &b"x"[..],
            b"99 path=a\n",
            b"0 path=a\n",
            b"3 path=a\n",
            b"-9 path=a\n",
            b"99999999999999999999999 path=a\n",
            b"10 path=a b\n",
            b"9 pathab\n",
            b"20 size=99999999999999999999999\n",
            b"11 size=-1\n",
        ] {
            assert!(read(bad).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
    }
}
