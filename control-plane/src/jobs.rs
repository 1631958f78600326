//! Long work started through the API: pulls and installs, one per target.
