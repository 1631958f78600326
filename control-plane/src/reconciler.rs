//! Desired + observed -> actions. Idempotent, run on wake and on a timer.
