//! Tells the tenants of a shared GPU about each other, and again whenever one of them has another port or has found its floor to
//! be more than its share: nobody leaves a neighbour what it was dealt itself. A directive that somebody has put by hand in this
//! run's epoch is gone past; one of a newer epoch has another operator, which is obeyed.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use sluice_wire::config::SidecarRecord;
use sluice_wire::directive::{Directive, Fence};
use sluice_wire::refusal::Refusal;
use sluice_wire::restart::BackOff;
use tokio::sync::{mpsc, watch};

use super::blame::Blame;
use super::process::{Order, told};
use super::shared::SharedGpu;
use super::speak::note;
use crate::admin::{Admin, NotTaken};
use crate::{Misconfigured, now_unix_ms};

/// Between two looks at tenants that have not found their floors yet.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A tenant's end of its way to the herald.
#[derive(Clone, Debug)]
pub struct Announcer {
    member: usize,
    news: mpsc::UnboundedSender<(usize, SidecarRecord)>,
}

impl Announcer {
    /// Says that the tenant's sidecar listens.
    pub fn tell(&self, record: &SidecarRecord) {
        // A herald that has gone has been told to.
        let _ = self.news.send((self.member, record.clone()));
    }
}

/// Directives under way to all tenants.
type Round = BoxFuture<'static, Taken>;
/// Floors that tenants have found, bytes, by member.
type Look = BoxFuture<'static, Vec<(usize, u64)>>;

/// What became of a directive, or of those of a round: the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Taken {
    /// It is in force, or will never be.
    Over,
    /// Somebody else deals this GPU out.
    Deposed,
    /// One of this sequence is in force: it has to be gone past.
    Behind(u64),
}

/// Gives directives to the tenants of one GPU.
#[derive(Debug)]
pub struct Herald {
    gpu: Arc<SharedGpu>,
    /// Where the configurations of its tenants come from.
    blames: Vec<Option<Blame>>,
    admin: Admin,
    news: mpsc::UnboundedReceiver<(usize, SidecarRecord)>,
    records: Vec<Option<SidecarRecord>>,
    /// Who has not said its floor since it was started.
    silent: Vec<bool>,
    last: Fence,
}

impl Herald {
    /// The herald of `gpu`, and a way to it for each member.
    pub fn new(
        gpu: SharedGpu,
        blames: Vec<Option<Blame>>,
        admin: Admin,
        epoch: u64,
    ) -> (Self, Vec<Announcer>) {
        let (sender, news) = mpsc::unbounded_channel();
        let members = gpu.members.len();
        let announcers = (0..members).map(|member| Announcer { member, news: sender.clone() }).collect();
        let last = Fence { epoch, sequence: 0 };
        let (records, silent) = (vec![None; members], vec![true; members]);
        (Herald { gpu: Arc::new(gpu), blames, admin, news, records, silent, last }, announcers)
    }

    /// Gives directives until the tenants are told to drain.
    ///
    /// # Errors
    /// The GPU is too small for the floors of its tenants.
    pub async fn run(mut self, mut orders: watch::Receiver<Order>) -> anyhow::Result<()> {
        let mut round: Round = pending().boxed();
        let mut look: Look = pending().boxed();
        loop {
            tokio::select! {
                () = told(&mut orders, Order::Drain) => return Ok(()),
                Some((member, record)) = self.news.recv() => {
                    (self.records[member], self.silent[member]) = (Some(record), true);
                    // What is under way is overtaken: a directive that was not taken yet is older than this one.
                    round = self.next().unwrap_or(round);
                    look = self.look();
                }
                taken = &mut round => round = self.after(taken)?,
                floors = &mut look => {
                    if self.learn(&floors) {
                        round = self.next().unwrap_or(round);
                    }
                    look = self.look();
                }
            }
        }
    }

    /// What follows a round.
    fn after(&mut self, taken: Taken) -> Result<Round, Misconfigured> {
        match taken {
            // Only now: whoever has another operator is not judged by what this one would deal.
            Taken::Over => self.fits()?,
            Taken::Deposed => {}
            Taken::Behind(sequence) => {
                self.last.sequence = self.last.sequence.max(sequence);
                return Ok(self.next().unwrap_or_else(|| pending().boxed()));
            }
        }
        Ok(pending().boxed())
    }

    fn fits(&self) -> Result<(), Misconfigured> {
        let Some(problem) = self.gpu.too_small() else { return Ok(()) };
        let largest = (0..self.blames.len()).max_by_key(|member| self.gpu.members[*member].floor_bytes);
        let member = largest.unwrap_or_default();
        let refusal = Refusal::new(Refusal::OF_FLOOR, problem);
        let words =
            self.blames[member].as_ref().map_or(refusal.problem.clone(), |blame| blame.words(&refusal));
        Err(Misconfigured(format!("{}: {words}", self.gpu.title(member))))
    }

    /// A round of directives to all, once all are known.
    fn next(&mut self) -> Option<Round> {
        let records: Vec<_> = self.records.iter().cloned().collect::<Option<_>>()?;
        self.last.sequence += 1;
        let (gpu, admin, fence) = (self.gpu.clone(), self.admin.clone(), self.last);
        let round = async move {
            let one = |member: usize| {
                let directive = gpu.directive(member, &records, fence);
                deliver(&admin, gpu.title(member), &records[member], directive)
            };
            join_all((0..records.len()).map(one)).await.into_iter().max().unwrap_or(Taken::Over)
        };
        Some(round.boxed())
    }

    /// Asks those that are silent for their floors, in a while.
    fn look(&self) -> Look {
        let listens =
            |member: usize| Some((member, self.records[member].clone().filter(|_| self.silent[member])?));
        let silent: Vec<_> = (0..self.silent.len()).filter_map(listens).collect();
        if silent.is_empty() {
            return pending().boxed();
        }
        let admin = self.admin.clone();
        let look = async move {
            tokio::time::sleep(LOOK_EVERY).await;
            let asked = silent.iter().map(|(member, record)| floor(&admin, *member, record));
            join_all(asked).await.into_iter().flatten().collect()
        };
        look.boxed()
    }

    /// True if there is to be a round: the GPU is dealt out anew by these floors, or too small for them. A tenant keeps the one
    /// that it had before it died.
    fn learn(&mut self, floors: &[(usize, u64)]) -> bool {
        let gpu = Arc::make_mut(&mut self.gpu);
        for (member, floor) in floors {
            self.silent[*member] = false;
            gpu.members[*member].floor_bytes = *floor;
        }
        let dealt = gpu.deal();
        if dealt {
            let parts = gpu.members.iter().map(|one| format!("{} {}", one.name, one.share_bytes));
            let parts: Vec<_> = parts.collect();
            note(format_args!(
                "{}: shares follow the floors of its tenants, bytes: {}",
                gpu.name,
                parts.join(", ")
            ));
        }
        dealt || gpu.too_small().is_some()
    }
}

/// What `member` can never lend, once it knows.
async fn floor(admin: &Admin, member: usize, record: &SidecarRecord) -> Option<(usize, u64)> {
    // Whoever has ended or does not answer is asked again.
    let state = admin.state(record).await.ok()?;
    let floor = state.neighbourhood?.floor_bytes;
    (floor > 0).then_some((member, floor))
}

/// Tries until the directive is taken or refused.
async fn deliver(admin: &Admin, title: String, record: &SidecarRecord, directive: Directive) -> Taken {
    let mut back_off = BackOff::default();
    let fence = directive.fence();
    loop {
        match admin.direct(record, &directive).await {
            Ok(()) => return Taken::Over,
            Err(NotTaken::Older { in_force, .. }) if in_force.epoch == fence.epoch => {
                note(format_args!("{title}: directive {in_force} was put by somebody else and is replaced"));
                return Taken::Behind(in_force.sequence);
            }
            Err(NotTaken::Older { problem, .. }) => {
                note(format_args!("error: {title}: directive {fence} is refused: {problem}"));
                return Taken::Deposed;
            }
            Err(NotTaken::Refused(problem)) => {
                note(format_args!("error: {title}: directive {fence} is refused: {problem}"));
                return Taken::Over;
            }
            Err(NotTaken::Failed(error)) => {
                let wait = back_off.after(Duration::ZERO);
                note(format_args!(
                    "{title}: it does not know its new share of the GPU yet, and keeps the one that it has: {error:#}; \
                     trying again in {wait:?}"
                ));
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// Rises from run to run: the time, milliseconds since the Unix epoch.
pub fn epoch() -> u64 {
    now_unix_ms()
}
