//! Doors to the machine: clock, processes, ports, devices, memory.

pub mod clock;
pub mod facts;
pub mod files;
pub mod http;
pub mod instance;
pub mod pip;
pub mod ports;
pub mod process;
pub mod spawn;
pub mod tool;
