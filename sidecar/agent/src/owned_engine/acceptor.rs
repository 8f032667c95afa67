//! Accepts the processes of an engine that schedules by itself. One engine is attached at a time: its worker gets memory
//! only after the processes of the engine before it have exited.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_link::control::ControlPage;
use sluice_link::error::LinkError;
use sluice_link::message::{RefusalReason, SchedulerHello, SchedulerSetup, WorkerSetup};
use sluice_link::process_exit::PeerProcess;
use sluice_link::server::scheduler::{SchedulerEvent, SchedulerHandshake, SchedulerSender};
use sluice_link::server::worker::{WorkerEvent, WorkerHandshake, WorkerMemory};
use sluice_link::server::{Connection, FirstMessage, Listener};

use super::engine::SchedulerEnd;
use super::message::{EngineMessage, LoopMessage};
use crate::engine_loop::engine_acceptor::{EngineLease, LEASE_TIMEOUT};

/// Interval at which the acceptor checks whether it is closed.
const ACCEPT_TIMEOUT: Duration = Duration::from_millis(200);
/// A process whose link ended gets `EXIT_GRACE` to exit, then is killed and gets `EXIT_LIMIT` to be gone.
const EXIT_GRACE: Duration = Duration::from_millis(200);
const EXIT_LIMIT: Duration = Duration::from_secs(5);

/// The processes of the attached engine.
#[derive(Debug, Default)]
struct Processes {
    worker: Option<Arc<PeerProcess>>,
    scheduler: Option<Arc<PeerProcess>>,
}

/// What the threads of the acceptor share.
#[derive(Debug)]
struct Shared {
    setup: WorkerSetup,
    pool: Option<OwnedFd>,
    control: Arc<ControlPage>,
    /// File description that the processes keep open until they exit. On a shared GPU it holds the tenant's locks.
    liveness: OwnedFd,
    inbox: Sender<LoopMessage>,
    lease: EngineLease,
    processes: Mutex<Processes>,
}

/// Accepts engines until `closed`.
pub struct EngineAcceptor {
    listener: Listener,
    closed: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

impl EngineAcceptor {
    /// An acceptor for workers of `setup`, which map `pool`, or import chunks one by one without it.
    pub fn new(
        listener: Listener,
        (setup, pool): (WorkerSetup, Option<OwnedFd>),
        (control, liveness): (Arc<ControlPage>, OwnedFd),
        inbox: Sender<LoopMessage>,
        closed: Arc<AtomicBool>,
    ) -> EngineAcceptor {
        let (lease, processes) = (EngineLease::new(LEASE_TIMEOUT), Mutex::default());
        let shared = Shared { setup, pool, control, liveness, inbox, lease, processes };
        EngineAcceptor { listener, closed, shared: Arc::new(shared) }
    }

    /// Accepts engines until closed.
    pub fn run(self) {
        while !self.closed.load(Ordering::Relaxed) {
            match self.listener.accept(ACCEPT_TIMEOUT) {
                Ok(None) => {}
                Ok(Some(connection)) => self.spawn(connection),
                Err(error) => tracing::warn!(%error, "could not accept the connection of an engine"),
            }
        }
    }

    /// Serves a connection on its own thread, so that a slow peer does not block others.
    fn spawn(&self, connection: Connection) {
        let shared = self.shared.clone();
        let spawned = std::thread::Builder::new().name("engine-peer".into()).spawn(move || {
            if let Err(error) = serve(&shared, connection) {
                tracing::warn!(%error, "refused a process of an engine");
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "could not accept the connection of an engine");
        }
    }
}

fn serve(shared: &Arc<Shared>, connection: Connection) -> Result<(), LinkError> {
    match connection.recv_first()? {
        FirstMessage::Worker(worker) => serve_worker(shared, worker),
        FirstMessage::Scheduler(scheduler) => accept_scheduler(shared, scheduler),
        FirstMessage::Engine(_) => {
            tracing::warn!(
                "refused an engine that runs the sidecar's steps: this tenant's engine schedules by itself"
            );
            Ok(())
        }
    }
}

/// Waits until the engine before has exited, then serves this worker until all processes of its engine have exited.
fn serve_worker(shared: &Arc<Shared>, worker: WorkerHandshake) -> Result<(), LinkError> {
    let Some(_lease) = shared.lease.acquire() else {
        return worker.refuse(RefusalReason::Occupied, "another engine is attached and its process runs");
    };
    tracing::info!(engine = worker.hello().engine, pid = worker.hello().pid, "engine attached");
    let memory = WorkerMemory {
        pool: shared.pool.as_ref().map(AsFd::as_fd),
        control: &shared.control,
        lifetime_lock: shared.liveness.as_fd(),
    };
    let mut link = worker.send_setup(&shared.setup, memory)?;
    shared.processes().worker = Some(Arc::new(link.process));
    shared.send(EngineMessage::WorkerAttached(link.sender.clone()));
    let why = loop {
        match link.receiver.recv() {
            Ok(WorkerEvent::Bye) => break "the engine closed the link".to_owned(),
            Ok(event) => shared.send(EngineMessage::Worker(event)),
            Err(error) => break error.to_string(),
        }
    };
    // A process that still runs could write memory that is another's by then.
    let processes = std::mem::take(&mut *shared.processes());
    [processes.worker, processes.scheduler].iter().flatten().for_each(|process| confirm_exit(process));
    shared.send(EngineMessage::Lost(why));
    Ok(())
}

fn accept_scheduler(shared: &Arc<Shared>, scheduler: SchedulerHandshake) -> Result<(), LinkError> {
    if shared.processes().worker.is_none() {
        return scheduler.refuse(RefusalReason::Other, "no worker of this engine is attached");
    }
    let hello = scheduler.hello().clone();
    let state = SchedulerState::Waiting(Some(scheduler));
    let connected = ConnectedScheduler { hello, state, shared: shared.clone() };
    shared.send(EngineMessage::SchedulerConnected(Box::new(connected)));
    Ok(())
}

/// The scheduler of the attached engine. It waits for its extents, and has commands afterwards.
#[derive(Debug)]
pub struct ConnectedScheduler {
    hello: SchedulerHello,
    state: SchedulerState,
    shared: Arc<Shared>,
}

#[derive(Debug)]
enum SchedulerState {
    /// `None` = the reply failed.
    Waiting(Option<SchedulerHandshake>),
    Running(SchedulerSender),
}

impl SchedulerEnd for ConnectedScheduler {
    fn hello(&self) -> &SchedulerHello {
        &self.hello
    }

    fn welcome(&mut self, setup: &SchedulerSetup) -> Result<(), LinkError> {
        let SchedulerState::Waiting(waiting) = &mut self.state else { return Ok(()) };
        let Some(handshake) = waiting.take() else { return Err(LinkError::Closed) };
        let mut link = handshake.send_setup(setup, self.shared.liveness.as_fd())?;
        self.shared.processes().scheduler = Some(Arc::new(link.process));
        self.state = SchedulerState::Running(link.sender);
        let shared = self.shared.clone();
        let forward = move || {
            let why = loop {
                match link.receiver.recv() {
                    Ok(SchedulerEvent::Bye) => break "the scheduler closed the link".to_owned(),
                    Ok(event) => shared.send(EngineMessage::Scheduler(event)),
                    Err(error) => break error.to_string(),
                }
            };
            tracing::warn!(%why, "the scheduler of the engine is gone: ending its worker");
            // The worker's thread confirms the exit of both.
            if let Some(Err(error)) = shared.processes().worker.as_ref().map(|worker| worker.kill()) {
                tracing::error!(%error, "could not end the worker of the engine");
            }
        };
        let spawned = std::thread::Builder::new().name("engine-scheduler".into()).spawn(forward);
        let kernel = |error: std::io::Error| LinkError::Kernel {
            call: "clone",
            source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN),
        };
        spawned.map(drop).map_err(kernel)
    }

    fn commands(&self) -> Option<&SchedulerSender> {
        match &self.state {
            SchedulerState::Waiting(_) => None,
            SchedulerState::Running(commands) => Some(commands),
        }
    }
}

fn confirm_exit(process: &PeerProcess) {
    while let Err(error) = process.kill_and_wait(EXIT_GRACE, EXIT_LIMIT) {
        tracing::error!(%error, "the process of an engine with a closed link still runs; no new engine is \
                                 accepted until it ends");
    }
}

impl Shared {
    fn processes(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, message: EngineMessage) {
        // The loop may have ended.
        let _ = self.inbox.send(LoopMessage::Engine(message));
    }
}
