//! Usage events from the gateway, bounded, written in batches.
