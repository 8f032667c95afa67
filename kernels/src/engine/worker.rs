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
use sluice_link::message::{Device, EngineSetup, StepOrder};
use sluice_link::vocabulary::{ActionId, FailedSequence, MapOp};
use sluice_link::watch::send_watch;
use sluice_memory::SliceFence;
use sluice_memory::mapping::MappingError;

use super::cuda_device::{CudaDevice, CudaOptions};
use super::device::StepDevice;
use super::exit_code::{EXIT_GOODBYE, EXIT_MAPPING_TORN, EXIT_SIDECAR_GONE};
use super::host_device::HostDevice;
use super::options::{BUILD, Options};
use super::sidecar_watch;
use super::step::{SharedPages, Stepper};
use super::step_error::StepError;
use crate::cuda::{CudaModel, Products};
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
    status(attach_and_serve(&mut link, options)).map(ExitCode::from)
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

/// Performs the handshake with the sidecar, reserves the ranges on its device, and runs its orders.
fn attach_and_serve(link: &mut SidecarLink, options: &Options) -> anyhow::Result<()> {
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
    let shared = SharedPages { control, tables, fence };
    let spec = setup.spec.clone();
    match (setup.device, pool) {
        (Device::Cuda { uuid }, _) => {
            let model = CudaModel::new(spec, setup.chunk_bytes, setup.max_history, setup.chunk_tokens)?;
            let file = shared.control.fd().try_clone_to_owned().context("the control page's file")?;
            let products = if options.cublaslt { Products::CublasLt } else { Products::Deterministic };
            let gpu = CudaOptions { uuid, graphs: !options.no_graphs, products, control: file };
            let device = CudaDevice::new(&setup, model, gpu).context("opening the GPU")?;
            serve(link, &setup, Stepper::new(device, &setup, shared))
        }
        (Device::Host, pool) => {
            let pool = pool.context("the sidecar sent no pool of host memory")?;
            let model = Model::new(spec, setup.chunk_bytes, threads(options, setup.threads))?;
            let model = model.in_chunks_of(setup.chunk_tokens);
            let device = HostDevice::new(&setup, model, pool).context("reserving address space")?;
            serve(link, &setup, Stepper::new(device, &setup, shared))
        }
    }
}

fn threads(options: &Options, default_threads: u16) -> usize {
    match options.threads.unwrap_or(default_threads) {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => usize::from(threads),
    }
}

/// Reports that the ranges are reserved, and runs orders until `Bye`.
fn serve<D: StepDevice>(
    link: &mut SidecarLink,
    setup: &EngineSetup,
    mut stepper: Stepper<D>,
) -> anyhow::Result<()> {
    link.send_ready(setup.layout().digest(), stepper.device().activation_cost())?;
    tracing::info!(layers = setup.spec.layers, device = ?setup.device, "attached");
    loop {
        match link.recv()? {
            EngineRequest::Chunks(chunks) => stepper.device().import(chunks).context("importing chunks")?,
            EngineRequest::Release { id, chunks } => {
                let released = stepper.device().release(&chunks);
                answer(link, id, released)?;
            }
            EngineRequest::Remap { id, ops } => remap(link, &mut stepper, id, &ops)?,
            EngineRequest::Step(order) => step(link, &mut stepper, &order)?,
            EngineRequest::Bye => return Ok(()),
        }
    }
}

fn remap<D: StepDevice>(
    link: &SidecarLink,
    stepper: &mut Stepper<D>,
    id: ActionId,
    ops: &[MapOp],
) -> anyhow::Result<()> {
    let delay = Duration::from_nanos(stepper.faults().remap_delay_ns);
    if !delay.is_zero() {
        std::thread::sleep(delay);
    }
    let applied = stepper.device().apply(ops);
    answer(link, id, applied)
}

/// Replies to a change of memory. After a change that is half made this worker ends.
fn answer(link: &SidecarLink, id: ActionId, changed: Result<(), MappingError>) -> anyhow::Result<()> {
    match changed {
        Ok(()) => link.send_applied(id)?,
        Err(torn @ MappingError::RollbackFailed { .. }) => return Err(torn.into()),
        Err(error) => link.send_refused(id, format!("{:#}", anyhow::Error::new(error)))?,
    }
    Ok(())
}

fn step<D: StepDevice>(
    link: &SidecarLink,
    stepper: &mut Stepper<D>,
    order: &StepOrder,
) -> anyhow::Result<()> {
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
        Err(lost @ StepError::Gpu(_)) => return Err(lost.into()),
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
