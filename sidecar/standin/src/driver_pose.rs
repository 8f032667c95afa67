//! Which driver the stand-in poses as.

/// A version of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverPose {
    /// As `cuDriverGetVersion` returns it: 12080 is CUDA 12.8.
    number: i32,
    /// The newest `.version` of PTX that its compiler takes, in tenths: 87 is 8.7.
    ptx: u32,
    /// As `cublasLtGetVersion` returns it, of the cuBLAS that came with this CUDA.
    cublas: usize,
}

/// The drivers by name, from the release notes of CUDA and the table "PTX Release History" of the PTX ISA.
const POSES: [(&str, DriverPose); 4] = [
    ("12.0", DriverPose { number: 12000, ptx: 80, cublas: 120_001 }),
    ("12.4", DriverPose { number: 12040, ptx: 84, cublas: 120_402 }),
    ("12.8", DriverPose { number: 12080, ptx: 87, cublas: 120_803 }),
    ("13.0", DriverPose { number: 13000, ptx: 90, cublas: 130_000 }),
];

/// Functions of this library that drivers have since a version.
const SINCE: [(i32, &[&str]); 3] = [
    (12030, &["cuStreamGetCaptureInfo_v3", "cuStreamUpdateCaptureDependencies_v2"]),
    (12040, &["cuFuncGetParamInfo", "cuFuncIsLoaded", "cuFuncLoad"]),
    (12080, &["cuEventElapsedTime_v2"]),
];

impl DriverPose {
    /// Returns the driver with this CUDA version; without one that of CUDA 12.4.
    ///
    /// # Panics
    /// If there is no such pose.
    pub fn named(name: Option<&str>) -> Self {
        let name = name.unwrap_or("12.4");
        let known = POSES.iter().find(|(known, _)| *known == name);
        let names = POSES.map(|(name, _)| name).join(", ");
        known.unwrap_or_else(|| panic!("SLUICE_STANDIN_DRIVER={name} is none of {names}")).1
    }

    /// Returns the version as `cuDriverGetVersion` does.
    pub fn number(self) -> i32 {
        self.number
    }

    /// Returns the newest `.version` of PTX that it takes: major and minor.
    pub fn newest_ptx(self) -> (u32, u32) {
        (self.ptx / 10, self.ptx % 10)
    }

    /// Returns the version of its cuBLAS.
    pub fn cublas_version(self) -> usize {
        self.cublas
    }

    /// Returns the version of the first driver with a function of this library; 0 for all drivers.
    pub fn since(self, function: &str) -> i32 {
        SINCE.iter().find(|(_, names)| names.contains(&function)).map_or(0, |(since, _)| *since)
    }

    /// Returns the functions of this library that this driver lacks.
    pub fn absent(self) -> impl Iterator<Item = &'static str> {
        SINCE
            .iter()
            .filter(move |(since, _)| *since > self.number)
            .flat_map(|(_, names)| names.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::DriverPose;

    #[test]
    fn an_older_driver_takes_older_ptx_and_lacks_newer_functions() {
        let [old, new] = ["12.0", "13.0"].map(|name| DriverPose::named(Some(name)));
        assert_eq!((old.newest_ptx(), new.newest_ptx()), ((8, 0), (9, 0)));
        assert!(old.absent().any(|name| name == "cuEventElapsedTime_v2"));
        assert_eq!(new.absent().count(), 0);
    }
}
