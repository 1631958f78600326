//! The only place that builds and joins everything.
