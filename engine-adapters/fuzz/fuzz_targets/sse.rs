//! Hostile streams: events are the same however the bytes are cut, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lifeboat_engines::dialect::sse::SseReader;
use lifeboat_engines::dialect::{BodyReader, StreamReader};

fn events<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let mut reader = SseReader::default();
    let mut all = Vec::new();
    for chunk in chunks {
        reader.push(chunk, |data| all.push(data.to_vec()));
    }
    all
}

fuzz_target!(|bytes: &[u8]| {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let cut = usize::from(*size).max(1);
    assert_eq!(events(bytes.chunks(cut)), events(std::iter::once(bytes)));
    let mut stream = StreamReader::default();
    let mut body = BodyReader::default();
    for chunk in bytes.chunks(cut) {
        stream.push(chunk);
        body.push(chunk);
    }
    let _ = (stream.usage(), stream.is_finished(), stream.error(), body.usage());
});
