//! Sleep: whether the tenant holds memory, and what becomes of its KV when it gives the memory up.

/// Copies to the host tier that may fail in a row before the KV is dropped instead.
const SWAP_TRIES: u32 = 3;

/// Whether a tenant holds memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SleepState {
    /// It holds memory.
    #[default]
    Awake,
    /// It gives its memory up.
    Suspending,
    /// It holds no memory.
    Asleep,
    /// It takes its memory back.
    Waking,
}

/// The sleep of a tenant.
#[derive(Clone, Debug, Default)]
pub struct Sleep {
    state: SleepState,
    /// KV is dropped while the tenant sleeps.
    discards_kv: bool,
    /// Copies to the host tier that failed in a row while it gave its memory up.
    swap_failures: u32,
}

impl Sleep {
    /// Returns whether the tenant holds memory.
    pub fn state(&self) -> SleepState {
        self.state
    }

    /// Whether nothing changes: it holds its memory, or none.
    pub fn is_settled(&self) -> bool {
        matches!(self.state, SleepState::Awake | SleepState::Asleep)
    }

    /// Sets whether KV is kept while the tenant sleeps, also while it sleeps already.
    pub fn set_keeps_kv(&mut self, keeps: bool) {
        self.discards_kv = !keeps;
    }

    /// Whether KV is dropped instead of copied: by order, or because its copies failed too often.
    pub fn drops_kv(&self) -> bool {
        self.discards_kv || self.swap_failures >= SWAP_TRIES
    }

    /// Whether KV is dropped by order.
    pub fn discards_kv(&self) -> bool {
        self.discards_kv
    }

    /// Begins to give memory up. Returns false if it does already, or sleeps.
    pub fn suspend(&mut self) -> bool {
        let begins = !matches!(self.state, SleepState::Suspending | SleepState::Asleep);
        if begins {
            self.state = SleepState::Suspending;
        }
        begins
    }

    /// All memory is given up.
    pub fn on_asleep(&mut self) {
        self.state = SleepState::Asleep;
    }

    /// Wakes: at once if the tenant still has all its memory, else it begins to take it back.
    pub fn wake(&mut self, has_all_memory: bool) {
        let at_once = has_all_memory && self.state != SleepState::Asleep;
        self.state = if at_once { SleepState::Awake } else { SleepState::Waking };
    }

    /// All memory is back.
    pub fn on_awake(&mut self) {
        self.state = SleepState::Awake;
    }

    /// Records the end of a copy to the host tier. Only failures while memory is given up count.
    pub fn on_swapped_out(&mut self, done: bool) {
        if done {
            self.swap_failures = 0;
        } else {
            self.swap_failures += u32::from(self.state == SleepState::Suspending);
        }
    }

    /// Returns a number that changes with the state.
    pub fn digest_word(&self) -> u64 {
        u64::from(self.swap_failures) << 8 | u64::from(self.discards_kv) << 2 | self.state as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_suspends_once_and_wakes_at_once_only_with_all_its_memory() {
        let mut sleep = Sleep::default();
        assert!(sleep.suspend() && !sleep.suspend() && !sleep.is_settled());
        sleep.wake(true);
        assert_eq!(sleep.state(), SleepState::Awake);
        assert!(sleep.suspend());
        sleep.wake(false);
        assert_eq!(sleep.state(), SleepState::Waking);
        assert!(sleep.suspend(), "also while it wakes");
        sleep.on_asleep();
        assert!(!sleep.suspend() && sleep.is_settled());
        sleep.wake(true);
        assert_eq!(sleep.state(), SleepState::Waking, "a sleeping tenant has nothing");
        sleep.on_awake();
        assert!(sleep.is_settled());
    }

    #[test]
    fn kv_is_dropped_by_order_or_after_failed_copies() {
        let mut sleep = Sleep::default();
        (0..SWAP_TRIES).for_each(|_| sleep.on_swapped_out(false));
        assert!(!sleep.drops_kv(), "an awake tenant keeps it");
        sleep.suspend();
        (1..SWAP_TRIES).for_each(|_| sleep.on_swapped_out(false));
        assert!(!sleep.drops_kv());
        sleep.on_swapped_out(true);
        (0..SWAP_TRIES).for_each(|_| sleep.on_swapped_out(false));
        assert!(sleep.drops_kv() && !sleep.discards_kv());
        sleep.on_swapped_out(true);
        assert!(!sleep.drops_kv());
        sleep.set_keeps_kv(false);
        assert!(sleep.drops_kv() && sleep.discards_kv());
    }
}
