//! The data plane: `/v1`.
