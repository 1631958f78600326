//! Bytes as hex digits, and secrets made of them.

use std::fmt::Write as _;

use rand::RngExt as _;

/// Two lower-case digits a byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A key of 192 random bits for an engine process.
pub fn random_key() -> String {
    hex(&rand::rng().random::<[u8; 24]>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_two_digits() {
        assert_eq!(hex(&[0, 10, 255]), "000aff");
    }

    #[test]
    fn keys_are_long_and_never_the_same() {
        let (one, two) = (random_key(), random_key());
        assert_eq!(one.len(), 48);
        assert_ne!(one, two);
    }
}
