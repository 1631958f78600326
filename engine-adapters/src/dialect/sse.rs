//! Server-sent events, split on a copy of the bytes that go to the client.
//!
//! Chunks arrive cut anywhere. An event is handed out when its blank line is there; one that grows beyond the
//! bound is dropped whole, so that a hostile or broken stream costs a fixed amount of memory. Nothing here may
//! hold back or change a byte on its way to the client.

/// Largest event that is looked at, bytes.
pub const MAX_EVENT_BYTES: usize = 1 << 20;

/// Splits a stream into the `data` of its events.
#[derive(Debug, Default)]
pub struct SseReader {
    /// The line that has not ended yet.
    line: Vec<u8>,
    /// Data lines of the event that has not ended yet, joined by newlines.
    data: Vec<u8>,
    /// The event has at least one data line.
    has_data: bool,
    /// The event is too large and is dropped up to its end.
    dropping: bool,
    /// The last byte was a carriage return: a newline right behind it belongs to it.
    after_return: bool,
    /// Events dropped so far.
    dropped: u64,
}

impl SseReader {
    /// Takes the next bytes and calls `event` with the data of each event that ends in them.
    pub fn push(&mut self, chunk: &[u8], mut event: impl FnMut(&[u8])) {
        let mut rest = chunk;
        while !rest.is_empty() {
            if std::mem::take(&mut self.after_return) && rest.first() == Some(&b'\n') {
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', rest) else {
                self.keep(rest);
                return;
            };
            let (line, ending) = rest.split_at(end);
            self.keep(line);
            self.after_return = ending.first() == Some(&b'\r');
            rest = ending.get(1..).unwrap_or_default();
            self.end_line(&mut event);
        }
    }

    /// An event was too large and was left out: what was read is not the whole stream.
    pub fn has_dropped(&self) -> bool {
        self.dropped > 0
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.dropping || self.line.len() + self.data.len() + bytes.len() > MAX_EVENT_BYTES {
            // A dropped line must still be told from a blank one.
            self.dropped += u64::from(!self.dropping);
            self.dropping = true;
            self.data = Vec::new();
            if !bytes.is_empty() {
                self.line = vec![b':'];
            }
            return;
        }
        self.line.extend_from_slice(bytes);
    }

    fn end_line(&mut self, event: &mut impl FnMut(&[u8])) {
        if self.line.is_empty() {
            if self.has_data && !self.dropping {
                event(&self.data);
            }
            self.data.clear();
            self.has_data = false;
            self.dropping = false;
            return;
        }
        if let Some(value) = self.line.strip_prefix(b"data").filter(|_| !self.dropping) {
            let value = match value {
                [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
                [] => Some(value),
                _ => None,
            };
            if let Some(value) = value {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
                self.has_data = true;
            }
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events(chunks: &[&[u8]]) -> Vec<String> {
        let mut reader = SseReader::default();
        let mut all = Vec::new();
        for chunk in chunks {
            reader.push(chunk, |data| all.push(String::from_utf8_lossy(data).into_owned()));
        }
        all
    }

    #[test]
    fn events_are_split_whatever_the_line_endings() {
        for text in ["data: a\n\ndata: b\n\n", "data:a\r\n\r\ndata:b\r\n\r\n", "data: a\r\rdata: b\r\r"] {
            assert_eq!(events(&[text.as_bytes()]), ["a", "b"], "{text:?}");
        }
    }

    #[test]
    fn comments_names_and_unknown_fields_are_skipped_and_data_lines_joined() {
        assert_eq!(events(&[b": ping\n\nevent: x\nid: 1\ndata: a\ndata: b\ndatabase: no\n\ndata\n\n"]), ["a\nb", ""]);
    }

    #[test]
    fn an_event_without_its_blank_line_is_not_handed_out() {
        assert!(events(&[b"data: a\n"]).is_empty());
    }

    #[test]
    fn an_event_that_is_too_large_is_dropped_and_the_next_one_is_read() {
        let huge = vec![b'x'; 300_000];
        let mut chunks: Vec<&[u8]> = vec![b"data: "];
        chunks.extend([&huge[..]; 5]);
        chunks.extend([&b"\ndata: more\n\ndata: ok\n\n"[..]]);
        assert_eq!(events(&chunks), ["ok"]);
        let mut reader = SseReader::default();
        assert!(!reader.has_dropped());
        for chunk in chunks {
            reader.push(chunk, |_| ());
        }
        assert!(reader.has_dropped());
    }

    proptest! {
        #[test]
        fn cuts_do_not_change_what_is_read_and_memory_stays_bounded(
            pieces in proptest::collection::vec(prop_oneof![
                Just(b"data: ".to_vec()), Just(b"\n".to_vec()), Just(b"\r".to_vec()), Just(b"\n\n".to_vec()), Just(b":".to_vec()),
                proptest::collection::vec(any::<u8>(), 0..8),
            ], 0..64),
            cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..8),
        ) {
            let whole = pieces.concat();
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
            places.extend([0, whole.len()]);
            places.sort_unstable();
            let chunks: Vec<&[u8]> = places.windows(2).map(|pair| &whole[pair[0]..pair[1]]).collect();
            prop_assert_eq!(events(&chunks), events(&[&whole]));
        }
    }
}
