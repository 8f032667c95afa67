//! The worker: attaches to a sidecar, then runs its orders one by one.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use sluice_link::client::{EngineRequest, EngineWelcome, SidecarLink};
use sluice_link::error::LinkError;
use sluice_link::message::StepOrder;
use sluice_link::vocabulary::{ActionId, FailedSequence, MapOp};
use sluice_link::watch::send_watch;
use sluice_memory::SliceFence;
use sluice_memory::mapping::MappingError;

use super::exit_code::{EXIT_GOODBYE, EXIT_MAPPING_TORN, EXIT_SIDECAR_GONE};
use super::memory::EngineMemory;
use super::options::{BUILD, Options};
use super::sidecar_watch;
use super::step::Stepper;
use super::step_error::StepError;
use crate::forward::Model;

const RETRY: Duration = Duration::from_millis(20);
/// How long the worker of a terminating pod looks for a sidecar that still needs it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves one sidecar until it sends `Bye` or exits.
pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    exit_with_supervisor(options)?;
    let term = Arc::new(AtomicBool::new(options.drain));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&term)).context("signal handler")?;
    }
    let Some(mut link) = connect(&options.socket, options.drain, &term)? else {
        return Ok(ExitCode::from(EXIT_GOODBYE));
    };
    sidecar_watch::start(link.fd())?;
    let ended = attach(&mut link, options).and_then(|stepper| serve(&mut link, stepper));
    status(ended).map(ExitCode::from)
}

/// Maps how a worker ended to the exit status that the supervisor reads.
fn status(ended: anyhow::Result<()>) -> anyhow::Result<u8> {
    let Err(error) = ended else { return Ok(EXIT_GOODBYE) };
    if matches!(error.downcast_ref(), Some(LinkError::Closed)) {
        return Ok(EXIT_SIDECAR_GONE);
    }
    if matches!(error.downcast_ref(), Some(MappingError::RollbackFailed { .. })) {
        tracing::error!("this worker ends, and a new worker maps the memory again: {error:#}");
        return Ok(EXIT_MAPPING_TORN);
    }
    Err(error)
}

/// Makes the kernel kill this worker when its supervisor exits: no other process would restart or reap it.
fn exit_with_supervisor(options: &Options) -> anyhow::Result<()> {
    let Some(supervisor) = options.worker else { return Ok(()) };
    set_parent_process_death_signal(Some(Signal::KILL)).context("prctl(PR_SET_PDEATHSIG)")?;
    // The supervisor may have exited before the line above; then the parent is already another process.
    match getppid() {
        Some(parent) if parent.as_raw_nonzero().get() == supervisor => Ok(()),
        _ => bail!("the supervisor {supervisor} has exited"),
    }
}

/// Connects, and retries while no process listens. Returns `None` after SIGTERM; when draining, not before
/// [`DRAIN_TIMEOUT`].
fn connect(socket: &Path, drain: bool, term: &AtomicBool) -> anyhow::Result<Option<SidecarLink>> {
    let begun = Instant::now();
    loop {
        match SidecarLink::connect(socket) {
            Ok(link) => return Ok(Some(link)),
            Err(LinkError::Path { source, .. }) if is_absent(&source) => {}
            Err(error) => return Err(error).context("connecting to the sidecar"),
        }
        let over = !drain || begun.elapsed() >= DRAIN_TIMEOUT;
        if term.load(Ordering::SeqCst) && over {
            return Ok(None);
        }
        std::thread::sleep(RETRY);
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error.kind(), NotFound | ConnectionRefused)
}

/// Performs the handshake with the sidecar and reserves the ranges.
fn attach(link: &mut SidecarLink, options: &Options) -> anyhow::Result<Stepper> {
    let EngineWelcome { setup, pool, control, tables, lifetime_lock: life, sidecar } =
        link.exchange_hello(BUILD)?;
    if let Some(supervisor) = options.worker.and_then(Pid::from_raw) {
        link.set_supervisor(supervisor);
        // A worker's standard input is its supervisor's socket.
        send_watch(std::io::stdin().as_fd(), &control, sidecar.as_fd()).context("showing the sidecar")?;
    }
    let fence = SliceFence::open(life.as_fd()).context("the epoch of the time slice")?;
    // Stays open until this process ends: peers count the tenant as alive while its engine runs.
    std::mem::forget(life);
    let pool = pool.context("this engine computes on the host, and the sidecar offers a GPU")?;
    let memory = EngineMemory::reserve(&setup, pool).context("reserving address space")?;
    let model = Model::new(setup.spec.clone(), setup.chunk_bytes, threads(options, setup.threads))?;
    let model = model.in_chunks_of(setup.chunk_tokens);
    link.send_ready(setup.layout().digest(), model.activation_cost())?;
    tracing::info!(layers = setup.spec.layers, "attached");
    Ok(Stepper::new(model, memory, control, tables, fence, setup.faults))
}

fn threads(options: &Options, default_threads: u16) -> usize {
    match options.threads.unwrap_or(default_threads) {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => usize::from(threads),
    }
}

/// Runs orders until `Bye`.
fn serve(link: &mut SidecarLink, mut stepper: Stepper) -> anyhow::Result<()> {
    loop {
        match link.recv()? {
            EngineRequest::Remap { id, ops } => remap(link, &mut stepper, id, &ops)?,
            EngineRequest::Chunks(_) | EngineRequest::Release { .. } => {
                bail!("the sidecar sends chunks of a GPU, and this engine computes on the host")
            }
            EngineRequest::Step(order) => step(link, &mut stepper, &order)?,
            EngineRequest::Bye => return Ok(()),
        }
    }
}

fn remap(link: &SidecarLink, stepper: &mut Stepper, id: ActionId, ops: &[MapOp]) -> anyhow::Result<()> {
    let delay = Duration::from_nanos(stepper.faults().remap_delay_ns);
    if !delay.is_zero() {
        std::thread::sleep(delay);
    }
    match stepper.memory().apply(ops) {
        Ok(()) => link.send_applied(id)?,
        Err(torn @ MappingError::RollbackFailed { .. }) => return Err(torn.into()),
        Err(error) => link.send_refused(id, format!("{:#}", anyhow::Error::new(error)))?,
    }
    Ok(())
}

fn step(link: &SidecarLink, stepper: &mut Stepper, order: &StepOrder) -> anyhow::Result<()> {
    match stepper.run(order, Instant::now()) {
        Ok(done) => {
            for FailedSequence { row, failure } in &done.failed {
                tracing::warn!(step = order.id.0, row = row.0, "{failure}");
            }
            link.send_done(done)?;
        }
        Err(passed @ StepError::StaleEpoch { .. }) => {
            tracing::warn!(step = order.id.0, "skipped: {passed}");
            link.send_stale_epoch(order)?;
        }
        Err(error) => {
            tracing::warn!(step = order.id.0, "refused: {error}");
            link.send_step_refused(order, error.to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_mapping_ends_worker_with_distinct_status() {
        let refused = || Box::new(MappingError::TooLarge { chunks: 1, chunk_bytes: 1 });
        let torn = MappingError::RollbackFailed { refused: refused(), stuck: refused() };
        assert_eq!(status(Err(torn.into())).ok(), Some(EXIT_MAPPING_TORN));
        assert_eq!(status(Err(LinkError::Closed.into())).ok(), Some(EXIT_SIDECAR_GONE));
        assert_eq!(status(Ok(())).ok(), Some(EXIT_GOODBYE));
        assert!(status(Err((*refused()).into())).is_err(), "any other error is reported unchanged");
    }
}
