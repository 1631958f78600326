//! Hands the actions of one pass to the supervisor. Nothing is decided here.

use super::plan::Action;
use crate::supervisor::Supervisor;

/// Returns at once: the work is done by the rows' tasks.
pub fn apply(supervisor: &Supervisor, actions: Vec<Action>) {
    for action in actions {
        match action {
            Action::Ensure(row, want) => supervisor.ensure(*row, want),
            Action::Forget(id) => supervisor.forget(id),
        }
    }
}
