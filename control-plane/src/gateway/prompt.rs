//! What the router is told of a request: its prompt as a chain, its conversation's name, its weight and its payer.
//!
//! The conversation is named by the client where it can be: by a header of ours, by the headers of coding agents and of
//! other routers, or by the body. Ids that are new with every request (`x-request-id`, trace ids) never count, and `user`
//! says who asks, not which conversation it is. Names are hashed together with the caller, so that callers cannot meet.

use http::HeaderMap;
use http::header::HeaderName;
use lifeboat_engines::dialect::conversation::{self, PromptSink};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::peek::Asked;
use super::route::Route;
use crate::routing::{Ask, Prefix, PrefixBuilder};

/// Headers that name a conversation, the most exact first: a sub-agent before the session it belongs to.
const SESSION_HEADERS: [HeaderName; 12] = [
    HeaderName::from_static("x-lifeboat-session"),
    HeaderName::from_static("x-claude-code-agent-id"),
    HeaderName::from_static("x-claude-code-session-id"),
    HeaderName::from_static("x-session-id"),
    HeaderName::from_static("x-session-affinity"),
    HeaderName::from_static("session-id"),
    HeaderName::from_static("session_id"),
    HeaderName::from_static("x-dynamo-session-id"),
    HeaderName::from_static("x-smg-routing-key"),
    HeaderName::from_static("x-conversation-id"),
    HeaderName::from_static("conversation-id"),
    HeaderName::from_static("conversation_id"),
];
/// Longest name of a conversation that is taken for one, bytes.
const SESSION_BYTES: usize = 256;

/// The caller of a request without a key.
const NOBODY: u64 = 0;

struct Chain(PrefixBuilder);

impl PromptSink for Chain {
    fn piece(&mut self, bytes: &[u8]) {
        self.0.push(bytes);
    }

    fn end_message(&mut self) {
        self.0.end_message();
    }
}

/// What the router is told. `model` is the public name of the rows asked.
pub(super) fn ask(route: &Route, headers: &HeaderMap, asked: &Asked, body: &[u8], model: &str, key: Option<Uuid>, band: u8) -> Ask {
    let peek = &asked.peek;
    let caller = key.map_or(NOBODY, |key| key.as_u64_pair().1);
    let tenant = match (&key, &peek.user) {
        (None, Some(user)) => xxh3_64_with_seed(user.as_bytes(), 1),
        _ => caller,
    };
    let named = SESSION_HEADERS.iter().find_map(|name| {
        let value = headers.get(name)?.as_bytes();
        (!value.is_empty() && value.len() <= SESSION_BYTES).then_some(value)
    });
    let session = named.or(peek.session.as_deref().map(str::as_bytes)).map(|name| xxh3_64_with_seed(name, caller ^ !0));
    let prompts = if route.has_prompt { peek.prompt.prompt.as_ref() } else { peek.prompt.input.as_ref() };
    Ask {
        prefix: if route.has_prompt { prefix(asked, body, model) } else { Prefix::default() },
        session,
        tenant,
        band,
        weight: peek.n.unwrap_or(1).max(1).saturating_mul(conversation::prompts(body, prompts)),
        output_tokens: peek.max_tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX)),
        deadline: f64::MAX,
        avoid: Vec::new(),
    }
}

fn prefix(asked: &Asked, body: &[u8], model: &str) -> Prefix {
    let mut chain = Chain(PrefixBuilder::new(model.as_bytes()));
    conversation::pieces(body, &asked.peek, &mut chain);
    chain.0.finish()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderValue;

    use super::*;
    use crate::gateway::openai;

    fn read(headers: &[(&'static str, &'static str)], body: &'static str, key: Option<Uuid>) -> Ask {
        let headers = headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect();
        let body = Bytes::from_static(body.as_bytes());
        let route = &openai::ROUTES[0];
        let asked = Asked::read(route.shape, &headers, &body).unwrap();
        ask(route, &headers, &asked, &body, "m", key, 1)
    }

    #[test]
    fn the_most_exact_name_of_a_conversation_counts_and_ids_of_requests_never_do() {
        let session = |headers: &[(&'static str, &'static str)], body| read(headers, body, None).session;
        assert_eq!(session(&[("x-request-id", "1"), ("traceparent", "2")], r#"{"user":"u"}"#), None);
        let agent = session(&[("x-claude-code-agent-id", "a"), ("x-claude-code-session-id", "s")], "{}");
        assert_eq!(agent, session(&[("x-claude-code-agent-id", "a")], "{}"));
        assert_ne!(agent, session(&[("x-claude-code-session-id", "s")], "{}"));
        assert_eq!(session(&[("x-lifeboat-session", "k")], r#"{"prompt_cache_key":"other"}"#), session(&[], r#"{"prompt_cache_key":"k"}"#));
        assert!(session(&[], r#"{"metadata":{"user_id":"s"}}"#).is_some());
    }

    #[test]
    fn two_callers_with_the_same_name_for_a_conversation_do_not_meet() {
        let of = |key| read(&[("x-lifeboat-session", "k")], "{}", Some(key)).session;
        assert_ne!(of(Uuid::from_u128(1)), of(Uuid::from_u128(2)));
    }

    #[test]
    fn several_replies_and_several_prompts_weigh_what_they_cost() {
        assert_eq!(read(&[], r#"{"n":3}"#, None).weight, 3);
        assert_eq!(read(&[], r#"{"n":2,"prompt":["a","b"]}"#, None).weight, 4);
        assert_eq!(read(&[], r#"{"prompt":[1,2,3],"n":0}"#, None).weight, 1);
    }
}
