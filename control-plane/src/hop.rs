//! Which control planes a request has come through, so that none ends up serving itself.
//!
//! A row of somebody else's server may point to this very Lifeboat, straight or around others: each request would then
//! take slot after slot and wait for itself. So every control plane that passes a request on adds its name, random and made
//! anew with each start, to one header, and refuses what carries its own. The name says nothing about machine or operator,
//! and nothing else may be decided by it: clients can write the header too.

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};

/// Names, oldest first, separated by commas.
pub const VIA: HeaderName = HeaderName::from_static("x-lifeboat-via");

/// The name of one running control plane.
#[derive(Debug, Clone)]
pub struct Hop(HeaderValue);

impl Default for Hop {
    fn default() -> Self {
        let name = format!("{:016x}", rand::random::<u64>());
        Self(HeaderValue::try_from(name).unwrap_or_else(|_| HeaderValue::from_static("lifeboat")))
    }
}

impl Hop {
    /// For a request that begins here.
    pub const fn name(&self) -> &HeaderValue {
        &self.0
    }

    /// Whether this control plane has passed the request on before.
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        let own = self.0.as_bytes();
        headers.get_all(VIA).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).any(|name| name.trim_ascii() == own)
    }

    /// Adds the name to a request that is passed on.
    pub fn add(&self, headers: &mut HeaderMap) {
        headers.append(VIA, self.0.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_plane_finds_itself_however_many_have_passed_the_request_on() {
        let (one, other, third) = (Hop::default(), Hop::default(), Hop::default());
        let mut headers = HeaderMap::new();
        assert!(!one.is_in(&headers));
        one.add(&mut headers);
        other.add(&mut headers);
        assert!(one.is_in(&headers) && other.is_in(&headers) && !third.is_in(&headers));
        // A proxy in between may put them into one line.
        let joined = format!("{},  {}", one.name().to_str().unwrap(), other.name().to_str().unwrap());
        let headers = HeaderMap::from_iter([(VIA, HeaderValue::try_from(joined).unwrap())]);
        assert!(one.is_in(&headers) && other.is_in(&headers) && !third.is_in(&headers));
    }
}
