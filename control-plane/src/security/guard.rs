//! The rules as a tower layer around all routes. It adds no allocation to a request that passes.

use std::sync::Arc;
use std::task::{Context, Poll};

use axum::response::Response;
use futures_util::future::Either;
use http::Request;
use tower::{Layer, Service};

use super::{Refused, Rules};

/// How a refusal is worded: in the dialect of the path that was asked for.
pub type Answer = fn(path: &str, refused: &Refused) -> Response;

/// Wraps a service in the rules.
#[derive(Debug, Clone)]
pub struct GuardLayer {
    rules: Arc<Rules>,
    answer: Answer,
}

impl GuardLayer {
    /// These rules, and how to word a refusal.
    pub fn new(rules: Rules, answer: Answer) -> Self {
        Self { rules: Arc::new(rules), answer }
    }
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;
    fn layer(&self, inner: S) -> Guard<S> {
        Guard { inner, layer: self.clone() }
    }
}

/// A service behind the rules.
#[derive(Debug, Clone)]
pub struct Guard<S> {
    inner: S,
    layer: GuardLayer,
}

impl<S, B> Service<Request<B>> for Guard<S>
where
    S: Service<Request<B>, Response = Response>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Either<std::future::Ready<Result<Response, S::Error>>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.layer.rules.check(request.uri(), request.headers()) {
            Ok(()) => Either::Right(self.inner.call(request)),
            Err(refused) => {
                tracing::debug!(reason = %refused, "refused a request");
                Either::Left(std::future::ready(Ok((self.layer.answer)(request.uri().path(), &refused))))
            }
        }
    }
}
