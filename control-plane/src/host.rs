//! Doors to the machine: clock, processes, ports, devices, memory.

pub mod clock;
pub mod facts;
pub mod http;
pub mod spawn;
