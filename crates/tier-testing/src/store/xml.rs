//! XML documents of the test store.

use std::fmt::Write;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::bucket::{ListEntry, ListPage, ListQuery};

const HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/// The modification time of every object.
pub(super) const MODIFIED: &str = "2026-01-01T00:00:00.000Z";

/// An error in S3's format.
pub(super) fn error(code: &str, message: &str, extra: &str) -> String {
    format!(
        "{HEAD}<Error><Code>{code}</Code><Message>{message}</Message>{extra}<RequestId>0</RequestId></Error>"
    )
}

/// A page of a listing. Names are percent-encoded at the client's request.
pub(super) fn page(bucket: &str, query: &ListQuery, page: &ListPage, encoded: bool) -> String {
    let encode = |name: &str| match encoded {
        true => utf8_percent_encode(name, NON_ALPHANUMERIC).to_string(),
        false => name.to_owned(),
    };
    let mut text = String::with_capacity(256 + page.lines.len() * 200);
    text.push_str(HEAD);
    text.push_str("<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>");
    escape(&mut text, bucket);
    text.push_str("</Name><Prefix>");
    escape(&mut text, &encode(&query.prefix));
    text.push_str("</Prefix>");
    if encoded {
        text.push_str("<EncodingType>url</EncodingType>");
    }
    for line in &page.lines {
        match line {
            ListEntry::Key { key, size, tag } => {
                text.push_str("<Contents><Key>");
                escape(&mut text, &encode(key));
                text.push_str("</Key><LastModified>");
                text.push_str(MODIFIED);
                text.push_str("</LastModified>");
                if !tag.is_empty() {
                    text.push_str("<ETag>");
                    escape(&mut text, tag);
                    text.push_str("</ETag>");
                }
                // Writing to a string cannot fail.
                let _ = write!(text, "<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>");
            }
            ListEntry::Prefix(prefix) => {
                text.push_str("<CommonPrefixes><Prefix>");
                escape(&mut text, &encode(prefix));
                text.push_str("</Prefix></CommonPrefixes>");
            }
        }
    }
    let (count, most, truncated) = (page.lines.len(), query.max_keys, page.next.is_some());
    let _ = write!(
        text,
        "<KeyCount>{count}</KeyCount><MaxKeys>{most}</MaxKeys><IsTruncated>{truncated}</IsTruncated>"
    );
    if let Some(next) = &page.next {
        text.push_str("<NextContinuationToken>");
        escape(&mut text, &token(next));
        text.push_str("</NextContinuationToken>");
    }
    text.push_str("</ListBucketResult>");
    text
}

/// Encodes a name as an opaque token, like S3.
fn token(name: &str) -> String {
    name.bytes().fold(String::with_capacity(1 + name.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Decodes a token.
pub(super) fn name_of(token: &str) -> Option<String> {
    let digits: Vec<u8> =
        token.chars().map(|digit| digit.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes = digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect();
    String::from_utf8(bytes).ok()
}

fn escape(text: &mut String, raw: &str) {
    for character in raw.chars() {
        match character {
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '&' => text.push_str("&amp;"),
            '"' => text.push_str("&quot;"),
            other if u32::from(other) < 0x20 => {
                let _ = write!(text, "&#x{:x};", u32::from(other));
            }
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_decode_to_names() {
        for name in ["", "a", "b/\u{e9}\u{4e16}.png"] {
            assert_eq!(name_of(&token(name)).as_deref(), Some(name));
        }
        assert!(name_of("not hexadecimal").is_none());
    }
}
