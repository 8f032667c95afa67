//! Sends directives to the tenants of a shared GPU: at the start, and when one has another port or reports a
//! minimum above its share. A manually applied directive with this run's epoch is overwritten with a higher
//! sequence; one with a newer epoch belongs to another operator and wins.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use sluice_plan::sidecar_report::floor_bytes;
use sluice_wire::config::SidecarRecord;
use sluice_wire::config_rejection::ConfigRejection;
use sluice_wire::directive::{Directive, Fence};
use sluice_wire::restart::BackOff;
use tokio::sync::{mpsc, watch};

use super::config_error::FieldLocator;
use super::output::eprint_note;
use super::process_command::{ProcessCommand, wait_for_command};
use super::shared_gpu::SharedGpu;
use crate::admin::{AdminClient, DirectiveRejected};
use crate::{Misconfigured, now_unix_ms};

/// Interval of reading the floors of tenants that have not reported them.
const FLOOR_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A tenant's sender to the directive pusher.
#[derive(Clone, Debug)]
pub struct RecordSender {
    member: usize,
    events: mpsc::UnboundedSender<(usize, SidecarRecord)>,
}

impl RecordSender {
    /// Reports that the tenant's sidecar listens.
    pub fn send(&self, record: &SidecarRecord) {
        // The pusher only ends when it is stopped.
        let _ = self.events.send((self.member, record.clone()));
    }
}

/// The directives in flight to all tenants.
type PushRound = BoxFuture<'static, PushOutcome>;
/// Reported floors, bytes, by member.
type FloorPoll = BoxFuture<'static, Vec<(usize, u64)>>;

/// The result of a directive, or the worst result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PushOutcome {
    /// The directive is in force, or will never be.
    Done,
    /// Another operator assigns the shares of this GPU.
    Deposed,
    /// A directive with this sequence is in force; the next one must exceed it.
    Behind(u64),
}

/// Sends directives to the tenants of one GPU.
#[derive(Debug)]
pub struct DirectivePusher {
    gpu: Arc<SharedGpu>,
    /// Origins of its tenants' configurations.
    locators: Vec<Option<FieldLocator>>,
    admin: AdminClient,
    events: mpsc::UnboundedReceiver<(usize, SidecarRecord)>,
    records: Vec<Option<SidecarRecord>>,
    /// Tenants that have not reported their minimum since their start.
    floors_unknown: Vec<bool>,
    last_fence: Fence,
}

impl DirectivePusher {
    /// Creates the pusher of `gpu`, and a sender for each member.
    pub fn new(
        gpu: SharedGpu,
        blames: Vec<Option<FieldLocator>>,
        admin: AdminClient,
        epoch: u64,
    ) -> (Self, Vec<RecordSender>) {
        let (sender, news) = mpsc::unbounded_channel();
        let members = gpu.gpu_tenants.len();
        let announcers = (0..members).map(|member| RecordSender { member, events: sender.clone() }).collect();
        let last = Fence { epoch, sequence: 0 };
        let (records, silent) = (vec![None; members], vec![true; members]);
        (
            DirectivePusher {
                gpu: Arc::new(gpu),
                locators: blames,
                admin,
                events: news,
                records,
                floors_unknown: silent,
                last_fence: last,
            },
            announcers,
        )
    }

    /// Sends directives until the tenants drain.
    ///
    /// # Errors
    /// The GPU is too small for the minimums of its tenants.
    pub async fn run(mut self, mut orders: watch::Receiver<ProcessCommand>) -> anyhow::Result<()> {
        let mut round: PushRound = pending().boxed();
        let mut look: FloorPoll = pending().boxed();
        loop {
            tokio::select! {
                () = wait_for_command(&mut orders, ProcessCommand::Drain) => return Ok(()),
                Some((member, record)) = self.events.recv() => {
                    (self.records[member], self.floors_unknown[member]) = (Some(record), true);
                    // The new round replaces one in flight: a directive that was not accepted yet is older than this
                    // one.
                    round = self.next_round().unwrap_or(round);
                    look = self.poll_floors();
                }
                taken = &mut round => round = self.on_round_done(taken)?,
                floors = &mut look => {
                    if self.record_floors(&floors) {
                        round = self.next_round().unwrap_or(round);
                    }
                    look = self.poll_floors();
                }
            }
        }
    }

    /// Handles the result of a round.
    fn on_round_done(&mut self, taken: PushOutcome) -> Result<PushRound, Misconfigured> {
        match taken {
            // Checked last: tenants of another operator do not depend on this run's shares.
            PushOutcome::Done => self.check_capacity()?,
            PushOutcome::Deposed => {}
            PushOutcome::Behind(sequence) => {
                self.last_fence.sequence = self.last_fence.sequence.max(sequence);
                return Ok(self.next_round().unwrap_or_else(|| pending().boxed()));
            }
        }
        Ok(pending().boxed())
    }

    fn check_capacity(&self) -> Result<(), Misconfigured> {
        let Some(problem) = self.gpu.capacity_error() else { return Ok(()) };
        let largest = (0..self.locators.len())
            .max_by_key(|member| self.gpu.gpu_tenants[*member].reported_floor_bytes());
        let member = largest.unwrap_or_default();
        let refusal = ConfigRejection::new(ConfigRejection::OF_FLOOR, problem);
        let words =
            self.locators[member].as_ref().map_or(refusal.problem.clone(), |blame| blame.describe(&refusal));
        Err(Misconfigured(format!("{}: {words}", self.gpu.title(member))))
    }

    /// Starts a round of directives to all members, once all records are known.
    fn next_round(&mut self) -> Option<PushRound> {
        let records: Vec<_> = self.records.iter().cloned().collect::<Option<_>>()?;
        self.last_fence.sequence += 1;
        let (gpu, admin, fence) = (self.gpu.clone(), self.admin.clone(), self.last_fence);
        let round = async move {
            let one = |member: usize| {
                let directive = gpu.directive(member, &records, fence);
                push_until_accepted(&admin, gpu.title(member), &records[member], directive)
            };
            join_all((0..records.len()).map(one)).await.into_iter().max().unwrap_or(PushOutcome::Done)
        };
        Some(round.boxed())
    }

    /// Reads the floors of members that have not reported them, after a delay.
    fn poll_floors(&self) -> FloorPoll {
        let listens = |member: usize| {
            Some((member, self.records[member].clone().filter(|_| self.floors_unknown[member])?))
        };
        let silent: Vec<_> = (0..self.floors_unknown.len()).filter_map(listens).collect();
        if silent.is_empty() {
            return pending().boxed();
        }
        let admin = self.admin.clone();
        let look = async move {
            tokio::time::sleep(FLOOR_POLL_INTERVAL).await;
            let asked = silent.iter().map(|(member, record)| fetch_floor(&admin, *member, record));
            join_all(asked).await.into_iter().flatten().collect()
        };
        look.boxed()
    }

    /// True if there is to be a round: the GPU is dealt out again by these floors, or too small for them. A tenant
    /// keeps the one that it had before it died.
    fn record_floors(&mut self, floors: &[(usize, u64)]) -> bool {
        let gpu = Arc::make_mut(&mut self.gpu);
        for (member, floor) in floors {
            self.floors_unknown[*member] = false;
            gpu.gpu_tenants[*member].set_reported_floor(*floor);
        }
        let dealt = gpu.reassign_shares();
        if dealt {
            let parts = gpu.gpu_tenants.iter().map(|one| format!("{} {}", one.name, one.share.share_bytes));
            let parts: Vec<_> = parts.collect();
            eprint_note(format_args!(
                "{}: new shares, because the floors of its tenants changed, bytes: {}",
                gpu.name,
                parts.join(", ")
            ));
        }
        dealt || gpu.capacity_error().is_some()
    }
}

/// Reads the floor of `member`, once it is known.
async fn fetch_floor(admin: &AdminClient, member: usize, record: &SidecarRecord) -> Option<(usize, u64)> {
    // A sidecar that has exited or does not answer is polled again.
    let state = admin.state(record).await.ok()?;
    Some((member, floor_bytes(&state)?))
}

/// Retries until the directive is accepted or rejected.
async fn push_until_accepted(
    admin: &AdminClient,
    title: String,
    record: &SidecarRecord,
    directive: Directive,
) -> PushOutcome {
    let mut back_off = BackOff::default();
    let fence = directive.fence();
    loop {
        match admin.put_directive(record, &directive).await {
            Ok(()) => return PushOutcome::Done,
            Err(DirectiveRejected::Stale { in_force, .. }) if in_force.epoch == fence.epoch => {
                eprint_note(format_args!(
                    "{title}: directive {in_force} is from another sender and is replaced"
                ));
                return PushOutcome::Behind(in_force.sequence);
            }
            Err(DirectiveRejected::Stale { problem, .. }) => {
                eprint_note(format_args!("error: {title}: directive {fence} is refused: {problem}"));
                return PushOutcome::Deposed;
            }
            Err(DirectiveRejected::Invalid(problem)) => {
                eprint_note(format_args!("error: {title}: directive {fence} is refused: {problem}"));
                return PushOutcome::Done;
            }
            Err(DirectiveRejected::Failed(error)) => {
                let wait = back_off.next_delay(Duration::ZERO);
                eprint_note(format_args!(
                    "{title} could not be sent its new share of the GPU and keeps its current share: \
                     {error:#}; trying again in {wait:?}"
                ));
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// Returns an epoch that grows from run to run: the time, milliseconds since the Unix epoch.
pub fn new_epoch() -> u64 {
    now_unix_ms()
}
