//! A run: each chosen measurement in its own process, then the report.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use sluice_memory::cuda::{Device, Driver};
use sluice_probe::bench::ProbeOptions;
use sluice_probe::checks::Check;
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
use crate::row::Row;
use crate::scale::Scale;

/// Time limits of a run.
const QUICK: Duration = Duration::from_secs(120);
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
    let (date, setup) = (machine::now(), args.setup());
    let driver = Driver::open()?;
    let device = DeviceFacts::of(Device::open(driver, args.device)?)?;
    eprintln!("{}, CUDA {}", device.name, device.cuda);
    let time = RunTime::start(setup.pick(QUICK, FULL));
    let chosen = |check: &&Check| args.only.is_empty() || args.only.contains(&check.id);
    let rows: Vec<Row> =
        SUITE.checks.iter().filter(chosen).map(|check| SUITE.result(setup, check, time).into()).collect();
    let machine = profile::machine(&rows, (&device, driver.is_stand_in()), (&date, env!("SLUICE_COMMIT")));
    let hardware = machine.as_ref().ok().and_then(|machine| machine.hardware_of_any_driver().ok());
    let scale = Scale::new(driver, setup);
    let predictions =
        hardware.map_or_else(Vec::new, |hardware| profile::predictions(&rows, scale, &hardware));
    let report = BenchReport {
        schema: SCHEMA,
        date,
        command: program::file_names(std::env::args()),
        version: env!("CARGO_PKG_VERSION").into(),
        commit: env!("SLUICE_COMMIT").into(),
        quick: args.quick,
        stand_in: driver.is_stand_in(),
        device,
        machine: Machine::current(),
        limits: limits::judge(&rows, driver.is_stand_in()),
        predictions,
        rows,
    };
    Ok((report, machine))
}
