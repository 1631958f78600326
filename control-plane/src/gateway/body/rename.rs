//! Gives a reply the model name its client asked for, where the engine answers with another.
//!
//! Most engines echo the name, or are launched with it; then the first frame shows that nothing is to be done and the
//! rest of the stream passes untouched. Otherwise the engine's own name, exactly as it stands in the first frame, is
//! replaced in every frame that holds it.

use bytes::{Bytes, BytesMut};
use lifeboat_engines::dialect;
use memchr::memmem;

/// Longest cut frame that is held back; a longer one passes as it is.
const LONGEST_FRAME: usize = 1 << 20;
const KEY: &[u8] = b"\"model\":";

/// Renames within one stream of server-sent events.
#[derive(Debug)]
pub(super) struct Rename {
    asked: String,
    state: State,
    /// Begin of a frame whose end has not come yet.
    cut: BytesMut,
}

#[derive(Debug)]
enum State {
    /// No name seen yet.
    Unknown,
    /// The engine uses the name asked for.
    Same,
    /// Replace this by that.
    Other { theirs: Vec<u8>, ours: Vec<u8> },
}

impl Rename {
    pub(super) fn new(asked: String) -> Self {
        Self { asked, state: State::Unknown, cut: BytesMut::new() }
    }

    /// Passes the next piece on, renamed; may hold a cut frame back.
    pub(super) fn pass(&mut self, piece: Bytes) -> Bytes {
        if matches!(self.state, State::Same) {
            if self.cut.is_empty() {
                return piece;
            }
            self.cut.extend_from_slice(&piece);
            return self.cut.split().freeze();
        }
        if self.cut.is_empty() && piece.ends_with(b"\n\n") {
            return self.frames(piece);
        }
        self.cut.extend_from_slice(&piece);
        let whole = if self.cut.len() > LONGEST_FRAME { self.cut.len() } else { whole_frames(&self.cut) };
        let frames = self.cut.split_to(whole).freeze();
        self.frames(frames)
    }

    /// What is still held back; nothing will follow.
    pub(super) fn close(&mut self) -> Bytes {
        let rest = self.cut.split().freeze();
        self.frames(rest)
    }

    fn frames(&mut self, frames: Bytes) -> Bytes {
        if matches!(self.state, State::Unknown)
            && let Some(found) = find_name(&frames)
        {
            self.state = if found.name == self.asked {
                State::Same
            } else {
                let ours = [&frames[found.start..found.value], encode(&self.asked).as_bytes()].concat();
                State::Other { theirs: frames[found.start..found.end].to_vec(), ours }
            };
        }
        match &self.state {
            State::Other { theirs, ours } => replace(frames, theirs, ours),
            State::Unknown | State::Same => frames,
        }
    }
}

/// A string as JSON.
pub(in crate::gateway) fn encode(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The first `"model":"…"` of a document.
struct Found {
    start: usize,
    /// Where the value begins.
    value: usize,
    end: usize,
    name: String,
}

fn find_name(bytes: &[u8]) -> Option<Found> {
    memmem::find_iter(bytes, KEY).find_map(|start| {
        let after = start + KEY.len();
        let value = after + bytes[after..].iter().take_while(|byte| **byte == b' ').count();
        let mut values = serde_json::Deserializer::from_slice(&bytes[value..]).into_iter::<String>();
        let name = values.next()?.ok()?;
        Some(Found { start, value, end: value + values.byte_offset(), name })
    })
}

/// Length of the whole frames at the start of `bytes`.
fn whole_frames(bytes: &[u8]) -> usize {
    let line_feeds = memmem::rfind(bytes, b"\n\n").map_or(0, |at| at + 2);
    let with_returns = memmem::rfind(bytes, b"\r\n\r\n").map_or(0, |at| at + 4);
    line_feeds.max(with_returns)
}

fn replace(frames: Bytes, theirs: &[u8], ours: &[u8]) -> Bytes {
    let mut found = memmem::find_iter(&frames, theirs).peekable();
    if found.peek().is_none() {
        return frames;
    }
    let mut renamed = BytesMut::with_capacity(frames.len() + ours.len());
    let mut from = 0;
    for at in found {
        renamed.extend_from_slice(&frames[from..at]);
        renamed.extend_from_slice(ours);
        from = at + theirs.len();
    }
    renamed.extend_from_slice(&frames[from..]);
    renamed.freeze()
}

/// Renames a whole JSON document by its own `model` (objects inside may have one too: the input of a tool, say);
/// `None` = it has no name, or the one asked for.
pub(in crate::gateway) fn rename_document(document: &[u8], asked: &str) -> Option<Bytes> {
    let (theirs, span) = dialect::peek(document).ok()?.model?;
    (theirs != asked).then(|| dialect::splice_model(document, &span, asked).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(asked: &str, stream: &str, step: usize) -> String {
        let mut rename = Rename::new(asked.to_owned());
        let mut out = Vec::new();
        for piece in stream.as_bytes().chunks(step) {
            out.extend_from_slice(&rename.pass(Bytes::copy_from_slice(piece)));
        }
        out.extend_from_slice(&rename.close());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_frame_with_the_engines_name_gets_the_one_asked_for_whatever_the_pieces() {
        let stream = "data: {\"id\":1}\n\ndata: {\"model\":\"/m/x.gguf\",\"text\":\"\\\"model\\\":\\\"/m/x.gguf\\\"\"}\n\ndata: {\"model\":\"/m/x.gguf\"}\n\ndata: [DONE]\n\n";
        let expected = "data: {\"id\":1}\n\ndata: {\"model\":\"a \\\"b\\\": é/ü\",\"text\":\"\\\"model\\\":\\\"/m/x.gguf\\\"\"}\n\ndata: {\"model\":\"a \\\"b\\\": é/ü\"}\n\ndata: [DONE]\n\n";
        for step in 1..=stream.len() {
            assert_eq!(run("a \"b\": é/ü", stream, step), expected, "step {step}");
        }
    }

    #[test]
    fn a_name_that_only_looks_different_is_left_alone() {
        let stream = "data: {\"model\": \"caf\\u00e9\"}\n\ndata: {\"model\": \"other\"}\n\n";
        assert_eq!(run("café", stream, stream.len()), stream);
    }

    #[test]
    fn pieces_pass_without_a_copy_once_the_names_are_known_to_agree() {
        let mut rename = Rename::new("m".to_owned());
        rename.pass(Bytes::from_static(b"data: {\"model\":\"m\"}\n\n"));
        let piece = Bytes::from_static(b"data: {\"model\":\"m\",\"half");
        assert_eq!(rename.pass(piece.clone()).as_ptr(), piece.as_ptr());
    }

    #[test]
    fn only_the_documents_own_name_is_changed() {
        let document = Bytes::from_static(b"{\"content\":[{\"input\":{\"model\":\"x\"}}],\"model\":\"x\"}");
        assert_eq!(rename_document(&document, "y").unwrap(), "{\"content\":[{\"input\":{\"model\":\"x\"}}],\"model\":\"y\"}");
    }

    #[test]
    fn a_document_is_renamed_only_where_needed() {
        let document = Bytes::from_static(b"{\"choices\":[],\"model\": \"x\",\"usage\":{}}");
        assert_eq!(rename_document(&document, "alias").unwrap(), "{\"choices\":[],\"model\": \"alias\",\"usage\":{}}");
        assert!(rename_document(&document, "x").is_none());
        assert!(rename_document(&Bytes::from_static(b"{\"model\":null}"), "x").is_none());
    }
}
