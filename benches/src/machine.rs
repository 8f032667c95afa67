//! Description of the machine behind a figure: processor, cores, memory, kernel, tree. It contains nothing that
//! identifies the machine.

use std::process::Command;

use cargo_metadata::camino::Utf8Path;
use serde_json::{Value, json};

use crate::source_tree::SourceTree;

/// Features that decide which kernels run and how fast, of those that `/proc/cpuinfo` names.
const FEATURES: [&str; 20] = [
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "amx_tile",
    "amx_bf16",
    "asimd",
    "asimdhp",
    "asimddp",
    "sve",
    "sve2",
    "bf16",
    "i8mm",
];

/// Returns the machine at this moment; its load shows how quiet it was.
pub fn describe() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let load = read("/proc/loadavg");
    let mut machine = processor(&read("/proc/cpuinfo"));
    machine["cores"] = json!(std::thread::available_parallelism().map_or(0, usize::from));
    machine["memory_mib"] = json!(memory_mib(&read("/proc/meminfo")));
    // The version without its local suffix, which names builds and providers.
    let release = read("/proc/sys/kernel/osrelease");
    machine["kernel"] = json!(release.trim().split('-').next());
    machine["load_1_min"] = json!(load.split(' ').next().and_then(|load| load.parse::<f64>().ok()));
    machine
}

/// The head of a report: command, commit, and the machine as [`describe`] found it.
pub fn report(tree: &SourceTree, machine: Value) -> Value {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let command = format!("cargo run -p sluice-benches -- {}", words.join(" "));
    json!({"command": command, "commit": commit(&tree.root), "machine": machine})
}

/// The same as text.
pub fn heading(report: &Value) -> String {
    let machine = &report["machine"];
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let features = machine["features"].as_array().into_iter().flatten();
    let features: Vec<_> = features.filter_map(Value::as_str).collect();
    format!(
        "{}\ncommit {}\n{}, {} cores, {} MiB, kernel {}, load {} at the start\n{}\n\n",
        text(&report["command"]),
        text(&report["commit"]),
        text(&machine["processor"]),
        machine["cores"],
        machine["memory_mib"],
        text(&machine["kernel"]),
        machine["load_1_min"],
        features.join(" ")
    )
}

/// The commit, with a `+` if files differ from it.
fn commit(root: &Utf8Path) -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(root).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return "unknown".into() };
    let changed = git(&["status", "--porcelain"]).is_none_or(|files| !files.is_empty());
    format!("{commit}{}", if changed { "+" } else { "" })
}

fn processor(cpuinfo: &str) -> Value {
    let field = |names: &[&str]| {
        let named = |line: &'_ str| {
            let (name, value) = line.split_once(':')?;
            names.contains(&name.trim()).then(|| value.trim().to_owned())
        };
        cpuinfo.lines().find_map(named)
    };
    let flags = field(&["flags", "Features"]).unwrap_or_default();
    let known = |name: &&str| flags.split(' ').any(|flag| flag == *name);
    let features: Vec<_> = FEATURES.into_iter().filter(known).collect();
    // Arm kernels name no model, only numbers of the implementer and the part.
    let part = || field(&["CPU part"]).map(|part| format!("{} part {part}", std::env::consts::ARCH));
    json!({"processor": field(&["model name"]).or_else(part), "features": features})
}

fn memory_mib(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(total.trim().trim_end_matches(" kB").parse::<u64>().ok()? >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_shows_name_and_features() {
        let x86 = "processor\t: 0\nmodel name\t: A Processor\nflags\t\t: fpu avx avx2x avx2 fma\n\nprocessor\t: 1\n";
        let expected = json!({"processor": "A Processor", "features": ["avx", "avx2", "fma"]});
        assert_eq!(processor(x86), expected);
        let arm = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU part\t: 0xd4f\n";
        assert_eq!(processor(arm)["features"], json!(["asimd", "sve"]));
        assert!(processor(arm)["processor"].as_str().unwrap().ends_with("part 0xd4f"));
    }

    #[test]
    fn memory_is_shown_in_mib() {
        assert_eq!(memory_mib("MemTotal:       24683000 kB\nMemFree: 1 kB\n"), Some(24_104));
        assert_eq!(memory_mib(""), None);
    }

    #[test]
    fn heading_shows_command_and_machine() {
        let machine = json!({
            "processor": "P", "cores": 2, "memory_mib": 24_104, "kernel": "6.1", "load_1_min": 0.05,
            "features": ["avx2", "fma"],
        });
        let report =
            json!({"command": "cargo run -p sluice-benches -- budgets", "commit": "abc", "machine": machine});
        let expected = "cargo run -p sluice-benches -- budgets\ncommit abc\nP, 2 cores, 24104 MiB, kernel 6.1, load 0.05 at the \
                        start\navx2 fma\n\n";
        assert_eq!(heading(&report), expected);
    }
}
