//! A loopback port for an engine.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use rand::RngExt;

/// Below the range from which Linux takes the near ends of outgoing connections (32768 and up), so that no
/// connection takes the port between our look and the engine's bind.
const RANGE: std::ops::Range<u16> = 20_000..32_000;
/// Tries in that range before the kernel is asked for any port at all.
const TRIES: u32 = 64;

/// A port that nobody listened on a moment ago. If somebody takes it meanwhile the engine cannot start, and the next
/// start gets another one.
pub fn free_loopback_port() -> io::Result<u16> {
    let mut random = rand::rng();
    let free =
        |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).and_then(|listener| listener.local_addr()).map(|address| address.port());
    (0..TRIES).find_map(|_| free(random.random_range(RANGE)).ok()).map_or_else(|| free(0), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_free_and_outside_the_range_of_outgoing_connections() {
        let port = free_loopback_port().unwrap();
        assert!(RANGE.contains(&port));
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    }
}
