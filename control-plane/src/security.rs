//! Host and Origin checks, CORS.
