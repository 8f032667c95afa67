//! Compares the report's two forms with committed files. A change of the JSON that an older reader would misread must
//! raise the schema.

use sluice_probe::fitness;
use sluice_probe::machine::Machine;
use sluice_probe::report::{Answer, CheckResult, DeviceFacts, ProbeReport, SCHEMA};
use sluice_probe::statistics::Figure;

const JSON: &str = include_str!("golden/report.json");
const TEXT: &str = include_str!("golden/report.txt");

fn sample() -> ProbeReport {
    let device = DeviceFacts {
        name: "NVIDIA GH200 480GB".into(),
        uuid: "GPU-00112233-4455-6677-8899-aabbccddeeff".into(),
        pci: "0009:01:00.0".into(),
        compute_capability: "9.0".into(),
        multiprocessors: 132,
        memory_bytes: 96 << 30,
        driver: Some("580.65.06".into()),
        cuda: "13.0".into(),
    };
    let rows = vec![aliases(), share(), link(), limits()];
    ProbeReport {
        schema: SCHEMA,
        date: "2026-11-22T08:00:00Z".into(),
        command: ["sluice-gpu-probe", "--only", "1,2,4,8"].map(str::to_owned).to_vec(),
        version: "0.1.0".into(),
        commit: "0123456789ab".into(),
        quick: false,
        fitness: fitness::judge(&device, &rows),
        device,
        machine: Machine {
            cpu: "CPU part 0xd4f".into(),
            cpus: 72,
            kernel: "6.8.0-1013-nvidia-64k".into(),
            architecture: "aarch64".into(),
            sandbox: None,
        },
        rows,
    }
}

fn row(id: u8, name: &str, question: &str, answer: Answer) -> CheckResult {
    let (name, question) = (name.into(), question.into());
    CheckResult { id, name, question, answer, figures: Vec::new(), notes: Vec::new(), seconds: 1.5 }
}

fn aliases() -> CheckResult {
    let stale = Figure::single("stale reads", "reads", 0.0);
    CheckResult {
        figures: vec![stale],
        ..row(1, "aliases", "Is one handle seen alike through all its addresses?", Answer::Yes)
    }
}

fn share() -> CheckResult {
    let reason = "cuMemImportFromShareableHandle: CUDA_ERROR_NOT_SUPPORTED (operation not supported)";
    let question = "Does a handle exported as a file descriptor show the same bytes in a second process, and is its memory free \
                    again when the last mapping, import and descriptor have gone?";
    row(2, "share", question, Answer::Unknown { reason: format!("the process 'importer' failed: {reason}") })
}

fn link() -> CheckResult {
    let figures = vec![
        Figure::of("device memory, read by a kernel", "GB/s", &[3212.5, 3190.25, 3230.0]),
        Figure::of("to device, registered: peak", "GB/s", &[401.5, 427.0]),
    ];
    let no = Answer::No { reason: "registered 401.5 to device, the driver's 450.1 GB/s".into() };
    CheckResult {
        figures,
        ..row(4, "link", "Do registered pages copy as fast as the driver's own memory?", no)
    }
}

fn limits() -> CheckResult {
    let notes =
        vec!["no fabric handles: cuMemCreate: CUDA_ERROR_NOT_PERMITTED (operation not permitted)".into()];
    CheckResult { notes, ..row(8, "limits", "Can the device do what the design asks for?", Answer::Yes) }
}

#[test]
fn json_is_as_committed_and_reads_back() {
    let report = sample();
    assert_eq!(report.json(), JSON);
    assert_eq!(serde_json::from_str::<ProbeReport>(JSON).expect("a report"), report);
}

#[test]
fn text_is_as_committed_and_fits_100_columns() {
    let text = sample().to_string();
    assert_eq!(text, TEXT);
    assert!(text.lines().all(|line| line.chars().count() <= 100));
}
