//! The events of a chat stream as the events of a response.
//!
//! Each item is announced, told piece by piece and then told whole, and the last event tells the response whole: so the
//! text is kept while it passes, up to a bound.

use serde_json::value::RawValue;

use super::super::chat::{Chunk, End, Piece, Tokens};
use super::super::raw::{Object, raw};
use super::super::{ApiError, ErrorCode};
use super::{Head, Item, State};

/// A field of an event.
type Field = (&'static str, Box<RawValue>);

/// Writes the events of one response.
#[derive(Debug)]
pub(in super::super) struct Writer {
    head: Head,
    limit: usize,
    kept: usize,
    sequence: u64,
    begun: bool,
    /// Items that are whole.
    done: Vec<Object>,
    open: Option<Item>,
    /// Highest index of a call so far.
    last_call: Option<u64>,
    tokens: Tokens,
    end: Option<End>,
}

impl Writer {
    pub(in super::super) fn new(head: Head, limit: usize) -> Self {
        Self {
            head,
            limit,
            kept: 0,
            sequence: 0,
            begun: false,
            done: Vec::new(),
            open: None,
            last_call: None,
            tokens: Tokens::default(),
            end: None,
        }
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
        let cut = matches!(end, End::Length | End::Filter);
        self.close(if cut { "incomplete" } else { "completed" }, out);
        let response = self.head.object(State::Ended(&end), &self.done, Some(self.tokens));
        self.write(if cut { "response.incomplete" } else { "response.completed" }, vec![("response", raw(&response))], out);
    }

    /// The reply failed.
    pub(in super::super) fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        self.begin(out);
        let response = self.head.object(State::Failed(error), &self.done, None);
        self.write("response.failed", vec![("response", raw(&response))], out);
    }

    fn write(&mut self, kind: &'static str, fields: Vec<Field>, out: &mut Vec<u8>) {
        let mut event = Object::default();
        event.put("type", kind);
        event.put("sequence_number", &self.sequence);
        event.extend(fields.into_iter().map(|(name, value)| (name.into(), value)));
        self.sequence += 1;
        super::super::from_chat::write_event(out, kind, &event);
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if self.begun {
            return;
        }
        self.begun = true;
        for kind in ["response.created", "response.in_progress"] {
            let response = self.head.object(State::Running, &[], None);
            self.write(kind, vec![("response", raw(&response))], out);
        }
    }

    fn piece(&mut self, piece: Piece<'_>, out: &mut Vec<u8>) -> Result<(), ApiError> {
        self.begin(out);
        let fits = match (&self.open, piece) {
            (Some(Item::Reasoning(_)), Piece::Reasoning(_)) | (Some(Item::Message(_)), Piece::Text(_)) => true,
            (Some(Item::Call { index, .. }), Piece::Call { index: other, .. }) => *index == other,
            _ => false,
        };
        if !fits {
            if let Piece::Call { index, arguments, .. } = piece
                && self.last_call.is_some_and(|last| index <= last)
            {
                let mixed = || ApiError::new(ErrorCode::UpstreamFailed, "the engine mixed the pieces of several tool calls");
                return if arguments.is_empty() { Ok(()) } else { Err(mixed()) };
            }
            self.close("completed", out);
            self.open(piece, out);
        }
        let (text, kind) = match piece {
            Piece::Reasoning(text) => (text, "response.reasoning_text.delta"),
            Piece::Text(text) => (text, "response.output_text.delta"),
            Piece::Call { arguments, .. } => (arguments, "response.function_call_arguments.delta"),
        };
        if text.is_empty() {
            return Ok(());
        }
        self.kept += text.len();
        if self.kept > self.limit {
            return Err(ApiError::new(ErrorCode::UpstreamFailed, "the reply is larger than a response may be"));
        }
        let Some(item) = &mut self.open else { return Ok(()) };
        match item {
            Item::Reasoning(all) | Item::Message(all) | Item::Call { arguments: all, .. } => all.push_str(text),
        }
        self.tell(kind, vec![("delta", raw(&text))], out);
        Ok(())
    }

    /// An event about the open item.
    fn tell(&mut self, kind: &'static str, more: Vec<Field>, out: &mut Vec<u8>) {
        let Some(item) = &self.open else { return };
        let place = self.done.len();
        let id = self.head.item_id(item.prefix(), place);
        let is_call = matches!(item, Item::Call { .. });
        let is_text = kind.starts_with("response.output_text");
        let mut fields = vec![("item_id", raw(&id)), ("output_index", raw(&place))];
        if !is_call {
            fields.push(("content_index", raw(&0)));
        }
        fields.extend(more);
        if is_text {
            fields.push(("logprobs", raw::<[(); 0]>(&[])));
        }
        self.write(kind, fields, out);
    }

    fn open(&mut self, piece: Piece<'_>, out: &mut Vec<u8>) {
        let item = match piece {
            Piece::Reasoning(_) => Item::Reasoning(String::new()),
            Piece::Text(_) => Item::Message(String::new()),
            Piece::Call { index, id, name, .. } => {
                self.last_call = Some(index);
                let name = name.unwrap_or_default().to_owned();
                Item::Call { index, id: id.map(str::to_owned), name, arguments: String::new() }
            }
        };
        let place = self.done.len();
        let announced = item.object(&self.head, place, "in_progress");
        self.write("response.output_item.added", vec![("output_index", raw(&place)), ("item", raw(&announced))], out);
        let part = item.part("");
        self.open = Some(item);
        if let Some(part) = part {
            self.tell("response.content_part.added", vec![("part", raw(&part))], out);
        }
    }

    fn close(&mut self, status: &str, out: &mut Vec<u8>) {
        let Some(item) = &self.open else { return };
        let place = self.done.len();
        let whole = item.object(&self.head, place, status);
        let text = item.text().to_owned();
        let part = item.part(&text);
        match item {
            Item::Reasoning(_) => self.tell("response.reasoning_text.done", vec![("text", raw(&text))], out),
            Item::Message(_) => self.tell("response.output_text.done", vec![("text", raw(&text))], out),
            Item::Call { name, .. } => {
                let name = name.clone();
                self.tell("response.function_call_arguments.done", vec![("name", raw(&name)), ("arguments", raw(&text))], out);
            }
        }
        if let Some(part) = part {
            self.tell("response.content_part.done", vec![("part", raw(&part))], out);
        }
        self.open = None;
        self.write("response.output_item.done", vec![("output_index", raw(&place)), ("item", raw(&whole))], out);
        self.done.push(whole);
    }
}
