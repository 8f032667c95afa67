//! The planner's model of the link between host and device.

/// Nanoseconds of a second.
const SECOND_NS: u128 = 1_000_000_000;

/// One, in permille.
const WHOLE: u64 = 1000;

/// Parameters of the link. With zero setup and quantum and without coupling it is OrbitFlow's fluid model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Host to device, bytes per second. At least 1.
    pub in_bytes_per_s: u64,
    /// Device to host, bytes per second. At least 1.
    pub out_bytes_per_s: u64,
    /// Rate into the device during transfers out, permille of `in_bytes_per_s`: 1 to 1000. 1000 means independent
    /// directions.
    pub coupled_permille: u16,
    /// t0: fixed cost of each transfer, nanoseconds.
    pub setup_ns: u64,
    /// Time after which a transfer in progress yields to a more urgent one, nanoseconds. 0 means at once.
    pub quantum_ns: u64,
}

impl Link {
    /// Returns a link that is preemptible at any time and equally fast in both directions.
    pub const fn fluid(bytes_per_s: u64) -> Link {
        Link {
            in_bytes_per_s: bytes_per_s,
            out_bytes_per_s: bytes_per_s,
            coupled_permille: 1000,
            setup_ns: 0,
            quantum_ns: 0,
        }
    }

    /// Returns the time of one transfer into the device without transfers out, nanoseconds, rounded up. 0 bytes need no
    /// transfer.
    pub fn in_ns(&self, bytes: u64) -> u64 {
        self.transfer_ns(bytes, self.in_bytes_per_s)
    }

    /// Returns the time of one transfer out of the device, nanoseconds, rounded up. 0 bytes need no transfer.
    pub fn out_ns(&self, bytes: u64) -> u64 {
        self.transfer_ns(bytes, self.out_bytes_per_s)
    }

    fn transfer_ns(&self, bytes: u64, bytes_per_s: u64) -> u64 {
        assert!(bytes_per_s > 0, "a link moves at least a byte per second");
        if bytes == 0 {
            return 0;
        }
        let moving_ns = (u128::from(bytes) * SECOND_NS).div_ceil(u128::from(bytes_per_s));
        u64::try_from(moving_ns).unwrap_or(u64::MAX).saturating_add(self.setup_ns)
    }
}

/// Returns when work of `work_ns` ends that starts at `from_ns` and runs at `coupled_permille` of its pace until
/// `busy_until_ns`, because the other direction is busy until then.
pub(super) fn ends_at(from_ns: u64, work_ns: u64, busy_until_ns: u64, coupled_permille: u16) -> u64 {
    let slowed_ns = done_within(from_ns, busy_until_ns, busy_until_ns, coupled_permille);
    if work_ns <= slowed_ns {
        return from_ns.saturating_add(work_ns.saturating_mul(WHOLE).div_ceil(u64::from(coupled_permille)));
    }
    from_ns.max(busy_until_ns).saturating_add(work_ns - slowed_ns)
}

/// Returns the work done from `from_ns` to `to_ns` under the same rule, nanoseconds of work.
pub(super) fn done_within(from_ns: u64, to_ns: u64, busy_until_ns: u64, coupled_permille: u16) -> u64 {
    let slow_ns = to_ns.min(busy_until_ns).saturating_sub(from_ns);
    let fast_ns = to_ns.saturating_sub(from_ns.max(busy_until_ns));
    slow_ns.saturating_mul(u64::from(coupled_permille)) / WHOLE + fast_ns
}
