//! Who may connect: a bound for each peer address, and what gives way when places run out.
//!
//! A connection that has not sent a whole head yet (a slow one, or one opened to hold a place) is a stranger; the oldest
//! stranger is ended in favour of a newcomer, so that the first request of an honest client, a probe say, always gets in.
//! Connections that have sent a request are never ended for others.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::config::HttpConfig;

/// All connections of a listener.
#[derive(Debug)]
pub(super) struct Doors {
    each: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    last: u64,
    peers: HashMap<IpAddr, usize>,
    /// By age.
    strangers: BTreeMap<u64, (IpAddr, CancellationToken)>,
}

impl Open {
    /// Ends the oldest stranger, of one peer or of all.
    fn push_out(&mut self, peer: Option<IpAddr>) -> bool {
        let oldest = self.strangers.iter().find(|(_, (theirs, _))| peer.is_none_or(|peer| peer == *theirs));
        let Some(id) = oldest.map(|(id, _)| *id) else { return false };
        if let Some((_, token)) = self.strangers.remove(&id) {
            token.cancel();
        }
        true
    }
}

/// One open connection; its drop is its end.
#[derive(Debug)]
pub(super) struct Visit {
    doors: Arc<Doors>,
    id: u64,
    peer: IpAddr,
    known: AtomicBool,
    pushed_out: CancellationToken,
}

impl Doors {
    pub(super) fn new(config: &HttpConfig) -> Arc<Self> {
        Arc::new(Self { each: config.max_connections_per_peer, open: Mutex::default() })
    }

    /// A new connection; `None` = this peer has enough of them, all in use.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Visit> {
        let peer = peer(address);
        // Programs and proxies of this machine share one address: they wait for a place like everybody, and are not refused.
        let most = if peer.is_loopback() { usize::MAX } else { self.each };
        let mut open = self.open.lock();
        if open.peers.get(&peer).is_some_and(|count| *count >= most) && !open.push_out(Some(peer)) {
            return None;
        }
        *open.peers.entry(peer).or_default() += 1;
        open.last += 1;
        let (id, pushed_out) = (open.last, CancellationToken::new());
        open.strangers.insert(id, (peer, pushed_out.clone()));
        drop(open);
        Some(Visit { doors: Arc::clone(self), id, peer, known: AtomicBool::new(false), pushed_out })
    }

    /// All places are taken: ends the oldest stranger, if there is one.
    pub(super) fn make_room(&self) {
        self.open.lock().push_out(None);
    }
}

impl Visit {
    /// A whole head has come.
    pub(super) fn is_known(&self) {
        if !self.known.swap(true, Ordering::AcqRel) {
            self.doors.open.lock().strangers.remove(&self.id);
        }
    }

    /// Returns once the connection must end: pushed out, or still a stranger after this time.
    pub(super) async fn over(&self, patience: Duration) {
        if self.pushed_out.run_until_cancelled(tokio::time::sleep(patience)).await.is_some() && self.known.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut open = self.doors.open.lock();
        open.strangers.remove(&self.id);
        if let Some(count) = open.peers.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                open.peers.remove(&self.peer);
            }
        }
    }
}

/// What counts as one peer: an IPv6 host owns at least a /64.
fn peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doors(max_connections: usize, max_connections_per_peer: usize) -> Arc<Doors> {
        Doors::new(&HttpConfig { max_connections, max_connections_per_peer, ..HttpConfig::default() })
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_peer_over_its_bound_is_refused_and_others_are_not() {
        let doors = doors(100, 2);
        let visits: Vec<_> = ["2001:db8::1", "2001:db8::2"].into_iter().map(|text| doors.enter(address(text)).unwrap()).collect();
        visits.iter().for_each(Visit::is_known);
        assert!(doors.enter(address("2001:db8::3")).is_none(), "one /64 is one peer");
        assert!(doors.enter(address("2001:db8:0:1::3")).is_some());
        drop(visits);
        assert!(doors.enter(address("2001:db8::3")).is_some());
        assert!(doors.open.lock().peers.is_empty());
    }

    #[test]
    fn this_machine_is_bound_by_the_number_of_all_connections_alone() {
        let doors = doors(16, 2);
        let visits: Vec<_> = (0..16).map(|_| doors.enter(address("127.0.0.1")).unwrap()).collect();
        visits.iter().for_each(Visit::is_known);
        assert!(doors.enter(address("127.0.0.1")).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_stranger_gives_way_and_who_sent_a_request_does_not() {
        let doors = doors(100, 3);
        let visits: Vec<_> = (0..3).map(|_| doors.enter(address("10.0.0.1")).unwrap()).collect();
        visits[0].is_known();
        let newcomer = doors.enter(address("10.0.0.1")).unwrap();
        assert!(visits[1].pushed_out.is_cancelled());
        assert!(!visits[0].pushed_out.is_cancelled() && !visits[2].pushed_out.is_cancelled());
        doors.make_room();
        assert!(visits[2].pushed_out.is_cancelled());
        visits[2].over(Duration::MAX).await;
        let patience = Duration::from_secs(10);
        newcomer.over(patience).await;
        newcomer.is_known();
        assert!(tokio::time::timeout(patience * 2, newcomer.over(patience)).await.is_err());
    }
}
