//! The events of a stream as lines of JSON.
//!
//! Text passes piece by piece. A call is told in one line when it is whole, since its arguments are an object here.

use super::super::chat::{Chunk, End, Piece, Timings, Tokens};
use super::super::raw::Object;
use super::super::{ApiError, Dialect, ErrorCode};
use super::{Call, Head, Said};

/// Writes the lines of one reply.
#[derive(Debug)]
pub(in super::super) struct Writer {
    head: Head,
    limit: usize,
    call: Option<Open>,
    tokens: Tokens,
    timings: Option<Timings>,
    end: Option<End>,
}

#[derive(Debug)]
struct Open {
    index: u64,
    name: String,
    arguments: String,
}

impl Writer {
    pub(in super::super) fn new(head: Head, limit: usize) -> Self {
        Self { head, limit, call: None, tokens: Tokens::default(), timings: None, end: None }
    }

    /// Takes one event of the engine's stream.
    pub(in super::super) fn chunk(&mut self, chunk: &Chunk, out: &mut Vec<u8>) -> Result<(), ApiError> {
        self.tokens.update(chunk);
        self.timings = chunk.timings.or(self.timings);
        for choice in chunk.choices.iter().filter(|choice| choice.index == 0) {
            for piece in choice.pieces() {
                self.piece(piece, out)?;
            }
            if let Some(end) = choice.end() {
                self.end = Some(end);
            }
        }
        Ok(())
    }

    /// The reply has an end, though the line that says so may not be written yet.
    pub(in super::super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Tokens so far.
    pub(in super::super) fn tokens(&self) -> Tokens {
        self.tokens
    }

    /// The engine's stream is complete.
    pub(in super::super) fn finish(&mut self, out: &mut Vec<u8>) {
        let Some(end) = self.end.take() else { return };
        self.close(out);
        write(self.head.done(&Said::default(), &end, self.tokens, self.timings), out);
    }

    /// The reply failed.
    pub(in super::super) fn fail(error: &ApiError, out: &mut Vec<u8>) {
        out.extend_from_slice(&error.event(Dialect::Ollama));
    }

    fn piece(&mut self, piece: Piece<'_>, out: &mut Vec<u8>) -> Result<(), ApiError> {
        let Piece::Call { index, name, arguments, .. } = piece else {
            self.close(out);
            let said = match piece {
                Piece::Reasoning(thinking) => Said { thinking, ..Said::default() },
                Piece::Text(content) => Said { content, ..Said::default() },
                Piece::Call { .. } => return Ok(()),
            };
            write(self.head.running(&said), out);
            return Ok(());
        };
        if self.call.as_ref().is_some_and(|call| call.index != index) {
            self.close(out);
        }
        let call = self.call.get_or_insert_with(|| Open { index, name: String::new(), arguments: String::new() });
        if call.name.is_empty() {
            call.name.push_str(name.unwrap_or_default());
        }
        call.arguments.push_str(arguments);
        if call.arguments.len() > self.limit {
            return Err(ApiError::new(ErrorCode::UpstreamFailed, "the arguments of a tool call are too large"));
        }
        Ok(())
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(call) = self.call.take() else { return };
        let calls = vec![Call { name: &call.name, arguments: &call.arguments }];
        write(self.head.running(&Said { calls, ..Said::default() }), out);
    }
}

fn write(object: Object, out: &mut Vec<u8>) {
    out.extend_from_slice(&object.into_bytes());
    out.push(b'\n');
}
