//! Where the state spaces lie among generic addresses. No device address is as high.

/// Bytes of each window.
pub(crate) const WINDOW_BYTES: u64 = 1 << 32;
/// Shared memory of a block.
pub(crate) const SHARED_WINDOW: u64 = 1 << 60;
/// Local memory of a thread.
pub(crate) const LOCAL_WINDOW: u64 = 2 << 60;
/// Parameters of the launch.
pub(crate) const PARAM_WINDOW: u64 = 3 << 60;
/// Constants and variables of the module. Their addresses are those of `ld.const` and `ld.global` as well.
pub(crate) const MODULE_WINDOW: u64 = 4 << 60;
