//! [`Profile`]: the speeds of a device.

use crate::direction::Direction;
use crate::profiles::cost::Launch;
use crate::profiles::hardware::Hardware;
use crate::profiles::model::ModelProfile;

/// Speeds of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Host-to-device bandwidth, bytes per second.
    pub link_bytes_per_second: u64,
    /// Device-to-host bandwidth, bytes per second.
    pub out_bytes_per_second: u64,
    /// Rate into the device while bytes also leave it, permille of the full rate.
    pub coupled_permille: u64,
    /// Start-up time of a copy, nanoseconds.
    pub copy_start_ns: u64,
    /// Time of one mapping transaction, nanoseconds.
    pub remap_ns: u64,
    /// Time of one layer per activation chunk of a step, nanoseconds.
    pub layer_ns: u64,
    /// Additional time of one layer per token, nanoseconds.
    pub layer_token_ns: u64,
    /// Time from an engine's exit to the attachment of the next engine, nanoseconds.
    pub restart_ns: u64,
    /// Kernel times of a published machine and model, used instead of `layer_ns` and `layer_token_ns`.
    pub kernels: Option<Kernels>,
}

/// The inputs of the kernel cost model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels {
    /// The machine, or the tenant's partition of it.
    pub hardware: Hardware,
    /// The model.
    pub model: ModelProfile,
    /// How kernels are launched.
    pub launch: Launch,
}

impl Profile {
    /// Combines the machine's link with a model's kernels. A mapping transaction takes 100 us, an engine restart 5 s.
    pub fn of(kernels: Kernels) -> Profile {
        let link = &kernels.hardware.link;
        Profile {
            link_bytes_per_second: link.in_bytes_per_s,
            out_bytes_per_second: link.out_bytes_per_s,
            coupled_permille: link.coupled_permille.into(),
            copy_start_ns: link.setup_ns,
            remap_ns: 100_000,
            restart_ns: 5_000_000_000,
            kernels: Some(kernels),
            ..Profile::default()
        }
    }

    /// Returns the time of a copy of `bytes` on an idle link, nanoseconds.
    pub fn copy_ns(&self, way: Direction, bytes: u64) -> u64 {
        let rate = match way {
            Direction::In => self.link_bytes_per_second,
            Direction::Out => self.out_bytes_per_second,
        };
        self.copy_start_ns + (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))) as u64
    }
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            link_bytes_per_second: 16_000_000_000,
            out_bytes_per_second: 16_000_000_000,
            coupled_permille: 1000,
            copy_start_ns: 1_000,
            remap_ns: 20_000,
            layer_ns: 100_000,
            layer_token_ns: 500,
            restart_ns: 5_000_000,
            kernels: None,
        }
    }
}
