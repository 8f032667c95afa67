//! Configuration of the stand-in by environment variables, for tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::driver_pose::DriverPose;
use crate::injected_fault::InjectedFaults;

/// The configuration, read once.
pub struct EnvConfig {
    /// Folder of the device's memory; `None`: there is no device.
    pub pool: Option<PathBuf>,
    /// Device memory in bytes.
    pub bytes: u64,
    /// Granularity of device memory in bytes.
    pub granularity: u64,
    /// Faults by name of the function.
    pub faults: InjectedFaults,
    /// The driver that the stand-in poses as.
    pub driver: DriverPose,
    /// Device attributes that differ from the defaults.
    pub attributes: BTreeMap<i32, i32>,
    /// Whether kernels are loaded with their module (`CUDA_MODULE_LOADING`) and not at their first launch.
    pub eager: bool,
    /// Whether kernels run with all checks of the interpreter.
    pub checked: bool,
    /// Threads that run the blocks of a kernel.
    pub workers: usize,
    /// Most blocks of a kernel by its name: for kernels that only take time.
    pub blocks: BTreeMap<String, u32>,
    /// File to which a process appends its held resources at exit.
    pub report: Option<PathBuf>,
    /// File to which each call appends a line.
    pub trace: Option<PathBuf>,
}

/// The configuration of this process.
pub static ENV_CONFIG: LazyLock<EnvConfig> =
    LazyLock::new(|| EnvConfig::read(|name| std::env::var(name).ok()));

impl EnvConfig {
    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let pairs = |name: &str| pairs(&variable(name).unwrap_or_default());
        let folder = variable("CUDA_MPS_PIPE_DIRECTORY");
        let in_mps = folder.is_some_and(|folder| Path::new(&folder).join("control").exists());
        let mps_faults = if in_mps { pairs("SLUICE_STANDIN_MPS_FAULTS") } else { Vec::new() };
        Self {
            pool: variable("SLUICE_STANDIN_POOL").map(PathBuf::from),
            bytes: variable("SLUICE_STANDIN_BYTES").and_then(|text| text.parse().ok()).unwrap_or(4 << 30),
            granularity: variable("SLUICE_STANDIN_GRANULARITY").map_or(2 << 20, |text| granularity(&text)),
            faults: InjectedFaults::new(pairs("SLUICE_STANDIN_FAULTS").into_iter().chain(mps_faults)),
            driver: DriverPose::named(variable("SLUICE_STANDIN_DRIVER").as_deref()),
            attributes: pairs("SLUICE_STANDIN_ATTRIBUTES")
                .into_iter()
                .map(|(number, value)| (parsed(&number), parsed(&value)))
                .collect(),
            eager: variable("CUDA_MODULE_LOADING").as_deref() == Some("EAGER"),
            checked: variable("SLUICE_STANDIN_CHECKED").as_deref() == Some("1"),
            workers: variable("SLUICE_STANDIN_WORKERS").map_or(1, |text| parsed(&text).max(1) as usize),
            blocks: pairs("SLUICE_STANDIN_BLOCKS")
                .into_iter()
                .map(|(name, most)| (name, parsed(&most).max(1).cast_unsigned()))
                .collect(),
            report: variable("SLUICE_STANDIN_REPORT").map(PathBuf::from),
            trace: variable("SLUICE_STANDIN_TRACE").map(PathBuf::from),
        }
    }
}

/// Returns a granularity that mappings of the host can have.
fn granularity(text: &str) -> u64 {
    let bytes = parsed(text).cast_unsigned().into();
    assert!(bytes >= 64 << 10 && u64::is_power_of_two(bytes), "{text} is no power of two from 64 KiB on");
    bytes
}

fn pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or_else(|| panic!("{pair} is not NAME=VALUE"));
        (name.trim().to_owned(), value.trim().to_owned())
    });
    pairs.collect()
}

fn parsed(text: &str) -> i32 {
    text.parse().unwrap_or_else(|_| panic!("{text} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::EnvConfig;
    use crate::injected_fault::Fault;

    #[test]
    fn faults_and_attributes_are_lists_of_pairs() {
        let switches = EnvConfig::read(|name| match name {
            "SLUICE_STANDIN_FAULTS" => Some("cuMemCreate=801, cuStreamWriteValue64_v2=drop".into()),
            "SLUICE_STANDIN_ATTRIBUTES" => Some("102=0".into()),
            _ => None,
        });
        assert_eq!(switches.faults.next("cuMemCreate"), Some(Fault::Code(801)));
        assert_eq!(switches.faults.next("cuStreamWriteValue64_v2"), Some(Fault::Drop));
        assert_eq!(switches.attributes[&102], 0);
        assert_eq!((switches.pool, switches.bytes, switches.granularity), (None, 4 << 30, 2 << 20));
    }

    #[test]
    fn faults_of_mps_are_those_of_a_process_with_a_daemon() {
        let folder = std::env::temp_dir().join(format!("sluice-standin-mps-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("the folder is ours");
        let read = || {
            EnvConfig::read(|name| match name {
                "SLUICE_STANDIN_MPS_FAULTS" => Some("cuMemCreate=801".into()),
                "CUDA_MPS_PIPE_DIRECTORY" => Some(folder.display().to_string()),
                _ => None,
            })
        };
        let without = read().faults;
        std::fs::write(folder.join("control"), "").expect("the folder is ours");
        let with = read().faults;
        std::fs::remove_dir_all(&folder).expect("the folder is ours");
        assert_eq!(without.next("cuMemCreate"), None);
        assert_eq!(with.next("cuMemCreate"), Some(Fault::Code(801)));
    }
}
