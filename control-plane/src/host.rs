//! Doors to the machine: clock, processes, ports, devices, memory.

mod cgroup;
pub mod clock;
mod cpu;
mod devices;
pub mod facts;
pub mod files;
pub mod hex;
pub mod http;
pub mod instance;
mod libc;
mod memory;
pub mod pip;
pub mod ports;
pub mod process;
pub mod spawn;
pub mod tool;
mod tools;
