//! The simulated engine process (`lifeboat sim-engine`).
