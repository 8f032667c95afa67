//! Tells the tenants of a shared GPU about each other, and again whenever one of them has another port. A directive that
//! somebody has put by hand in this run's epoch is gone past; one of a newer epoch has another operator, which is obeyed.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::{BoxFuture, FutureExt, join_all};
use sluice_wire::config::SidecarRecord;
use sluice_wire::directive::{Directive, Fence};
use sluice_wire::restart::BackOff;
use tokio::sync::{mpsc, watch};

use super::process::{Order, told};
use super::shared::SharedGpu;
use super::speak::note;
use crate::admin::{Admin, NotTaken};

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

/// Directives under way to all tenants. Ends with the sequence to go past, if one of them is in force already.
type Round = BoxFuture<'static, Option<u64>>;

/// Gives directives to the tenants of one GPU.
#[derive(Debug)]
pub struct Herald {
    gpu: Arc<SharedGpu>,
    admin: Admin,
    news: mpsc::UnboundedReceiver<(usize, SidecarRecord)>,
    records: Vec<Option<SidecarRecord>>,
    last: Fence,
}

impl Herald {
    /// The herald of `gpu`, and a way to it for each member.
    pub fn new(gpu: SharedGpu, admin: Admin, epoch: u64) -> (Self, Vec<Announcer>) {
        let (sender, news) = mpsc::unbounded_channel();
        let members = 0..gpu.members.len();
        let announcers = members.clone().map(|member| Announcer { member, news: sender.clone() }).collect();
        let last = Fence { epoch, sequence: 0 };
        (Herald { records: vec![None; members.len()], gpu: Arc::new(gpu), admin, news, last }, announcers)
    }

    /// Gives directives until the tenants are told to drain.
    pub async fn run(mut self, mut orders: watch::Receiver<Order>) {
        let mut round: Round = std::future::pending().boxed();
        loop {
            tokio::select! {
                () = told(&mut orders, Order::Drain) => return,
                Some((member, record)) = self.news.recv() => {
                    self.records[member] = Some(record);
                    // What is under way is overtaken: a directive that was not taken yet is older than this one.
                    if let Some(next) = self.next() {
                        round = next;
                    }
                }
                past = &mut round => {
                    self.last.sequence = self.last.sequence.max(past.unwrap_or(0));
                    let again = past.and_then(|_| self.next());
                    round = again.unwrap_or_else(|| std::future::pending().boxed());
                }
            }
        }
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
            join_all((0..records.len()).map(one)).await.into_iter().max().flatten()
        };
        Some(round.boxed())
    }
}

/// Tries until the directive is taken or refused. Returns the sequence that has to be gone past.
async fn deliver(admin: &Admin, title: String, record: &SidecarRecord, directive: Directive) -> Option<u64> {
    let mut back_off = BackOff::default();
    let fence = directive.fence();
    loop {
        match admin.direct(record, &directive).await {
            Ok(()) => return None,
            Err(NotTaken::Older { in_force, .. }) if in_force.epoch == fence.epoch => {
                note(format_args!("{title}: directive {in_force} was put by somebody else and is replaced"));
                return Some(in_force.sequence);
            }
            Err(NotTaken::Refused(problem) | NotTaken::Older { problem, .. }) => {
                note(format_args!("error: {title}: directive {fence} is refused: {problem}"));
                return None;
            }
            Err(NotTaken::Failed(error)) => {
                let wait = back_off.after(Duration::ZERO);
                note(format_args!("{title}: directive not delivered: {error:#}; trying again in {wait:?}"));
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// Rises from run to run: the time, milliseconds since the Unix epoch.
pub fn epoch() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
