//! Models over REST.
