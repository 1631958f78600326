//! See lib.rs.

/// A launch that cannot be sized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizingError {
    /// Does not fit; the message shows the arithmetic.
    #[error("{arithmetic}")]
    DoesNotFit {
        /// `weights 8.1 GB + KV 1.2 GB > 7.4 GB free`
        arithmetic: String,
        /// `fits with --context 4096 or a smaller quantisation`
        hint: String,
    },
    /// The model cannot be served by this engine.
    #[error("{0}")]
    NotServable(String),
}
