//! A chat stream in the client's own dialect, event by event.
//!
//! The gateway pushes what comes from the engine and sends on what it gets. Nothing is held back but a cut event. Either
//! the last events say that the reply is complete, or an error event does; never both, and never neither once
//! [`FromChat::close`] was called on a stream that ended in order.

use serde::Serialize;

use super::chat::{Chunk, Event};
use super::sse::SseReader;
use super::{ApiError, ErrorCode, Usage, messages, ollama, responses};

/// One reply on its way.
#[derive(Debug)]
pub struct FromChat {
    events: SseReader,
    writer: Writer,
    state: State,
}

#[derive(Debug)]
enum Writer {
    Messages(messages::events::Writer),
    Responses(responses::events::Writer),
    Ollama(ollama::lines::Writer),
}

#[derive(Debug)]
enum State {
    Running,
    Finished,
    Failed(ApiError),
}

impl FromChat {
    /// A message named `id`, under the model's name as the client asked.
    pub fn messages(id: String, model: String) -> Self {
        Self::new(Writer::Messages(messages::events::Writer::new(id, model)))
    }

    /// A response, which may have `limit` bytes of text.
    pub fn responses(head: responses::Head, limit: usize) -> Self {
        Self::new(Writer::Responses(responses::events::Writer::new(head, limit)))
    }

    /// Ollama's lines, of which a tool call may have `limit` bytes of arguments.
    pub fn ollama(head: ollama::Head, limit: usize) -> Self {
        Self::new(Writer::Ollama(ollama::lines::Writer::new(head, limit)))
    }

    fn new(writer: Writer) -> Self {
        Self { events: SseReader::default(), writer, state: State::Running }
    }

    /// Forgets the event that was cut off: what comes next is not its rest.
    pub fn cut(&mut self) {
        self.events = SseReader::default();
    }

    /// Takes the next bytes of the chat and appends the events they become.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        let Self { events, writer, state } = self;
        events.push(chunk, |data| {
            if !matches!(state, State::Running) {
                return;
            }
            let failed = match Event::read(data) {
                Event::Chunk(chunk) => writer.chunk(&chunk, out),
                Event::Done => {
                    if writer.has_ended() {
                        writer.finish(out);
                        *state = State::Finished;
                        Ok(())
                    } else {
                        Err(ApiError::new(ErrorCode::UpstreamFailed, "the engine's reply broke off"))
                    }
                }
                Event::Error(error) => Err(error),
                Event::Nothing => Ok(()),
            };
            if let Err(error) = failed {
                writer.fail(&error, out);
                *state = State::Failed(error);
            }
        });
        if events.has_dropped() && matches!(state, State::Running) {
            let error = ApiError::new(ErrorCode::UpstreamFailed, "the engine sent an event that is too large");
            writer.fail(&error, out);
            *state = State::Failed(error);
        }
    }

    /// The chat stream has ended in order. A reply that said its end without the stream's end marker is complete too.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        if matches!(self.state, State::Running) && self.writer.has_ended() {
            self.writer.finish(out);
            self.state = State::Finished;
        }
    }

    /// The reply cannot go on, for a reason that the stream itself does not tell. Nothing once it has ended.
    pub fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        if matches!(self.state, State::Running) {
            self.writer.fail(error, out);
            self.state = State::Failed(error.clone());
        }
    }

    /// The last events were written: the reply is whole.
    pub fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished)
    }

    /// The error event was written.
    pub fn error(&self) -> Option<&ApiError> {
        if let State::Failed(error) = &self.state { Some(error) } else { None }
    }

    /// Tokens as far as they are known.
    pub fn usage(&self) -> Usage {
        let tokens = self.writer.tokens();
        Usage {
            prompt_tokens: tokens.prompt,
            cached_tokens: tokens.cached,
            completion_tokens: tokens.completion,
            prompt_ms: None,
            decode_ms: None,
        }
    }
}

impl Writer {
    fn chunk(&mut self, chunk: &Chunk, out: &mut Vec<u8>) -> Result<(), ApiError> {
        match self {
            Self::Messages(writer) => writer.chunk(chunk, out),
            Self::Responses(writer) => writer.chunk(chunk, out),
            Self::Ollama(writer) => writer.chunk(chunk, out),
        }
    }

    fn has_ended(&self) -> bool {
        match self {
            Self::Messages(writer) => writer.has_ended(),
            Self::Responses(writer) => writer.has_ended(),
            Self::Ollama(writer) => writer.has_ended(),
        }
    }

    fn tokens(&self) -> super::chat::Tokens {
        match self {
            Self::Messages(writer) => writer.tokens(),
            Self::Responses(writer) => writer.tokens(),
            Self::Ollama(writer) => writer.tokens(),
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::Messages(writer) => writer.finish(out),
            Self::Responses(writer) => writer.finish(out),
            Self::Ollama(writer) => writer.finish(out),
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        match self {
            Self::Messages(_) => messages::events::Writer::fail(error, out),
            Self::Responses(writer) => writer.fail(error, out),
            Self::Ollama(_) => ollama::lines::Writer::fail(error, out),
        }
    }
}

/// Appends one server-sent event with a name. All that is written is plain, so it cannot fail.
pub(super) fn write_event<T: Serialize>(out: &mut Vec<u8>, name: &str, data: &T) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\ndata: ");
    // A failure would leave the event cut, which clients skip.
    _ = serde_json::to_writer(&mut *out, data);
    out.extend_from_slice(b"\n\n");
}
