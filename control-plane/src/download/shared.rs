//! One piece of work for however many ask for it at the same time.
//!
//! The work is a future that every caller polls and nobody owns: it goes on while at least one caller waits,
//! and stops, by being dropped, with the last. No task is spawned, so a stop of the process has nothing to wait for.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::Hash;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;

use crate::progress::ProgressSender;

/// Work under way, by key.
pub struct SharedWork<K, T: Clone> {
    running: Mutex<HashMap<K, Running<T>>>,
}

/// A piece of work that lives as long as somebody waits for it, and its progress.
struct Running<T: Clone> {
    work: WeakShared<BoxFuture<'static, T>>,
    progress: ProgressSender,
}

impl<K, T: Clone> Default for SharedWork<K, T> {
    fn default() -> Self {
        Self { running: Mutex::default() }
    }
}

impl<K, T: Clone> fmt::Debug for SharedWork<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWork").field("running", &self.running.lock().len()).finish()
    }
}

impl<K: Eq + Hash, T: Clone + Send + Sync + 'static> SharedWork<K, T> {
    /// The result of the work `key`, begun by `start` unless it is under way already. `progress` follows it.
    pub async fn run<F>(&self, key: K, progress: &ProgressSender, start: impl FnOnce(ProgressSender) -> F) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        let (mut work, theirs) = self.join(key, start);
        let mut updates = theirs.subscribe();
        updates.mark_changed();
        loop {
            tokio::select! {
                biased;
                result = &mut work => {
                    progress.replace(updates.borrow().clone());
                    return result;
                }
                Ok(()) = updates.changed() => progress.replace(updates.borrow_and_update().clone()),
            }
        }
    }

    /// Whether somebody waits for the work `key` now.
    pub fn is_running(&self, key: &K) -> bool {
        self.running.lock().get(key).is_some_and(|known| known.work.upgrade().is_some_and(|work| work.peek().is_none()))
    }

    fn join<F>(&self, key: K, start: impl FnOnce(ProgressSender) -> F) -> (Shared<BoxFuture<'static, T>>, ProgressSender)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut running = self.running.lock();
        if let Some(known) = running.get(&key)
            && let Some(work) = known.work.upgrade()
            && work.peek().is_none()
        {
            return (work, known.progress.clone());
        }
        running.retain(|_, known| known.work.upgrade().is_some());
        let progress = ProgressSender::ignored();
        let work = start(progress.clone()).boxed().shared();
        if let Some(weak) = work.downgrade() {
            running.insert(key, Running { work: weak, progress: progress.clone() });
        }
        (work, progress)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn callers_at_the_same_time_share_one_piece_of_work_and_its_progress() {
        let (shared, begun, go) = (SharedWork::<&str, u32>::default(), Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let start = |progress: ProgressSender| {
            let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
            async move {
                progress.step("working", Some(3), false);
                go.notified().await;
                progress.set(3);
                begun.fetch_add(1, Ordering::SeqCst) + 1
            }
        };
        let (one, two) = (ProgressSender::channel(), ProgressSender::channel());
        let release = async {
            let mut seen = two.1.clone();
            seen.wait_for(|progress| progress.step == "working").await.unwrap();
            go.notify_one();
        };
        let (first, second, ()) = tokio::join!(shared.run("key", &one.0, start), shared.run("key", &two.0, start), release);
        assert_eq!((first, second), (1, 1));
        assert_eq!((one.1.borrow().done, two.1.borrow().done), (3, 3));
        // Work that is over is done again for whoever asks later.
        go.notify_one();
        assert_eq!(shared.run("key", &one.0, start).await, 2);
    }

    #[tokio::test]
    async fn work_goes_on_for_the_others_when_one_caller_leaves_and_stops_with_the_last() {
        let (shared, alive) = (SharedWork::<&str, u32>::default(), Arc::new(()));
        let (progress, go) = (ProgressSender::ignored(), Arc::new(Notify::new()));
        let start = |_| {
            let (held, go) = (Arc::clone(&alive), Arc::clone(&go));
            async move {
                go.notified().await;
                drop(held);
                7
            }
        };
        let mut leaving = Box::pin(shared.run("key", &progress, start));
        assert!(futures_util::poll!(&mut leaving).is_pending());
        let mut staying = Box::pin(shared.run("key", &progress, start));
        assert!(futures_util::poll!(&mut staying).is_pending());
        drop(leaving);
        go.notify_one();
        assert_eq!(staying.await, 7);

        let mut last = Box::pin(shared.run("key", &progress, start));
        assert!(futures_util::poll!(&mut last).is_pending());
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(last);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
