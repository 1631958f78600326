//! The events of a chat stream as the events of a message.
//!
//! A message opens with its first piece, not before: until then another engine may still take the request. One block is
//! open at a time, since clients read them one behind the other; engines send one call behind the other too, and one
//! that mixes them is told as an error rather than mended.

use serde::Serialize;

use super::super::chat::{Chunk, End, Piece, Tokens};
use super::super::{ApiError, Dialect, ErrorCode};
use super::reply::made_id;
use super::{Usage, stop_reason};

/// Writes the events of one message.
#[derive(Debug)]
pub(in super::super) struct Writer {
    id: String,
    model: String,
    begun: bool,
    /// Blocks begun so far; the open one is the last.
    blocks: u64,
    open: Option<Block>,
    /// A call whose name has not come yet.
    unnamed: Option<Unnamed>,
    /// Calls begun, by the highest index the engine gave one.
    last_call: Option<u64>,
    tokens: Tokens,
    end: Option<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Call(u64),
}

#[derive(Debug)]
struct Unnamed {
    index: u64,
    id: Option<String>,
    arguments: String,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart { message: Start<'a> },
    ContentBlockStart { index: u64, content_block: BlockStart<'a> },
    ContentBlockDelta { index: u64, delta: Delta<'a> },
    ContentBlockStop { index: u64 },
    MessageDelta { delta: Stop<'a>, usage: Usage },
    MessageStop,
}

#[derive(Serialize)]
struct Start<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: [(); 0],
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'static str>,
    usage: Usage,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum BlockStart<'a> {
    Thinking { thinking: &'static str, signature: &'static str },
    Text { text: &'static str },
    ToolUse { id: &'a str, name: &'a str, input: Empty },
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Delta<'a> {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'static str },
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "input_json_delta")]
    Input { partial_json: &'a str },
}

#[derive(Serialize)]
struct Stop<'a> {
    stop_reason: &'static str,
    stop_sequence: Option<&'a str>,
}

impl Event<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        super::super::from_chat::write_event(out, self.name(), self);
    }
}

impl Writer {
    pub(in super::super) fn new(id: String, model: String) -> Self {
        Self { id, model, begun: false, blocks: 0, open: None, unnamed: None, last_call: None, tokens: Tokens::default(), end: None }
    }

    /// Takes one event of the chat.
    pub(in super::super) fn chunk(&mut self, chunk: &Chunk, out: &mut Vec<u8>) -> Result<(), ApiError> {
        self.tokens.update(chunk);
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

    /// The reply has an end, though the events that say so may not be written yet.
    pub(in super::super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Tokens so far.
    pub(in super::super) fn tokens(&self) -> Tokens {
        self.tokens
    }

    /// The chat stream is complete.
    pub(in super::super) fn finish(&mut self, out: &mut Vec<u8>) {
        let Some(end) = self.end.take() else { return };
        self.begin(out);
        if let Some(Unnamed { index, id, arguments }) = self.unnamed.take() {
            self.open_call(index, id.as_deref(), "", out);
            self.arguments(&arguments, out);
        }
        self.close(out);
        let (stop_reason, stop_sequence) = stop_reason(&end, self.last_call.is_some());
        Event::MessageDelta { delta: Stop { stop_reason, stop_sequence }, usage: Usage::of(self.tokens) }.write(out);
        Event::MessageStop.write(out);
    }

    /// The reply failed.
    pub(in super::super) fn fail(error: &ApiError, out: &mut Vec<u8>) {
        out.extend_from_slice(&error.event(Dialect::Anthropic));
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if self.begun {
            return;
        }
        self.begun = true;
        let usage = Usage::of(Tokens { completion: 0, ..self.tokens });
        let message = Start {
            id: &self.id,
            kind: "message",
            role: "assistant",
            model: &self.model,
            content: [],
            stop_reason: None,
            stop_sequence: None,
            usage,
        };
        Event::MessageStart { message }.write(out);
    }

    fn piece(&mut self, piece: Piece<'_>, out: &mut Vec<u8>) -> Result<(), ApiError> {
        self.begin(out);
        match piece {
            Piece::Reasoning(thinking) => {
                if self.open != Some(Block::Thinking) {
                    self.open(Block::Thinking, BlockStart::Thinking { thinking: "", signature: "" }, out);
                }
                self.delta(Delta::Thinking { thinking }, out);
            }
            Piece::Text(text) => {
                if self.open != Some(Block::Text) {
                    self.open(Block::Text, BlockStart::Text { text: "" }, out);
                }
                self.delta(Delta::Text { text }, out);
            }
            Piece::Call { index, id, name, arguments } => self.call(index, id, name, arguments, out)?,
        }
        Ok(())
    }

    fn call(&mut self, index: u64, id: Option<&str>, name: Option<&str>, arguments: &str, out: &mut Vec<u8>) -> Result<(), ApiError> {
        if self.open == Some(Block::Call(index)) {
            self.arguments(arguments, out);
            return Ok(());
        }
        if self.last_call.is_some_and(|last| index <= last) {
            if arguments.is_empty() {
                return Ok(());
            }
            return Err(ApiError::new(ErrorCode::UpstreamFailed, "the engine mixed the pieces of several tool calls"));
        }
        let mut unnamed =
            self.unnamed.take().filter(|unnamed| unnamed.index == index).unwrap_or(Unnamed { index, id: None, arguments: String::new() });
        unnamed.id = unnamed.id.or_else(|| id.map(str::to_owned));
        unnamed.arguments.push_str(arguments);
        match name {
            Some(name) => {
                self.open_call(index, unnamed.id.as_deref(), name, out);
                self.arguments(&unnamed.arguments, out);
            }
            None => self.unnamed = Some(unnamed),
        }
        Ok(())
    }

    fn open_call(&mut self, index: u64, id: Option<&str>, name: &str, out: &mut Vec<u8>) {
        self.last_call = Some(index);
        let id = id.map_or_else(|| made_id(&self.id, index), str::to_owned);
        self.open(Block::Call(index), BlockStart::ToolUse { id: &id, name, input: Empty {} }, out);
    }

    fn arguments(&self, partial_json: &str, out: &mut Vec<u8>) {
        if !partial_json.is_empty() {
            self.delta(Delta::Input { partial_json }, out);
        }
    }

    fn open(&mut self, block: Block, start: BlockStart<'_>, out: &mut Vec<u8>) {
        self.close(out);
        Event::ContentBlockStart { index: self.blocks, content_block: start }.write(out);
        self.open = Some(block);
        self.blocks += 1;
    }

    fn delta(&self, delta: Delta<'_>, out: &mut Vec<u8>) {
        Event::ContentBlockDelta { index: self.blocks.saturating_sub(1), delta }.write(out);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(open) = self.open.take() else { return };
        if open == Block::Thinking {
            self.delta(Delta::Signature { signature: "" }, out);
        }
        Event::ContentBlockStop { index: self.blocks.saturating_sub(1) }.write(out);
    }
}
