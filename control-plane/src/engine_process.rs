//! One engine process, as whoever started it sees it: a supervised row's engine and one that proves a build alike.
//!
//! - [`child`] the process behind its guard, [`logs`] what it said
//! - [`probe`] how it is asked, [`stall`] whether anything moves
//!
//! Nothing here decides what to do about what is seen.

pub mod child;
pub mod logs;
pub mod probe;
pub mod stall;
