//! Reads bodies, queries and ids so that whatever is wrong with them becomes the API's own envelope, with
//! the field named.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::document::Document;
use super::edge::too_large;
use super::error::ApiError;
use super::state::ApiState;
use crate::ids::RowId;
use crate::request_body::{self, BodyError};

/// A JSON body. The content type is not insisted on: a body that parses is meant as JSON.
#[derive(Debug)]
pub struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<ApiState> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            if let Some(error) = request_body::cause(&rejection) {
                return cut_off(error);
            }
            match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => too_large(state.config.http.max_api_body_bytes),
                status => ApiError::new(status, "invalid_request", rejection.body_text()),
            }
        })?;
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        parse(&bytes).map(Self)
    }
}

/// A body that did not come whole, in words and with the status that says whether to try again.
fn cut_off(error: &BodyError) -> ApiError {
    match error {
        BodyError::Late(_) => {
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", error.to_string()).hint("`http.body_timeout` sets it")
        }
        BodyError::Stopping => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", error.to_string()),
        BodyError::Broken(_) => ApiError::invalid(error.to_string()),
    }
}

/// A query string.
#[derive(Debug)]
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(value)| Self(value)).map_err(|rejection| {
            let text = rejection.body_text();
            query_error(text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text))
        })
    }
}

/// Words a query that cannot be read.
fn query_error(text: &str) -> ApiError {
    let field = named(text).map(|(field, _)| field).or_else(|| {
        let (field, _) = text.split_once(": ")?;
        field.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_').then(|| field.to_owned())
    });
    let error = ApiError::invalid(format!("the query cannot be read: {text}"));
    match field {
        Some(field) => error.field(field),
        None => error,
    }
}

/// A name or an id from the path.
#[derive(Debug, Clone)]
pub struct Name(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let text = Path::<String>::from_request_parts(parts, state).await.map(|Path(text)| text);
        text.map(Self).map_err(|rejection| ApiError::invalid(rejection.body_text()))
    }
}

/// The id of a server row from the path. An id that cannot be one is simply not found.
#[derive(Debug, Clone, Copy)]
pub struct ServerId(pub RowId);

impl<S: Send + Sync> FromRequestParts<S> for ServerId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Name(text) = Name::from_request_parts(parts, state).await?;
        text.parse().map(Self).map_err(|_| ApiError::not_found("server row", &text))
    }
}

/// A value out of the bytes of a body, which must be one object.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let Document(tree) = serde_json::from_slice(bytes).map_err(|error| match named(&error.to_string()) {
        Some((field, text)) => invalid_field(&field, &text),
        None => ApiError::invalid(format!("the body is not JSON: {error}")),
    })?;
    if !tree.is_object() {
        return Err(ApiError::invalid("the body must be one JSON object").hint("write it as {\"name\": value, …}"));
    }
    read(tree)
}

/// A value out of a tree. What is wrong is said of its field.
pub fn read<T: DeserializeOwned>(tree: Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(tree).map_err(|error| {
        let path = error.path().to_string();
        let text = error.inner().to_string();
        match named(&text) {
            // The path of a member that is missing or unknown ends where the member should be.
            Some((field, text)) => {
                let above = path.strip_suffix(&field).unwrap_or(&path).trim_end_matches('.');
                invalid_field(&if above.is_empty() { field } else { format!("{above}.{field}") }, &text)
            }
            None => invalid_field(&path, &plain(&text)),
        }
    })
}

fn invalid_field(field: &str, text: &str) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", format!("{field}: {text}")).field(field)
}

/// The member that serde names in its text, and the text without the place in the body.
fn named(text: &str) -> Option<(String, String)> {
    let starts = ["unknown field `", "missing field `", "duplicate field `"];
    let (field, _) = starts.iter().find_map(|start| text.strip_prefix(start))?.split_once('`')?;
    let text = text.split(" at line ").next().unwrap_or(text);
    Some((field.to_owned(), text.to_owned()))
}

/// serde's words for what it expected, in words for people.
fn plain(text: &str) -> String {
    let Some((found, expected)) = text.split_once(", expected ") else { return text.to_owned() };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative and not too large",
        "i32" | "i64" => "a whole number that is not too large",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other if other.starts_with("enum ") || other == "string or map" => "a word",
        other => other,
    };
    format!("{found}, expected {expected}")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[serde(rename = "models")]
        _models: Vec<String>,
        #[serde(rename = "word")]
        _word: Option<Word>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        One,
        Two,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[serde(rename = "slots")]
        _slots: Option<u32>,
        #[serde(rename = "limits")]
        _limits: Option<Inner>,
    }

    fn refusal<T: DeserializeOwned + std::fmt::Debug>(body: &str) -> String {
        format!("{:?}", parse::<T>(body.as_bytes()).unwrap_err()).replace("\\\"", "\"")
    }

    #[test]
    fn whatever_is_wrong_is_said_of_its_field() {
        for (body, field, words) in [
            (r#"{"slots":-1}"#, "slots", "integer `-1`, expected a whole number"),
            (r#"{"slots":"4"}"#, "slots", "string \"4\", expected a whole number"),
            (r#"{"slots":1.5}"#, "slots", "floating point `1.5`"),
            (r#"{"slots":4294967296}"#, "slots", "expected a whole number that is not negative and not too large"),
            (r#"{"limits":{"models":"x"}}"#, "limits.models", "expected a list"),
            (r#"{"limits":{"models":[1]}}"#, "limits.models[0]", "expected a string"),
            (r#"{"limits":{"models":[],"word":"three"}}"#, "limits.word", "expected `one` or `two`"),
            (r#"{"limits":{}}"#, "limits.models", "missing field"),
            (r#"{"limits":{"nonsense":1}}"#, "limits.nonsense", "unknown field"),
            (r#"{"nonsense":1}"#, "nonsense", "unknown field"),
            (r#"{"slots":1,"slots":2}"#, "slots", "duplicate field"),
            (r#"{"limits":4}"#, "limits", "expected an object"),
        ] {
            let shown = refusal::<Outer>(body);
            assert!(shown.contains(&format!("field: Some({field:?})")), "{body}: {shown}");
            assert!(shown.contains(words), "{body}: {shown}");
            assert!(!shown.contains(" at line "), "{body}: {shown}");
        }
    }

    #[test]
    fn what_is_no_object_is_refused_as_such_and_members_that_are_there_twice_are_found_in_any_depth() {
        for body in ["[]", "4", "null", "\"x\""] {
            assert!(refusal::<Outer>(body).contains("the body must be one JSON object"), "{body}");
        }
        assert!(refusal::<Outer>("{\"slots\":").contains("not JSON"));
        assert!(refusal::<serde_json::Map<String, Value>>(r#"{"a":[{"b":1,"b":2}]}"#).contains("duplicate field `b`"));
        let tree: serde_json::Map<String, Value> = parse(r#"{"a":[1,-2,1.5,true,null,"ж\n"]}"#.as_bytes()).unwrap();
        assert_eq!(Value::Object(tree), json!({"a": [1, -2, 1.5, true, null, "ж\n"]}));
    }

    #[test]
    fn a_query_names_its_field_too() {
        for (text, field) in [("limit: invalid digit found in string", "limit"), ("unknown field `page`, expected `limit`", "page")] {
            let shown = format!("{:?}", query_error(text));
            assert!(shown.contains(&format!("field: Some({field:?})")), "{shown}");
        }
    }
}
