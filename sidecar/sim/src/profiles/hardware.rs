//! Published machines: one accelerator and its link to the host.

use sluice_policy::placement_planner::link::Link;

/// The accelerator's link to host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkClass {
    /// Coherent chip-to-chip (NVLink-C2C).
    Coherent,
    /// PCI Express 5.0, 16 lanes.
    Pcie5,
    /// PCI Express 4.0, 16 lanes.
    Pcie4,
    /// PCI Express 3.0, 16 lanes.
    Pcie3,
    /// As measured on the machine.
    Measured,
}

impl LinkClass {
    /// Returns the printed name.
    pub const fn name(self) -> &'static str {
        match self {
            LinkClass::Coherent => "C2C",
            LinkClass::Pcie5 => "PCIe 5",
            LinkClass::Pcie4 => "PCIe 4",
            LinkClass::Pcie3 => "PCIe 3",
            LinkClass::Measured => "measured",
        }
    }
}

/// A machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Name on the command line.
    pub name: &'static str,
    /// Class of the link to the host.
    pub class: LinkClass,
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// Host memory, bytes: as in the paper's setup, else the usual size for such a machine.
    pub host_bytes: u64,
    /// Peak bandwidth of device memory, bytes per second.
    pub memory_bytes_per_s: u64,
    /// Peak of dense half-precision matrix products, operations per second.
    pub flops: u64,
    /// The link.
    pub link: Link,
    /// Sources of the figures.
    pub source: &'static str,
}

impl Hardware {
    /// Returns the part of one of `sharers` equal partitions or concurrent steps. The link is not divided.
    pub const fn with_sharers(&self, sharers: u64) -> Hardware {
        Hardware {
            memory_bytes_per_s: self.memory_bytes_per_s / sharers,
            flops: self.flops / sharers,
            ..*self
        }
    }
}

const GIB: u64 = 1 << 30;
const GIGA: u64 = 1_000_000_000;
const TERA: u64 = 1_000_000_000_000;

/// Setup time of a copy, nanoseconds: a few microseconds of driver and engine on every link.
const SETUP_NS: u64 = 5_000;

/// Size of a piece after which a copy yields the link. At 16 MiB a link is near its peak (Pie 5.1).
const PIECE_BYTES: u64 = 16 << 20;

const fn link(in_bytes_per_s: u64, out_bytes_per_s: u64, coupled_permille: u16) -> Link {
    measured_link([in_bytes_per_s, out_bytes_per_s], coupled_permille, SETUP_NS)
}

/// Returns the link with these rates to the device and to the host, bytes per second.
pub(super) const fn measured_link(
    [in_bytes_per_s, out_bytes_per_s]: [u64; 2],
    coupled_permille: u16,
    setup_ns: u64,
) -> Link {
    let quantum_ns = PIECE_BYTES * GIGA / in_bytes_per_s;
    Link { in_bytes_per_s, out_bytes_per_s, coupled_permille, setup_ns, quantum_ns }
}

/// All machines.
pub const ALL: [Hardware; 6] = [
    Hardware {
        name: "gh200",
        class: LinkClass::Coherent,
        memory_bytes: 96 * GIB,
        host_bytes: 224 * GIB,
        memory_bytes_per_s: 4 * TERA,
        flops: 989 * TERA,
        link: link(419 * GIGA, 371 * GIGA, 857),
        source: "NVIDIA GH200 data sheet; link measured in Pie 5.1 (419 and 371 GB/s), coupling measured in Oneiros 3.2 (366 of 427 GB/s when as much goes out), host memory in Oneiros 7.1",
    },
    Hardware {
        name: "h100-pcie5",
        class: LinkClass::Pcie5,
        memory_bytes: 80 * GIB,
        host_bytes: 1024 * GIB,
        memory_bytes_per_s: 3_350 * GIGA,
        flops: 989 * TERA,
        link: link(55 * GIGA, 55 * GIGA, 900),
        source: "NVIDIA H100 SXM data sheet; 55 of 64 GB/s reached over PCIe 5 x16",
    },
    Hardware {
        name: "h200-pcie5",
        class: LinkClass::Pcie5,
        memory_bytes: 141 * GIGA,
        host_bytes: 1024 * GIB,
        memory_bytes_per_s: 4_800 * GIGA,
        flops: 989 * TERA,
        link: link(55 * GIGA, 55 * GIGA, 900),
        source: "NVIDIA H200 SXM data sheet; 55 of 64 GB/s reached over PCIe 5 x16",
    },
    Hardware {
        name: "a100-pcie4",
        class: LinkClass::Pcie4,
        memory_bytes: 80 * GIB,
        host_bytes: 1024 * GIB,
        memory_bytes_per_s: 2_039 * GIGA,
        flops: 312 * TERA,
        link: link(25 * GIGA, 25 * GIGA, 900),
        source: "NVIDIA A100 80 GB SXM data sheet; 25 of 32 GB/s reached over PCIe 4 x16",
    },
    Hardware {
        name: "a6000",
        class: LinkClass::Pcie4,
        memory_bytes: 48 * GIB,
        host_bytes: 256 * GIB,
        memory_bytes_per_s: 768 * GIGA,
        flops: 155 * TERA,
        link: link(25 * GIGA, 25 * GIGA, 900),
        source: "NVIDIA RTX A6000 data sheet (tensor cores, dense); 25 of 32 GB/s reached over PCIe 4 x16",
    },
    Hardware {
        name: "a5000-pcie3",
        class: LinkClass::Pcie3,
        memory_bytes: 24 * GIB,
        host_bytes: 384 * GIB,
        memory_bytes_per_s: 768 * GIGA,
        flops: 111 * TERA,
        link: link(12_500_000_000, 12_500_000_000, 900),
        source: "NVIDIA RTX A5000 data sheet (tensor cores, dense); 12.5 of 16 GB/s reached over PCIe 3 x16, host memory (OrbitFlow 5.1)",
    },
];

/// Returns the machine of this name.
pub fn find(name: &str) -> Option<&'static Hardware> {
    ALL.iter().find(|hardware| hardware.name == name)
}
