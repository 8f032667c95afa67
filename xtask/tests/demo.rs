//! The demo from its first line to its last: real processes, real bursts, and nothing left behind.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// For the whole demo; it takes a tenth of this on two cores.
const LIMIT: Duration = Duration::from_secs(240);
/// Between two looks at a process.
const LOOK: Duration = Duration::from_millis(50);

#[test]
fn the_demo_ends_well_with_identical_tokens_and_leaves_nothing() {
    let folder = tempfile::Builder::new().prefix("demo-").tempdir().unwrap();
    let (status, stdout, stderr) = demo(folder.path(), &["--quick"]);
    assert!(status.success(), "{status}\n{stdout}\n{stderr}");
    let heading = "Recompute  Oneiros, MRU  Oneiros, LRU\n";
    let table = stdout.split_once(heading).map_or("", |(_, table)| table);
    assert_eq!(words(table, "tokens identical"), ["yes"], "{stdout}");
    for row in ["throughput, output tokens/s", "P99 TTFT, ms", "P99 TBT as delivered, ms"] {
        let figures = words(table, row);
        let measured = |word: &&str| word.parse::<f64>().is_ok_and(|figure| figure > 0.0);
        assert!(figures.len() == 3 && figures.iter().all(measured), "{row}: {figures:?}\n{stdout}");
    }
    // Fixed partitions lend nothing, on any machine.
    assert_eq!(words(table, "chunks lent, in all").first(), Some(&"0"), "{stdout}");
    for tenant in ["chat W", "code W", "summary W"] {
        assert!(stdout.contains(tenant), "nobody sees what {tenant} holds\n{stdout}");
    }
    assert!(stdout.lines().last().is_some_and(|line| line.starts_with("Oneiros ")), "{stdout}");
    assert_eq!(processes_of(folder.path()), [0; 0], "processes are left");
    let files: Vec<_> = std::fs::read_dir(folder.path().join("tmp")).unwrap().collect();
    assert!(files.is_empty(), "{files:?}");
}

#[test]
fn a_model_folder_that_is_not_there_is_named_before_anything_is_done() {
    let folder = tempfile::Builder::new().prefix("demo-").tempdir().unwrap();
    let (status, stdout, stderr) = demo(folder.path(), &["--model", "/nowhere/model"]);
    assert_eq!((status.code(), stdout.as_str()), (Some(1), ""));
    let said = "xtask: --model /nowhere/model: no config.json there; it takes a model folder in Hugging Face layout\n";
    assert_eq!(stderr, said);
}

/// Runs the demo over the binaries of this build with `folder/tmp` for temporary files.
fn demo(folder: &Path, arguments: &[&str]) -> (ExitStatus, String, String) {
    std::fs::create_dir(folder.join("tmp")).unwrap();
    let said = |name| folder.join(name);
    let child = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["demo", "--bins"])
        .arg(binaries())
        .args(arguments)
        .env("TMPDIR", folder.join("tmp"))
        .stdin(Stdio::null())
        .stdout(File::create(said("stdout")).unwrap())
        .stderr(File::create(said("stderr")).unwrap())
        .spawn();
    let status = ended(child.unwrap());
    let read = |name| std::fs::read_to_string(said(name)).unwrap();
    (status, read("stdout"), read("stderr"))
}

/// Where the product's binaries lie: in `SLUICE_BIN_DIR`, else beside the tool.
fn binaries() -> PathBuf {
    let beside = || Path::new(env!("CARGO_BIN_EXE_xtask")).parent().unwrap().to_owned();
    let given = std::env::var_os("SLUICE_BIN_DIR").filter(|folder| !folder.is_empty());
    let folder = given.map_or_else(beside, PathBuf::from);
    let built = folder.join("sluice-sidecar").is_file();
    assert!(built, "nothing is built: run `cargo build --workspace --bins`, or `cargo xtask test`");
    folder
}

/// Waits for the end. Past the limit the demo is told to end, which it does in order.
fn ended(mut child: Child) -> ExitStatus {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() && begun.elapsed() < LIMIT {
        std::thread::sleep(LOOK);
    }
    if child.try_wait().unwrap().is_none() {
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
    }
    child.wait().unwrap()
}

/// What stands after `name` in its row.
fn words<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let row = table.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
    row.split_whitespace().collect()
}

/// Processes whose temporary folder lies in `folder`: all that the demo has started. What has ended has no environment.
fn processes_of(folder: &Path) -> Vec<u32> {
    let mark = format!("TMPDIR={}/tmp\0", folder.display());
    let marked = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|window| window == mark.as_bytes())
    };
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(marked).collect()
}
