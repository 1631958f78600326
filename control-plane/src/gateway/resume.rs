//! Goes on with a stream whose engine died half way, on another row, so that its client notices nothing but a pause.
//!
//! Only where the rest is surely the rest of the same reply: [`lifeboat_engines::dialect::resume`] decides that from the
//! request and what was sent. What is kept for it is the request as the engine was asked, if it is small enough. The slot of
//! the dead engine is given back before another one is waited for, as with any retry.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use lifeboat_engines::dialect::resume::{self, Generation, Stitch, Transcript};
use tokio::time::{Instant, Interval, interval_at};

use super::Gateway;
use super::admission::Claim;
use super::outlook::Class;
use super::peek::Asked;
use super::permit::Permit;
use super::proxy::outgoing::{Outgoing, Segments};
use super::proxy::{Fault, Kind, Patience, Reply, kind};
use super::route::Shape;
use super::translate::{CHAT, COMPLETIONS};
use crate::registry::Endpoint;
use crate::routing::Ask;

/// What is needed to ask another engine for the rest.
pub(super) struct Resume {
    gateway: Arc<Gateway>,
    /// The model's name, as asked.
    name: String,
    ask: Ask,
    outgoing: Outgoing,
    path: &'static str,
    body: Segments,
    arrived: Instant,
    failed: Vec<Arc<Endpoint>>,
}

/// The request as the first engine was asked.
pub(super) struct Asking {
    pub name: String,
    pub ask: Ask,
    pub outgoing: Outgoing,
    pub path: &'static str,
    pub body: Segments,
    pub arrived: Instant,
}

/// The rest of the reply has begun.
pub(super) struct Resumed {
    /// The right to use the engine it comes from.
    pub permit: Permit,
    /// Its stream.
    pub reply: Reply,
    /// Makes it the rest of the first one.
    pub stitch: Stitch,
    /// For the next time.
    pub resume: Resume,
}

/// The way to the rest.
pub(super) struct Attempt {
    asking: Pin<Box<dyn Future<Output = Option<Resumed>> + Send>>,
    beat: Interval,
}

/// What there is to do for one who waits for the rest.
pub(super) enum Step {
    /// It has waited long enough to be told that it still does.
    Waits,
    /// Here it is.
    Resumed(Box<Resumed>),
    /// It will not come.
    Over,
}

impl Resume {
    /// `None` where a stream of this kind cannot be gone on with, or too much would have to be kept for it.
    pub(super) fn of(gateway: &Arc<Gateway>, asking: Asking) -> Option<Self> {
        let Asking { name, ask, outgoing, path, body, arrived } = asking;
        let fits = matches!(path, CHAT | COMPLETIONS) && body.len() <= gateway.config.resume_bytes && gateway.config.resumes > 0;
        fits.then(|| Self { gateway: Arc::clone(gateway), name, ask, outgoing, path, body, arrived, failed: Vec::new() })
    }

    /// What kind of reply it is, and how much of its text may be kept.
    pub(super) fn kept(&self) -> (Generation, usize) {
        let generation = if self.path == CHAT { Generation::Chat } else { Generation::Text };
        (generation, self.gateway.config.resume_bytes)
    }

    /// The model's name, as asked.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Asks for the rest of what was `sent`, on another engine than the one that has failed. `None` = it cannot be gone on with.
    pub(super) fn attempt(mut self, fault: &Fault, failed: &Arc<Endpoint>, sent: Option<&Transcript>) -> Option<Attempt> {
        if !fault.may_resume() || self.gateway.stopping.is_cancelled() || self.failed.len() >= self.gateway.config.resumes as usize {
            return None;
        }
        let sent = sent?;
        let body = Bytes::from(resume::resume(&self.body.concat(), sent)?);
        let asked = Asked::read(Shape::Json, &HeaderMap::new(), &body).ok()?;
        let stitch = Stitch::new(sent, &self.name);
        self.failed.push(Arc::clone(failed));
        let every = self.gateway.config.heartbeat;
        let stopping = self.gateway.stopping.clone();
        let asking = Box::pin(async move {
            let (permit, reply) = stopping.run_until_cancelled(self.ask(&asked, &body)).await.flatten()?;
            Some(Resumed { permit, reply, stitch, resume: self })
        });
        Some(Attempt { asking, beat: interval_at(Instant::now() + every, every) })
    }

    async fn ask(&self, asked: &Asked, body: &Bytes) -> Option<(Permit, Reply)> {
        let config = &self.gateway.config;
        // The wait begins anew: what the stream took so far was no wait.
        let arrived = Instant::now();
        let claim = Claim { name: &self.name, class: Class::Generation, ask: &self.ask, avoid: &self.failed, arrived };
        let mut permit = self.gateway.admission.admit(claim).await.ok()?;
        let endpoint = Arc::clone(&permit.endpoint);
        let said = async {
            if !endpoint.dialects.continues {
                return Err(Fault::Torn("no other engine here goes on with a reply that was begun".into()));
            }
            let body = asked.body(body, endpoint.upstream_model.as_deref(), permit.placement.slot, false);
            let patience = Patience { first_byte: config.first_byte, until: self.arrived + config.total, total: config.total };
            let reply = self.gateway.proxy.call(&endpoint, &self.outgoing, self.path, body, patience).await?;
            if kind(&reply.headers) == Kind::Events { Ok(reply) } else { Err(Fault::Torn("it is no stream".into())) }
        };
        match said.await {
            Ok(reply) => {
                permit.first_byte();
                Some((permit, reply))
            }
            Err(fault) => {
                tracing::warn!(server.id = %permit.row.id, error = %fault, "a broken stream could not go on");
                permit.failed(&fault);
                None
            }
        }
    }
}

impl Attempt {
    /// Ready once the rest has begun, it is known that it will not, or the client needs a sign of life.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        match self.asking.as_mut().poll(cx) {
            Poll::Ready(Some(resumed)) => Poll::Ready(Step::Resumed(Box::new(resumed))),
            Poll::Ready(None) => Poll::Ready(Step::Over),
            Poll::Pending => self.beat.poll_tick(cx).map(|_| Step::Waits),
        }
    }
}

impl fmt::Debug for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resume").field("failed", &self.failed.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attempt")
    }
}
