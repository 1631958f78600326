//! The stamp that Claude Code puts into the system prompt of each request, made harmless.
//!
//! The prompt begins `x-anthropic-billing-header: …; cch=a5145;`, with five characters that are new each time. An engine's
//! prefix cache would end there, and with it all that follows is computed again for every request. llama-server masks
//! them in its own Messages endpoint; here the same is done for every engine, by the same rule.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memmem;

const HEADER: &str = "x-anthropic-billing-header:";
const STAMP: &str = "cch=";
const LENGTH: usize = 5;
/// The text is a line; further on no stamp is looked for.
const WITHIN: usize = 1024;

/// Where the changing characters stand in a text that begins with the header.
fn place(text: &[u8]) -> Option<Range<usize>> {
    let rest = text.strip_prefix(HEADER.as_bytes())?;
    let rest = rest.get(..WITHIN).unwrap_or(rest);
    let start = HEADER.len() + memmem::find(rest, STAMP.as_bytes())? + STAMP.len();
    let end = start + LENGTH;
    let stamp = text.get(start..end)?;
    (stamp.iter().all(u8::is_ascii_alphanumeric) && text.get(end) == Some(&b';')).then_some(start..end)
}

/// A system text with its stamp masked.
pub(super) fn mask(text: Cow<'_, str>) -> Cow<'_, str> {
    let Some(place) = place(text.as_bytes()) else { return text };
    let mut masked = text.into_owned();
    masked.replace_range(place, "fffff");
    masked.into()
}

/// Where the changing characters of the first such text stand in a body, so that they can be masked, or left out of a
/// hash, without reading the body. Looks only at its first `within` bytes.
pub fn find(body: &[u8], within: usize) -> Option<Range<usize>> {
    let head = body.get(..within).unwrap_or(body);
    // A string that begins with the header: nobody writes it with escapes.
    let start = memmem::find(head, b"\"x-anthropic-billing-header:")? + 1;
    let stamp = place(&body[start..])?;
    Some(start + stamp.start..start + stamp.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_five_characters_of_a_leading_stamp_are_masked() {
        let table = [
            ("x-anthropic-billing-header: v=2.1; cch=a5145;You are", "x-anthropic-billing-header: v=2.1; cch=fffff;You are"),
            ("x-anthropic-billing-header: v=2.1; cch=a5145", "x-anthropic-billing-header: v=2.1; cch=a5145"),
            ("x-anthropic-billing-header: cch=a51é5;", "x-anthropic-billing-header: cch=a51é5;"),
            ("x-anthropic-billing-header: none", "x-anthropic-billing-header: none"),
            (" x-anthropic-billing-header: cch=a5145;", " x-anthropic-billing-header: cch=a5145;"),
            ("cch=a5145;", "cch=a5145;"),
        ];
        for (text, expected) in table {
            assert_eq!(mask(text.into()), expected);
        }
    }

    #[test]
    fn the_stamp_is_found_in_a_body_without_reading_it() {
        let body = br#"{"model":"m","system":[{"type":"text","text":"x-anthropic-billing-header: cch=00000;"}]}"#;
        assert_eq!(&body[find(body, 4096).unwrap()], b"00000");
        assert_eq!(find(body, 20), None);
        assert_eq!(find(br#"{"system":"cch=00000;"}"#, 4096), None);
    }
}
