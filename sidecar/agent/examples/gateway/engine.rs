//! In the engine's place: attaches over the link, takes every step as an engine does, and computes nothing.
//!
//! What it answers goes straight to the inbox of the room's thread, which is where the door's thread puts what it has read
//! off the link: a measurement that begins there has all of the sidecar's own work inside, and nothing of the link's.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use sluice_agent::engine_loop::engine_acceptor::EngineConnEvent;
use sluice_agent::scheduler_handle::{Message, MessageSender};
use sluice_link::client::{EngineRequest, EngineWelcome, SidecarLink};
use sluice_link::message::StepOrder;
use sluice_link::server::EngineEvent;
use sluice_policy::geometry::ActivationCost;
use sluice_policy::ids::RowId;
use sluice_ports::compute::{Sampled, StepDone};

use super::tenant::{PROMPT_TOKENS, stream_of};

/// One moment by both clocks: the kernel's stamps are of the second.
pub type Moment = (Instant, SystemTime);

/// For each stream, when the step that made each of its tokens was done.
pub type Sent = Vec<Vec<Moment>>;

/// The moment now.
pub fn moment() -> Moment {
    (Instant::now(), SystemTime::now())
}

/// Waits until a step is due that takes `period`, and returns when the next one may begin. One that is late does not make
/// the next ones hurry.
pub fn wait(begun: Instant, period: Duration) -> Instant {
    let due = (begun + period).max(Instant::now());
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
    due
}

/// An engine that is attached.
struct FakeEngine {
    /// Never dropped: the door confirms the death of an engine whose link has ended, and this is its own process.
    link: ManuallyDrop<SidecarLink>,
    welcome: EngineWelcome,
    inbox: MessageSender,
    /// Which stream a row of the tables belongs to.
    rows: HashMap<RowId, usize>,
    sent: Sent,
}

/// Attaches to the sidecar at `socket`, and ends with it.
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
                EngineRequest::Reback { id, .. } => self.link.send_applied(id)?,
                EngineRequest::Step(order) => {
                    let done = self.run(&order, period)?;
                    begun = wait(begun, period);
                    self.answer(done);
                }
            }
        }
    }

    /// What a step has to say.
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
        let message = Message::Engine(Box::new(EngineConnEvent::Event(EngineEvent::Done(done))));
        let at = moment();
        self.inbox.send(message);
        streams.into_iter().for_each(|stream| self.sent[stream].push(at));
    }
}
