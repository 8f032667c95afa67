//! Dynamic Reversion: remapped memory becomes weights again once KV has spare capacity (Oneiros 5.1 and 7.6.1,
//! Algorithm 1 lines 7 to 12). Oneiros reverts at once. A reversion costs a copy per layer, and the next burst would
//! undo it, so this controller waits for consecutive boundaries with enough capacity, and keeps a reserve.

/// Pressure on KV memory at a step boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// Memory that KV could release without loss: free chunks and unreferenced prefix blocks, bytes.
    pub spare_bytes: u64,
    /// KV that requests hold, bytes.
    pub used_bytes: u64,
    /// Memory that a layer needs to become resident: its slab in whole chunks (the largest one if layers differ),
    /// bytes.
    pub layer_bytes: u64,
    /// Current alpha: layers that could be restored.
    pub alpha: u16,
}

/// Counts calm boundaries and decides how many layers to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hysteresis {
    patience_steps: u32,
    reserve_permille: u32,
    calm_steps: u32,
    /// Fewest layers that fitted at any boundary of the calm run.
    fitting: u16,
}

impl Hysteresis {
    /// `patience_steps` is the number of consecutive boundaries with capacity for at least one layer (0 counts as 1).
    /// `reserve_permille` is the capacity that stays free after the restore, permille of the KV in use.
    pub const fn new(patience_steps: u32, reserve_permille: u32) -> Hysteresis {
        Hysteresis { patience_steps, reserve_permille, calm_steps: 0, fitting: u16::MAX }
    }

    /// Records a boundary; returns the number of layers to restore now, usually 0. A positive result restarts the
    /// count.
    pub fn observe(&mut self, pressure: &Pressure) -> u16 {
        self.observe_within(self.patience_steps, pressure)
    }

    /// Records a boundary like [`Hysteresis::observe`], with another patience.
    pub fn observe_within(&mut self, patience_steps: u32, pressure: &Pressure) -> u16 {
        let (layers, next) = self.after(patience_steps, pressure);
        *self = next;
        layers
    }

    /// Returns the number of layers to restore at a boundary with this pressure, usually 0, and the count after it.
    pub fn after(mut self, patience_steps: u32, pressure: &Pressure) -> (u16, Hysteresis) {
        let fitting = self.fitting_now(pressure);
        if fitting == 0 {
            self.reset();
            return (0, self);
        }
        self.calm_steps += 1;
        self.fitting = self.fitting.min(fitting);
        if self.calm_steps < patience_steps {
            return (0, self);
        }
        let layers = self.fitting;
        self.reset();
        (layers, self)
    }

    /// Restarts the count, after KV grew, the layout changed, or a reversion failed.
    pub fn reset(&mut self) {
        self.calm_steps = 0;
        self.fitting = u16::MAX;
    }

    fn fitting_now(&self, pressure: &Pressure) -> u16 {
        assert!(pressure.layer_bytes > 0, "a layer has bytes");
        let reserve = (u128::from(pressure.used_bytes) * u128::from(self.reserve_permille)).div_ceil(1000);
        let room = u128::from(pressure.spare_bytes).saturating_sub(reserve);
        (room / u128::from(pressure.layer_bytes)).min(u128::from(pressure.alpha)) as u16
    }
}
