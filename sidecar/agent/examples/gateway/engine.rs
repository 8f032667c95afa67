//! A stand-in for the engine: it attaches over the link and accepts every step, but computes nothing.
//!
//! It sends its replies directly to the message channel of the engine loop, to which the link's reader thread sends the
//! replies that it has read. A measurement that begins there includes all of the sidecar's own work and no work of the
//! link.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use sluice_agent::engine_loop::engine_event::EngineConnEvent;
use sluice_agent::scheduler_handle::{MessageSender, SchedulerMessage};
use sluice_link::client::{EngineRequest, EngineWelcome, SidecarLink};
use sluice_link::message::StepOrder;
use sluice_link::server::EngineEvent;
use sluice_policy::geometry::ActivationCost;
use sluice_policy::ids::RowId;
use sluice_ports::compute::{Sampled, StepDone};

use super::tenant::{PROMPT_TOKENS, stream_of};

/// One moment by both clocks, because the kernel's timestamps use the second one.
pub type Moment = (Instant, SystemTime);

/// Per stream, when the step of each of its tokens was done.
pub type Sent = Vec<Vec<Moment>>;

/// Returns the current moment.
pub fn moment() -> Moment {
    (Instant::now(), SystemTime::now())
}

/// Waits until a step of `period` is due, and returns the start of the next one. A late step does not shorten the next
/// ones.
pub fn wait(begun: Instant, period: Duration) -> Instant {
    let due = (begun + period).max(Instant::now());
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
    due
}

/// An attached engine.
struct FakeEngine {
    /// Never dropped: when a link ends, the sidecar confirms the exit of the engine, which is its own process here.
    link: ManuallyDrop<SidecarLink>,
    welcome: EngineWelcome,
    inbox: MessageSender,
    /// Stream of each row of the tables.
    rows: HashMap<RowId, usize>,
    sent: Sent,
}

/// Attaches to the sidecar at `socket` and ends with it.
pub fn attach(
    socket: &Path,
    inbox: MessageSender,
    streams: usize,
    period: Duration,
) -> anyhow::Result<JoinHandle<anyhow::Result<Sent>>> {
    let mut link = ManuallyDrop::new(SidecarLink::connect(socket)?);
    let work = move || {
        let welcome = link.exchange_hello("latency")?;
        link.send_ready(welcome.setup.layout().digest(), ActivationCost::default())?;
        FakeEngine { link, welcome, inbox, rows: HashMap::new(), sent: vec![Vec::new(); streams] }
            .serve(period)
    };
    std::thread::Builder::new().name("engine".into()).spawn(work).context("a thread")
}

impl FakeEngine {
    fn serve(mut self, period: Duration) -> anyhow::Result<Sent> {
        let mut begun = Instant::now();
        loop {
            match self.link.recv()? {
                EngineRequest::Bye => return Ok(self.sent),
                EngineRequest::Remap { id, .. } | EngineRequest::Release { id, .. } => {
                    self.link.send_applied(id)?
                }
                EngineRequest::Chunks(_) => {}
                EngineRequest::Step(order) => {
                    let done = self.run(&order, period)?;
                    begun = wait(begun, period);
                    self.answer(done);
                }
            }
        }
    }

    /// Returns the result of a step.
    fn run(&mut self, order: &StepOrder, period: Duration) -> anyhow::Result<StepDone> {
        for sequence in order.sequences.iter().filter(|sequence| sequence.start == 0) {
            let mut prompt = Vec::new();
            self.welcome.tables.history(order.parity, sequence.row, 0, PROMPT_TOKENS, &mut prompt)?;
            self.rows.insert(sequence.row, stream_of(&prompt)?);
        }
        let layers = self.welcome.setup.spec.layers;
        let total_ns = u64::try_from(period.as_nanos())?;
        let sampled = order.sequences.iter().filter(|sequence| sequence.sample.is_some());
        let token = u32::from(b'a');
        Ok(StepDone {
            id: order.id,
            attempt: order.attempt,
            sampled: sampled.map(|of| Sampled { row: of.row, token, logprobs: None }).collect(),
            failed: Vec::new(),
            layer_ns: vec![total_ns / u64::from(layers); usize::from(layers)],
            stall_ns: vec![0; usize::from(layers)],
            kv_stall_ns: vec![0; usize::from(layers)],
            total_ns,
        })
    }

    fn answer(&mut self, done: StepDone) {
        let streams: Vec<_> = done.sampled.iter().map(|sampled| self.rows[&sampled.row]).collect();
        let message = SchedulerMessage::Engine(Box::new(EngineConnEvent::Event(EngineEvent::Done(done))));
        let at = moment();
        self.inbox.send(message);
        streams.into_iter().for_each(|stream| self.sent[stream].push(at));
    }
}
