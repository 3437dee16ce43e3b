//! Decodes arbitrary bytes as a header, a list of samples and a list of tags. The result encodes to
//! the same bytes, or is an error.
#![no_main]

use foreread_peer::frame::{RequestedSample, HEADER, FrameHeader, decode_tags, encode_tags};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(header) = bytes.first_chunk::<HEADER>()
        && let Ok(decoded) = FrameHeader::decode(header)
    {
        assert_eq!(decoded.encode(), *header);
    }
    if let Ok(sample_requests) = RequestedSample::decode(bytes) {
        assert_eq!(&RequestedSample::encode(sample_requests.into_iter())[..], bytes);
    }
    if let Ok(tags) = decode_tags(bytes) {
        assert_eq!(&encode_tags(&tags.collect::<Vec<_>>())[..], bytes);
    }
});
