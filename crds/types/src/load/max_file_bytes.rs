//! The limit on the size of a file.

/// Largest file that is read, bytes: as large as the API server takes an object.
pub const MAX_FILE_BYTES: usize = 3 << 20;
