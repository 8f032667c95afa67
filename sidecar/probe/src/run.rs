//! A run: each chosen check in its own process, then the report.

use std::process::ExitCode;
use std::time::Duration;

use sluice_memory::cuda::{Device, Driver};

use crate::args::{Part, ProbeArgs};
use crate::bench::ProbeOptions;
use crate::checks::Check;
use crate::fitness;
use crate::machine::{self, Machine};
use crate::program::{self, UNANSWERED};
use crate::questions::SUITE;
use crate::report::{CheckResult, DeviceFacts, ProbeReport, SCHEMA};
use crate::suite::RunTime;

/// Time limits of a run, so that it ends within one minute or 8 minutes.
const QUICK: Duration = Duration::from_secs(54);
const FULL: Duration = Duration::from_secs(450);

/// Runs the program.
pub fn main(args: &ProbeArgs) -> ExitCode {
    program::exit_code("sluice-gpu-probe", run(args))
}

fn run(args: &ProbeArgs) -> anyhow::Result<ExitCode> {
    if let Some(Part::Child { role, device, quick }) = &args.part {
        return Ok(SUITE.child(role, ProbeOptions { ordinal: *device, quick: *quick })?);
    }
    if args.list {
        return program::print(&SUITE.list()).map(|()| ExitCode::SUCCESS);
    }
    program::check_folders(args.json.as_deref())?;
    let report = probe(args)?;
    program::publish(&report.to_string(), &report.json(), args.json.as_deref())?;
    Ok(if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(UNANSWERED) })
}

fn probe(args: &ProbeArgs) -> anyhow::Result<ProbeReport> {
    let (date, setup) = (machine::now(), args.setup());
    let device = DeviceFacts::of(Device::open(Driver::open()?, args.device)?)?;
    eprintln!("{}, CUDA {}", device.name, device.cuda);
    let time = RunTime::start(setup.pick(QUICK, FULL));
    let mut rows: Vec<CheckResult> =
        selected_checks(args).into_iter().map(|question| SUITE.result(setup, question, time)).collect();
    rows.sort_by_key(|row| row.id);
    Ok(ProbeReport {
        schema: SCHEMA,
        date,
        command: program::file_names(std::env::args()),
        version: env!("CARGO_PKG_VERSION").into(),
        commit: env!("SLUICE_COMMIT").into(),
        quick: args.quick,
        fitness: fitness::judge(&device, &rows),
        device,
        machine: Machine::current(),
        rows,
    })
}

/// Returns the chosen checks, those that decide fitness first, because a slow device may exceed the time limit.
fn selected_checks(args: &ProbeArgs) -> Vec<&'static Check> {
    let wanted = |question: &&Check| args.only.is_empty() || args.only.contains(&question.id);
    let mut chosen: Vec<_> = SUITE.checks.iter().filter(wanted).collect();
    chosen.sort_by_key(|question| (!fitness::DECIDE.contains(&question.name), question.id));
    chosen
}
