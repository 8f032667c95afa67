//! Facts about the device's machine, and the date.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Identity of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name of the processor.
    pub cpu: String,
    /// Number of processors that this process may use.
    pub cpus: usize,
    /// Kernel release.
    pub kernel: String,
    /// Architecture.
    pub architecture: String,
    /// Sandbox between the probe and the kernel, if one is detected.
    #[serde(default)]
    pub sandbox: Option<String>,
}

impl Machine {
    /// Returns the facts of this machine.
    pub fn current() -> Machine {
        let system = rustix::system::uname();
        Machine {
            cpu: cpu().unwrap_or_else(|| "unknown processor".into()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: system.release().to_string_lossy().into_owned(),
            architecture: system.machine().to_string_lossy().into_owned(),
            sandbox: sandbox(&system.release().to_string_lossy()),
        }
    }
}

/// Returns the processor's name: on x86 the "model name"; on Arm the part number, the most specific line.
fn cpu() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let named = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    named("model name").or_else(|| named("CPU part").map(|part| format!("CPU part {part}")))
}

/// gVisor always reports this kernel release. Its calls are slower than the host's, and measured times include them.
fn sandbox(release: &str) -> Option<String> {
    (release == "4.4.0").then(|| "gVisor, according to the kernel release".into())
}

/// Returns the version of the NVIDIA driver, such as "580.65.06", from the kernel. If the kernel does not show it, as
/// in some sandboxes, from the file name of the loaded library, so call this after opening the driver.
pub fn driver_version() -> Option<String> {
    let read = |path| std::fs::read_to_string(path).ok();
    let kernel = read("/proc/driver/nvidia/version").and_then(|text| version_of_kernel(&text));
    kernel.or_else(|| read("/proc/self/maps").and_then(|maps| version_of_library(&maps)))
}

fn version_of_kernel(text: &str) -> Option<String> {
    text.lines().next()?.split_whitespace().find(|word| is_version(word)).map(str::to_owned)
}

fn version_of_library(maps: &str) -> Option<String> {
    let versions =
        maps.lines().filter_map(|line| line.rsplit_once("/libcuda.so.").map(|(_, version)| version));
    versions.filter(|version| is_version(version)).map(str::to_owned).next()
}

fn is_version(word: &str) -> bool {
    word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// Returns the current time (UTC, RFC 3339).
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock stands after 1970");
    date(since.as_secs())
}

/// Formats `seconds` since 1970 as a date, with Howard Hinnant's `civil_from_days`.
fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second % 3600 / 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(date(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(date(1_772_323_200), "2026-03-01T00:00:00Z");
    }

    #[test]
    fn driver_version_falls_back_to_library() {
        let maps = "7f00-7f01 r--p 00000000 08:01 7 /usr/lib/libcudart.so.12.8\n\
                    7f02-7f03 r-xp 00000000 08:01 9 /usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06\n";
        assert_eq!(version_of_library(maps).as_deref(), Some("580.65.06"));
        assert_eq!(version_of_library("7f02-7f03 r-xp 0 08:01 9 /tmp/libcuda.so.1\n"), None);
        let kernel =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:23:03 UTC 2025\n";
        assert_eq!(version_of_kernel(kernel).as_deref(), Some("580.65.06"));
    }

    #[test]
    fn gvisor_is_known_by_its_release() {
        assert!(sandbox("4.4.0").is_some());
        assert!(sandbox("4.4.0-210-generic").is_none() && sandbox("6.8.0-1013-nvidia-64k").is_none());
    }

    #[test]
    fn a_driver_s_version_is_found_in_its_line() {
        assert!(is_version("580.65.06"));
        assert!(!is_version("x86_64") && !is_version("NVRM") && !is_version("4"));
    }
}
