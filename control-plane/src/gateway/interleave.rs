//! Where another task may come between two steps of the hand-off: what its model check (`admission/model.rs`) varies.
//!
//! A model checker has to know every place at which tasks can take turns. Replacing each lock and channel under the
//! gateway by the checker's own would test a copy of the code; naming the places keeps the code that ships under test, and
//! outside of tests they are nothing. They must stand wherever tasks can affect one another: before the lock of the
//! admission, before a gate is passed, between leaving it and saying so, before a word is sent.

use parking_lot::{Mutex, MutexGuard};

#[cfg(test)]
thread_local! {
    /// Whether this thread runs a model check.
    pub(super) static CHECKING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Another task may run here.
#[cfg(not(test))]
#[inline]
pub(super) const fn point() {}

/// Another task may run here.
#[cfg(test)]
pub(super) fn point() {
    if CHECKING.get() {
        shuttle::thread::yield_now();
    }
}

/// Locks; another task may run before, and does while it holds the lock.
#[cfg(not(test))]
#[inline]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// Locks; another task may run before, and does while it holds the lock.
#[cfg(test)]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    if !CHECKING.get() {
        return mutex.lock();
    }
    loop {
        // All tasks of a check take turns on one thread: blocking it would end them all.
        point();
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
    }
}
