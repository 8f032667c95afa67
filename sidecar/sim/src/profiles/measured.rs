//! A machine that `sluice-gpu-bench` has measured, as JSON.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::hardware::{Hardware, LinkClass, measured_link};

/// Version of the JSON form: increased if a reader of the older form would misread the newer one.
pub const SCHEMA: u32 = 1;

/// A measured machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineProfile {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Whether the driver was the stand-in over host memory. Its library says so, not its user.
    pub stand_in: bool,
    /// Name of the device.
    pub device: String,
    /// Start of the measurement, UTC, RFC 3339.
    pub date: String,
    /// Commit of the benchmark.
    pub commit: String,
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// Host memory, bytes.
    pub host_bytes: u64,
    /// Rate at which a kernel reads device memory, bytes per second.
    pub memory_bytes_per_s: u64,
    /// Rate of half-precision matrix products, operations per second.
    pub flops: u64,
    /// Peak of copies to the device, bytes per second.
    pub in_bytes_per_s: u64,
    /// Peak of copies to the host, bytes per second.
    pub out_bytes_per_s: u64,
    /// Rate of copies to the device while bytes also leave it, permille of the peak.
    pub coupled_permille: u16,
    /// Time of a small copy apart from its bytes, nanoseconds.
    pub setup_ns: u64,
}

/// A profile that the simulator does not take.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// It is not the JSON of a profile.
    #[error("not a machine profile: {0}")]
    Json(#[from] serde_json::Error),
    /// It is of another version.
    #[error("the machine profile has version {found}, and this program reads version {SCHEMA}")]
    Schema {
        /// Its version.
        found: u32,
    },
    /// Nothing of it says anything about a GPU.
    #[error(
        "the machine profile of {device:?} was measured on the stand-in for the CUDA driver, which has no speed"
    )]
    StandIn {
        /// Name of the device.
        device: String,
    },
    /// A rate or a size is zero.
    #[error("the machine profile has {field} 0")]
    Zero {
        /// Name of the field.
        field: &'static str,
    },
}

impl MachineProfile {
    /// Reads the JSON.
    ///
    /// # Errors
    /// It is not a profile, or of another version.
    pub fn parse(json: &str) -> Result<MachineProfile, ProfileError> {
        let profile: MachineProfile = serde_json::from_str(json)?;
        match profile.schema {
            SCHEMA => Ok(profile),
            found => Err(ProfileError::Schema { found }),
        }
    }

    /// Returns the machine for simulations. Its names live as long as the program, like those of published machines.
    ///
    /// # Errors
    /// It was measured on the stand-in, or a rate is zero.
    pub fn hardware(&self) -> Result<Hardware, ProfileError> {
        match self.stand_in {
            true => Err(ProfileError::StandIn { device: self.device.clone() }),
            false => self.hardware_of_any_driver(),
        }
    }

    /// Like [`MachineProfile::hardware`], also over the stand-in: for predictions of a report that says so.
    ///
    /// # Errors
    /// A rate is zero.
    pub fn hardware_of_any_driver(&self) -> Result<Hardware, ProfileError> {
        let fields = [
            ("memory_bytes", self.memory_bytes),
            ("host_bytes", self.host_bytes),
            ("memory_bytes_per_s", self.memory_bytes_per_s),
            ("flops", self.flops),
            ("in_bytes_per_s", self.in_bytes_per_s),
            ("out_bytes_per_s", self.out_bytes_per_s),
            ("coupled_permille", self.coupled_permille.into()),
        ];
        if let Some((field, _)) = fields.into_iter().find(|(_, value)| *value == 0) {
            return Err(ProfileError::Zero { field });
        }
        Ok(Hardware {
            name: self.device.clone().leak(),
            class: LinkClass::Measured,
            memory_bytes: self.memory_bytes,
            host_bytes: self.host_bytes,
            memory_bytes_per_s: self.memory_bytes_per_s,
            flops: self.flops,
            link: measured_link(
                [self.in_bytes_per_s, self.out_bytes_per_s],
                self.coupled_permille,
                self.setup_ns,
            ),
            source: format!("measured by sluice-gpu-bench at {}, commit {}", self.date, self.commit).leak(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> MachineProfile {
        MachineProfile {
            schema: SCHEMA,
            stand_in: false,
            device: "NVIDIA H100".into(),
            date: "2026-11-28T05:00:00Z".into(),
            commit: "abc".into(),
            memory_bytes: 80 << 30,
            host_bytes: 128 << 30,
            memory_bytes_per_s: 3_000_000_000_000,
            flops: 600_000_000_000_000,
            in_bytes_per_s: 55_000_000_000,
            out_bytes_per_s: 54_000_000_000,
            coupled_permille: 900,
            setup_ns: 6_000,
        }
    }

    fn read(profile: &MachineProfile) -> Result<Hardware, ProfileError> {
        MachineProfile::parse(&serde_json::to_string(profile).unwrap())?.hardware()
    }

    #[test]
    fn a_measured_machine_is_read_back() {
        let machine = read(&profile()).unwrap();
        assert_eq!((machine.name, machine.class.name()), ("NVIDIA H100", "measured"));
        assert_eq!((machine.link.out_bytes_per_s, machine.link.setup_ns), (54_000_000_000, 6_000));
        // 16 MiB at 55 GB/s.
        assert_eq!(machine.link.quantum_ns, 305_040);
    }

    #[test]
    fn a_profile_of_the_stand_in_is_refused_by_name() {
        let refused = read(&MachineProfile { stand_in: true, ..profile() }).unwrap_err().to_string();
        assert!(refused.contains("measured on the stand-in"), "{refused}");
        // Without the mark it is no profile either.
        let json = serde_json::to_string(&profile()).unwrap().replace("\"stand_in\":false,", "");
        assert!(matches!(MachineProfile::parse(&json), Err(ProfileError::Json(_))));
    }

    #[test]
    fn another_version_and_a_rate_of_zero_are_refused() {
        assert!(matches!(
            read(&MachineProfile { schema: 2, ..profile() }),
            Err(ProfileError::Schema { found: 2 })
        ));
        let refused = read(&MachineProfile { flops: 0, ..profile() }).unwrap_err().to_string();
        assert_eq!(refused, "the machine profile has flops 0");
    }
}
