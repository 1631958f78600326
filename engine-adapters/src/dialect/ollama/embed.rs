//! `/api/embed` and `/api/embeddings` by way of `/v1/embeddings`.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::node::Members;
use super::super::raw::Object;
use super::super::{ApiError, ErrorCode};

/// Which of the two endpoints was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/api/embed`: one vector for each input.
    Embed,
    /// `/api/embeddings`: the older one, for one prompt.
    Embeddings,
}

/// The request for `/v1/embeddings`.
pub fn to_openai(endpoint: Endpoint, body: &[u8]) -> Result<Vec<u8>, ApiError> {
    let body = Members::of_body(body)?;
    let mut request = Object::default();
    request.put_some("model", body.raw("model"));
    request.put("input", body.need(if endpoint == Endpoint::Embed { "input" } else { "prompt" })?.raw());
    request.put_some("dimensions", body.raw("dimensions"));
    Ok(request.into_bytes())
}

#[derive(Deserialize)]
struct Reply<'a> {
    #[serde(borrow)]
    data: Vec<Embedding<'a>>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Embedding<'a> {
    #[serde(borrow)]
    embedding: &'a RawValue,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
}

/// The answer, from the engine's own. The vectors stay as they are written.
pub fn from_openai(endpoint: Endpoint, document: &[u8], model: &str) -> Result<Vec<u8>, ApiError> {
    let unreadable =
        |error: serde_json::Error| ApiError::new(ErrorCode::UpstreamFailed, format!("the engine's reply holds no embeddings: {error}"));
    let reply: Reply<'_> = serde_json::from_slice(document).map_err(unreadable)?;
    let vectors: Vec<&RawValue> = reply.data.iter().map(|data| data.embedding).collect();
    let mut answer = Object::default();
    match endpoint {
        Endpoint::Embed => {
            answer.put("model", model);
            answer.put("embeddings", &vectors);
            answer.put("total_duration", &0);
            answer.put("load_duration", &0);
            answer.put("prompt_eval_count", &reply.usage.and_then(|usage| usage.prompt_tokens).unwrap_or(0));
        }
        Endpoint::Embeddings => {
            let first = vectors.first().ok_or_else(|| ApiError::new(ErrorCode::UpstreamFailed, "the engine gave no embedding"))?;
            answer.put("embedding", first);
        }
    }
    Ok(answer.into_bytes())
}
