//! Engine builds over REST.
