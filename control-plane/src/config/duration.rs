//! Durations in the settings file: seconds as a number, or text such as `"5m"`.

use std::time::Duration;

use jiff::SignedDuration;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Seconds(f64),
    Text(String),
}

pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    match Written::deserialize(deserializer) {
        Ok(Written::Seconds(seconds)) => Duration::try_from_secs_f64(seconds).map_err(D::Error::custom),
        Ok(Written::Text(text)) => parse(&text).map_err(D::Error::custom),
        Err(_) => Err(D::Error::custom("expected seconds (30) or a text such as \"5m\"")),
    }
}

/// `30`, `0.5`, `5m`, `1h 30m`.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
    }
    let signed: SignedDuration = text.parse().map_err(|_| format!("`{text}` is not a duration: write seconds (30) or 5m, 1h 30m"))?;
    Duration::try_from(signed).map_err(|_| "a duration cannot be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_friendly_text_are_read() {
        for (text, wanted) in [("30", 30_000), ("0.5", 500), ("5m", 300_000), ("1h 30m", 5_400_000), ("250ms", 250)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(wanted)), "{text}");
        }
        for text in ["-1", "-5m", "soon", "", "inf"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
