//! An error with its causes, as people read it. The one place that walks a chain: `Display` of our errors never prints
//! a source, but errors of others often do, and nobody wants to read the same words twice.

use std::error::Error;

/// An error and all its causes on one line.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error) {
        text.push_str(": ");
        text.push_str(&cause);
    }
    text
}

/// The causes of an error, nearest first, without those that only say again what the one before has said.
pub fn causes(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut said = error.to_string();
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !said.ends_with(&text) {
            said.clone_from(&text);
            causes.push(text);
        }
        next = cause.source();
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Step(&'static str, #[source] Option<Box<Step>>);

    #[test]
    fn every_cause_is_said_once() {
        let error = Step("outer", Some(Box::new(Step("middle: inner", Some(Box::new(Step("inner", Some(Box::new(Step("root", None))))))))));
        assert_eq!(chain(&error), "outer: middle: inner: root");
        assert_eq!(causes(&error), ["middle: inner", "root"]);
        assert_eq!(chain(&Step("alone", None)), "alone");
    }
}
