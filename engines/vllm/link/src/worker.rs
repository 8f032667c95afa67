//! A worker's connection: orders, ranges and the control page.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluice_link::client::worker::{
    WorkerClient, WorkerIdentity, WorkerReplies, WorkerRequest, WorkerRequests, WorkerWelcome,
};
use sluice_link::control::{ControlError, ControlPage, Lease, PassRecord, WaitLimit, WaitResult};
use sluice_link::message::WorkerSetup;
use sluice_link::socket::has_hung_up;
use sluice_link::vocabulary::{ActionId, KvChunkId, LayerId, MapOp};
use sluice_memory::MappingError;

use crate::failure::{Failure, lock, with_causes};
use crate::inbox::{Deadline, Inbox};
use crate::json::{self, WorkerIncoming, WorkerOutgoing, WorkerSetupText};
use crate::worker_memory::{WorkerMemory, ZeroError, range_of};

/// Most orders that are received and not carried out.
const MAX_ORDERS: usize = 64;
/// How long a wait sleeps before it looks whether the sidecar is there.
const WAIT_INTERVAL: Duration = Duration::from_millis(100);

/// Longest wait for the lease of a layer that was read without a wait, milliseconds.
const LEASE_LIMIT_MS: i64 = 10_000;

/// An order that waits for the caller, who knows when no pass runs.
#[derive(Debug)]
enum Order {
    Remap(ActionId, Vec<MapOp>),
    Zero(ActionId, Vec<KvChunkId>),
    Moving(ActionId),
}

impl Order {
    fn id(&self) -> ActionId {
        match self {
            Order::Remap(id, _) | Order::Zero(id, _) | Order::Moving(id) => *id,
        }
    }
}

/// The pool until the ranges are reserved, then the ranges.
#[derive(Debug)]
enum Ranges {
    Unreserved(Option<OwnedFd>),
    Reserved(WorkerMemory),
}

/// A worker's connection to its sidecar.
#[derive(Debug)]
pub(crate) struct Worker {
    setup: WorkerSetup,
    setup_text: String,
    sender: WorkerReplies,
    /// Keeps the packets of one message together.
    sending: Mutex<()>,
    inbox: Mutex<Inbox<WorkerRequests>>,
    orders: Mutex<VecDeque<Order>>,
    ranges: Mutex<Ranges>,
    control: ControlPage,
    /// Whether a receive has found the link closed, which ends waits.
    is_closed: AtomicBool,
    _sidecar: OwnedFd,
}

impl Worker {
    pub(crate) fn connect(path: &Path, hello: &[u8], deadline: Deadline) -> Result<Worker, Failure> {
        let identity: WorkerIdentity = json::read(hello)?;
        let (client, welcome) =
            deadline.connect(|left| WorkerClient::connect(path, identity.clone(), left))?;
        let WorkerClient { sender, receiver } = client;
        let WorkerWelcome { setup, pool, control, lifetime_lock, sidecar } = welcome;
        // Stays open until this process ends: peers count the tenant as alive while its engine runs.
        std::mem::forget(lifetime_lock);
        Ok(Worker {
            setup_text: json::write(&WorkerSetupText::from(&setup)),
            setup,
            sender,
            sending: Mutex::new(()),
            inbox: Mutex::new(Inbox::new(receiver)),
            orders: Mutex::new(VecDeque::new()),
            ranges: Mutex::new(Ranges::Unreserved(pool)),
            control,
            is_closed: AtomicBool::new(false),
            _sidecar: sidecar,
        })
    }

    pub(crate) fn setup_text(&self) -> &str {
        &self.setup_text
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.sender.fd()
    }

    /// Cuts the link.
    pub(crate) fn shutdown(&self) {
        // The sidecar may be gone, which is what a shutdown leads to.
        let _ = self.sender.send_bye();
        self.sender.shutdown();
    }

    /// Reserves the ranges.
    pub(crate) fn reserve(&self) -> Result<(), Failure> {
        let mut ranges = lock(&self.ranges)?;
        let Ranges::Unreserved(pool) = &mut *ranges else {
            return Err(Failure::State("the ranges are reserved already".to_owned()));
        };
        *ranges = Ranges::Reserved(WorkerMemory::reserve(&self.setup, pool.take())?);
        Ok(())
    }

    /// Returns the first address and the bytes of the range of a layer, or of KV.
    pub(crate) fn range(&self, layer: Option<u32>) -> Result<(u64, u64), Failure> {
        let chunks = match layer {
            None => self.setup.kv_chunks,
            Some(layer) => self.setup.layer_chunks[usize::from(self.layer(layer)?.0)],
        };
        let layer = layer.map(|layer| self.layer(layer)).transpose()?;
        let address = self.with_memory(|memory| Ok(memory.address(range_of(layer.map(|layer| layer.0)))))?;
        Ok((address, u64::from(chunks) * self.setup.chunk_bytes))
    }

    fn layer(&self, layer: u32) -> Result<LayerId, Failure> {
        let layers = self.setup.layers();
        match u16::try_from(layer) {
            Ok(layer) if layer < layers => Ok(LayerId(layer)),
            _ => Err(Failure::Invalid(format!("layer {layer} is not one of {layers}"))),
        }
    }

    fn with_memory<T>(
        &self,
        change: impl FnOnce(&mut WorkerMemory) -> Result<T, MappingError>,
    ) -> Result<T, Failure> {
        match &mut *lock(&self.ranges)? {
            Ranges::Reserved(memory) => Ok(change(memory)?),
            Ranges::Unreserved(_) => Err(Failure::State("the ranges are not reserved".to_owned())),
        }
    }

    /// Receives the next message for the caller, and returns where its text is.
    pub(crate) fn receive(&self, deadline: Deadline) -> Result<(*const u8, usize), Failure> {
        let mut inbox = lock(&self.inbox)?;
        loop {
            let received = match deadline.left() {
                None => inbox.receiver.recv(),
                Some(left) => inbox.receiver.recv_within(left),
            };
            let request = received.map_err(|error| self.failed(error.into()))?;
            if let Some(text) = self.take(request)? {
                return Ok(inbox.keep(text));
            }
        }
    }

    fn failed(&self, failure: Failure) -> Failure {
        if !matches!(failure, Failure::Timeout) {
            self.is_closed.store(true, Ordering::SeqCst);
        }
        failure
    }

    /// Keeps an order for the caller, or carries it out. Returns what the caller reads.
    fn take(&self, request: WorkerRequest) -> Result<Option<String>, Failure> {
        let incoming = match &request {
            WorkerRequest::Chunks(chunks) => {
                self.with_memory(|memory| memory.import(chunks))?;
                return Ok(None);
            }
            WorkerRequest::Release { id, chunks } => {
                let released = self.with_memory(|memory| memory.release(chunks));
                // The sidecar has its reply; the caller has not seen the order.
                return match self.answer(*id, released) {
                    Ok(()) | Err(Failure::Refused(_)) => Ok(None),
                    Err(failure) => Err(failure),
                };
            }
            WorkerRequest::Remap { id, ops } => {
                let maps = ops.iter().filter(|op| matches!(op, MapOp::Map(..))).count();
                WorkerIncoming::Remap { id: id.0, maps, unmaps: ops.len() - maps }
            }
            WorkerRequest::Zero { id, positions } => {
                WorkerIncoming::Zero { id: id.0, positions: positions.len() }
            }
            WorkerRequest::Moving(moving) => WorkerIncoming::Moving(moving),
            WorkerRequest::Captured => WorkerIncoming::Captured,
            WorkerRequest::KvAccepted(extents) => WorkerIncoming::KvAccepted(*extents),
            WorkerRequest::SetupRefused(refused) => WorkerIncoming::SetupRefused(refused),
            WorkerRequest::Bye => WorkerIncoming::Bye,
        };
        let text = json::write(&incoming);
        match request {
            WorkerRequest::Remap { id, ops } => self.keep(Order::Remap(id, ops))?,
            WorkerRequest::Zero { id, positions } => self.keep(Order::Zero(id, positions))?,
            WorkerRequest::Moving(moving) => self.keep(Order::Moving(moving.id))?,
            _ => {}
        }
        Ok(Some(text))
    }

    fn keep(&self, order: Order) -> Result<(), Failure> {
        let mut orders = lock(&self.orders)?;
        if orders.len() == MAX_ORDERS {
            return Err(Failure::State(format!("{MAX_ORDERS} orders wait to be carried out")));
        }
        orders.push_back(order);
        Ok(())
    }

    /// Takes the order that comes next, if it is `id` and `fits`.
    fn next_order(&self, id: u64, fits: impl FnOnce(&Order) -> bool) -> Result<Order, Failure> {
        let mut orders = lock(&self.orders)?;
        match orders.pop_front() {
            Some(order) if order.id() == ActionId(id) && fits(&order) => Ok(order),
            Some(order) => {
                let next = order.id().0;
                orders.push_front(order);
                Err(Failure::State(format!("order {id} is not what comes next, which is order {next}")))
            }
            None => Err(Failure::State(format!("there is no order {id}"))),
        }
    }

    /// Carries out an order that was received, and replies.
    pub(crate) fn apply(&self, id: u64) -> Result<(), Failure> {
        let order = self.next_order(id, |order| !matches!(order, Order::Moving(_)))?;
        let applied = match order {
            Order::Remap(_, ops) => self.with_memory(|memory| memory.apply(&ops)),
            Order::Zero(_, positions) => {
                self.with_memory(|memory| Ok(memory.zero(&positions)))?.map_err(|error| match error {
                    ZeroError::NotBacked(_) => Failure::Memory(error.to_string()),
                    ZeroError::Device(_) => Failure::Torn(with_causes(&error)),
                })
            }
            Order::Moving(_) => unreachable!("such an order was left"),
        };
        self.answer(ActionId(id), applied)
    }

    /// Replies to an order. Only a refusal leaves the memory as it was.
    fn answer(&self, id: ActionId, done: Result<(), Failure>) -> Result<(), Failure> {
        let _sending = lock(&self.sending)?;
        match done {
            Ok(()) => Ok(self.sender.send_applied(id)?),
            Err(Failure::Memory(reason)) => {
                self.sender.send_refused(id, reason.clone())?;
                Err(Failure::Refused(reason))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Sends a message of the caller.
    pub(crate) fn send(&self, text: &[u8]) -> Result<(), Failure> {
        let message: WorkerOutgoing = json::read(text)?;
        if let WorkerOutgoing::Applied { id } | WorkerOutgoing::Refused { id, .. } = &message {
            self.next_order(*id, |order| matches!(order, Order::Moving(_)))?;
        }
        let _sending = lock(&self.sending)?;
        Ok(match message {
            WorkerOutgoing::Loaded(loaded) => self.sender.send_loaded(loaded),
            WorkerOutgoing::KvLayout(layout) => self.sender.send_kv_layout(layout),
            WorkerOutgoing::Applied { id } => self.sender.send_applied(ActionId(id)),
            WorkerOutgoing::Refused { id, message } => self.sender.send_refused(ActionId(id), message),
            WorkerOutgoing::Bye => self.sender.send_bye(),
        }?)
    }

    /// Begins a pass.
    pub(crate) fn begin_pass(&self) -> u64 {
        self.control.begin_pass()
    }

    /// Ends a pass.
    pub(crate) fn end_pass(&self, record: PassRecord) {
        self.control.end_pass(record);
    }

    /// Counts progress in a pass.
    pub(crate) fn begin_layer(&self) {
        self.control.begin_layer();
    }

    /// Waits until a layer holds the weights for a pass: until the sidecar has leased them to the pass, and has copied
    /// them.
    pub(crate) fn wait_ready(&self, layer: u32, pass: u64, deadline: Deadline) -> Result<(), Failure> {
        let (id, overtaken) = (self.layer(layer)?, Failure::Overtaken { layer, pass });
        let Some(lease) = self.lease(id, pass, deadline)? else { return Err(overtaken) };
        let Lease::Moving(generation) = lease else { return Ok(()) };
        let ready = self.wait(deadline, |limit| match self.control.wait_ready(id, generation, limit)? {
            WaitResult::Reached => Ok(Ok(())),
            end => Ok(Err(end)),
        })?;
        ready.ok_or(overtaken)
    }

    /// Waits for the lease of a layer for a pass.
    fn lease(&self, layer: LayerId, pass: u64, deadline: Deadline) -> Result<Option<Lease>, Failure> {
        self.wait(deadline, |limit| match self.control.wait_lease(layer, pass, limit)? {
            Lease::Ended(end) => Ok(Err(end)),
            lease => Ok(Ok(lease)),
        })
    }

    /// Waits for what `once` waits for, and looks now and then whether the sidecar is there. `None` = a later pass or
    /// generation has taken its place.
    fn wait<T>(
        &self,
        deadline: Deadline,
        once: impl Fn(WaitLimit<'_>) -> Result<Result<T, WaitResult>, ControlError>,
    ) -> Result<Option<T>, Failure> {
        loop {
            let left = deadline.left().unwrap_or(WAIT_INTERVAL);
            let limit = WaitLimit { abort: &self.is_closed, limit: Some(left.min(WAIT_INTERVAL)) };
            match once(limit).map_err(|error| Failure::Link(error.into()))? {
                Ok(found) => return Ok(Some(found)),
                Err(WaitResult::Overtaken) => return Ok(None),
                Err(WaitResult::Aborted) => return Err(Failure::Closed),
                Err(_) if has_hung_up(self.socket()) => return Err(Failure::Closed),
                Err(_) if deadline.has_passed() => return Err(Failure::Timeout),
                Err(_) => {}
            }
        }
    }

    /// Publishes that a pass has read a layer for the last time. A layer that is resident for the pass needs none. The
    /// lease is there, unless the caller has not waited for the layer.
    pub(crate) fn publish_done(&self, layer: u32, pass: u64) -> Result<(), Failure> {
        let id = self.layer(layer)?;
        match self.lease(id, pass, Deadline::after(LEASE_LIMIT_MS))? {
            Some(Lease::Moving(generation)) => {
                self.control.publish_done(id, generation).map_err(|error| Failure::Link(error.into()))
            }
            Some(_) => Ok(()),
            None => Err(Failure::Overtaken { layer, pass }),
        }
    }
}
