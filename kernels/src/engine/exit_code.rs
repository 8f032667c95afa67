//! Exit statuses of a worker, by which the supervisor decides what to start next.

/// Exit status of a worker whose sidecar sent `Bye`, or that SIGTERM stopped before it had a sidecar. The supervisor
/// exits too.
pub(super) const EXIT_GOODBYE: u8 = 0;

/// Exit status of a worker whose sidecar exited without `Bye`. The next worker waits for the next sidecar.
pub(super) const EXIT_SIDECAR_GONE: u8 = 75;

/// Exit status of a worker whose rollback of a mapping failed: its mappings are neither the old nor the new ones. The
/// next worker maps everything again.
pub(super) const EXIT_MAPPING_TORN: u8 = 70;
