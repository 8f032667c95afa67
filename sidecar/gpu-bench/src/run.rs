//! A run: each chosen measurement in its own process, then the report.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use sluice_memory::cuda::{Device, Driver};
use sluice_probe::bench::ProbeOptions;
use sluice_probe::machine::{self, Machine};
use sluice_probe::program::{self, UNANSWERED};
use sluice_probe::report::DeviceFacts;
use sluice_probe::suite::RunTime;
use sluice_sim::profiles::measured::MachineProfile;

use crate::args::{BenchArgs, Part};
use crate::drawings;
use crate::limits;
use crate::measurements::SUITE;
use crate::profile;
use crate::report::{BenchReport, SCHEMA};
use crate::row::{Outcome, Row};
use crate::scale::Scale;

/// Time limits of a run.
const QUICK: Duration = Duration::from_secs(240);
const FULL: Duration = Duration::from_secs(900);

/// Runs the program.
pub fn main(args: &BenchArgs) -> ExitCode {
    program::exit_code("sluice-gpu-bench", run(args))
}

fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    if let Some(Part::Child { role, device, quick }) = &args.part {
        return Ok(SUITE.child(role, ProbeOptions { ordinal: *device, quick: *quick })?);
    }
    if args.list {
        return program::print(&SUITE.list()).map(|()| ExitCode::SUCCESS);
    }
    program::check_folders([&args.json, &args.profile].into_iter().flatten().map(|path| path.as_path()))?;
    let (report, machine) = measure(args)?;
    program::publish(&report.to_string(), &report.json(), args.json.as_deref())?;
    if let Some(folder) = &args.svg {
        drawings::draw(&report, folder)?;
    }
    if let Some(path) = &args.profile {
        let machine = machine.map_err(|reason| anyhow!("no machine profile: {reason}"))?;
        let json = serde_json::to_string_pretty(&machine)? + "\n";
        std::fs::write(path, json).with_context(|| path.display().to_string())?;
    }
    Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(UNANSWERED) })
}

/// The machine of a run, or what was not measured for it.
type MeasuredMachine = Result<MachineProfile, String>;

fn measure(args: &BenchArgs) -> anyhow::Result<(BenchReport, MeasuredMachine)> {
    let (setup, driver) = (args.setup(), Driver::open()?);
    if let Some(problem) = Device::open(driver, args.device)?.unfit_capability()? {
        anyhow::bail!("device {}: {problem}", args.device);
    }
    if let Some(folder) = &args.svg {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let empty = empty_report(args, driver)?;
    let file = args.json.as_deref().filter(|path| *path != Path::new("-"));
    let mut rows = match (args.resume, file) {
        (true, Some(file)) => earlier_rows(&empty, file)?,
        _ => Vec::new(),
    };
    eprintln!("{}, CUDA {}", empty.device.name, empty.device.cuda);
    let time = RunTime::start(setup.pick(QUICK, FULL));
    for check in SUITE.checks {
        let chosen = args.only.is_empty() || args.only.contains(&check.id);
        if !chosen || rows.iter().any(|row| row.name == check.name) {
            continue;
        }
        rows.push(SUITE.result(setup, check, time).into());
        rows.sort_by_key(|row: &Row| SUITE.checks.iter().position(|check| check.name == row.name));
        if let Some(file) = file {
            // A run that is cut off leaves what it has measured.
            let report = complete(&empty, rows.clone(), setup).0;
            std::fs::write(file, report.json()).with_context(|| file.display().to_string())?;
        }
    }
    Ok(complete(&empty, rows, setup))
}

/// Returns the report of a run that has measured nothing.
fn empty_report(args: &BenchArgs, driver: Driver) -> anyhow::Result<BenchReport> {
    Ok(BenchReport {
        schema: SCHEMA,
        date: machine::now(),
        command: program::file_names(std::env::args()),
        version: env!("CARGO_PKG_VERSION").into(),
        commit: env!("SLUICE_COMMIT").into(),
        quick: args.quick,
        stand_in: driver.is_stand_in(),
        device: DeviceFacts::of(Device::open(driver, args.device)?)?,
        machine: Machine::current(),
        limits: Vec::new(),
        predictions: Vec::new(),
        rows: Vec::new(),
    })
}

/// Returns what an earlier run has measured, without what failed; nothing if there is no file.
fn earlier_rows(now: &BenchReport, file: &Path) -> anyhow::Result<Vec<Row>> {
    let text = match std::fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| file.display().to_string())?,
    };
    let before: BenchReport = serde_json::from_slice(&text).with_context(|| file.display().to_string())?;
    let of = |report: &BenchReport| {
        (report.schema, report.commit.clone(), report.quick, report.stand_in, report.device.name.clone())
    };
    ensure!(
        of(&before) == of(now),
        "{}: --resume keeps only what the same program has measured on the same device, with the same --quick",
        file.display()
    );
    Ok(before.rows.into_iter().filter(|row| row.outcome == Outcome::Measured).collect())
}

/// Returns a report with these rows and what follows from them, and the machine.
fn complete(empty: &BenchReport, rows: Vec<Row>, setup: ProbeOptions) -> (BenchReport, MeasuredMachine) {
    let BenchReport { device, stand_in, date, commit, .. } = empty;
    let machine = profile::machine(&rows, (device, *stand_in), (date, commit));
    let hardware = machine.as_ref().ok().and_then(|machine| machine.hardware_of_any_driver().ok());
    let scale = Scale::new(*stand_in, setup);
    let predictions =
        hardware.map_or_else(Vec::new, |hardware| profile::predictions(&rows, scale, &hardware));
    let limits = limits::judge(&rows, *stand_in);
    (BenchReport { limits, predictions, rows, ..empty.clone() }, machine)
}
