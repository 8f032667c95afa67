//! Whether a tenant's engine or sidecar hangs, or hung a moment ago.
//!
//! A sidecar reports its own engine that exceeded its deadline, and the sidecars before it that hung and were killed. A stopped
//! sidecar reports nothing: its neighbours do, which wait for the turn that it holds, have taken it, or have skipped it.

use k8s_openapi::jiff::Timestamp;
use sluice_types::conditions::Reason;
use sluice_wire::state::{EngineHang, SidecarHangs};

use super::fault::TOLD_MS;
use super::time;
use crate::seen::Report;
use crate::status::{Finding, Truth};

/// A turn that is taken within this time of the end of an engine or a sidecar, milliseconds, is taken because of it.
const SAME_MS: i64 = 60_000;
/// A tenant that was skipped and does not answer is reported for this long, milliseconds: until the kubelet has ended it.
const SKIPPED_MS: i64 = 180_000;
/// Two moments further apart than this belong to two hangs, seconds: a sidecar is killed about 12 s after its turn is taken.
const SAME_HANG_SECONDS: i64 = 30;

/// The hangs that concern one slot.
#[derive(Debug, Default)]
pub struct Hangs {
    /// Its own engine or sidecar hangs, or hung a moment ago.
    pub own: Option<Finding>,
    /// Its sidecar does not answer, and neighbours say that it holds, or held, the turn past its deadline.
    pub silent: bool,
    /// A neighbour holds the turn past its deadline, and this tenant waits for it.
    pub waits: Option<String>,
    /// It took the turn from a neighbour a moment ago.
    pub took: Option<String>,
}

/// A slot, by its tenant.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// Namespace of its tenant.
    pub namespace: &'a str,
    /// Its tenant.
    pub tenant: &'a str,
    /// Its GPU.
    pub gpu: &'a str,
}

/// What a neighbour tells of a holder of the turn.
#[derive(Debug)]
struct Word<'a> {
    /// The neighbour.
    by: &'a str,
    /// Since when the holder is past its deadline, or when the neighbour took the turn or skipped it, milliseconds since 1970.
    at_ms: i64,
    /// What the neighbour saw or did.
    what: What,
}

/// What a neighbour reports of another tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// It holds the turn past its deadline.
    Holds,
    /// The neighbour took the turn from it, so long after its deadline.
    Took { overdue_ms: u64 },
    /// The neighbour skipped it in the queue for the turn.
    Skipped,
}

/// The hangs that concern `slot` at `now`, seconds since 1970.
///
/// `own` is what its sidecar told, `witnesses` what tenants of its GPU did that tell something of a holder of the turn.
pub fn of(slot: Slot<'_>, own: Option<&Report>, witnesses: &[(&str, &Report)], now: i64) -> Hangs {
    let title = format!("{}/{}", slot.namespace, slot.tenant);
    let words = words(slot.tenant, &title, witnesses);
    let counts = |word: &Word<'_>| match word.what {
        What::Holds => true,
        What::Took { .. } => is_recent(word.at_ms, now),
        What::Skipped => own.is_none() && now * 1_000 - word.at_ms < SKIPPED_MS,
    };
    let word = words.filter(counts).max_by_key(|word| word.at_ms);
    let silent = own.is_none() && word.is_some();
    let found = match (own.and_then(|own| Ended::last(own, now)), word) {
        (Some(ended), word) if word.as_ref().is_none_or(|word| word.at_ms <= ended.at_ms() + SAME_MS) => {
            Some((ended.reason(), ended.message(word.as_ref(), slot)))
        }
        (_, Some(word)) => Some(holder(&word, own, slot)),
        (_, None) => None,
    };
    let own_finding = found.map(|(reason, message)| Finding { truth: Truth::True, reason, message });
    Hangs {
        own: own_finding,
        silent,
        waits: own.and_then(|own| waits(own, &title, slot.gpu)),
        took: own.and_then(|own| took(own, slot.gpu, now)),
    }
}

fn is_recent(at_ms: i64, now: i64) -> bool {
    now * 1_000 - at_ms < TOLD_MS
}

fn ms(at_unix_ms: u64) -> i64 {
    i64::try_from(at_unix_ms).unwrap_or(i64::MAX / 2)
}

/// A process of the tenant that hung and was killed, as its own sidecar reports it.
#[derive(Clone, Copy, Debug)]
enum Ended<'a> {
    Engine(&'a EngineHang),
    Sidecar(&'a SidecarHangs),
}

impl<'a> Ended<'a> {
    /// The last one that is recent, or an engine that still lives.
    fn last(own: &'a Report, now: i64) -> Option<Ended<'a>> {
        let engine = own.hang.as_ref().map(Ended::Engine);
        let sidecar = own.sidecar_hangs.as_ref().map(Ended::Sidecar);
        let all = engine.into_iter().chain(sidecar);
        all.filter(|one| one.lasts() || is_recent(one.at_ms(), now))
            .max_by_key(|one| (one.lasts(), one.at_ms()))
    }

    fn lasts(self) -> bool {
        matches!(self, Ended::Engine(hang) if hang.alive)
    }

    fn at_ms(self) -> i64 {
        match self {
            Ended::Engine(hang) => ms(hang.at_unix_ms),
            Ended::Sidecar(hangs) => ms(hangs.at_unix_ms),
        }
    }

    fn reason(self) -> Reason {
        match self {
            Ended::Engine(_) => Reason::EngineHung,
            Ended::Sidecar(_) => Reason::SidecarHung,
        }
    }

    fn message(self, word: Option<&Word<'_>>, slot: Slot<'_>) -> String {
        let is_same =
            |word: &&Word<'_>| matches!(word.what, What::Took { .. }) && word.at_ms >= self.at_ms() - SAME_MS;
        let taken = word.filter(is_same);
        let taken = taken.map(|word| format!("; {}/{} took the turn from it", slot.namespace, word.by));
        let taken = taken.unwrap_or_default();
        let (gpu, at) = (slot.gpu, clock(self.at_ms()));
        match self {
            Ended::Engine(EngineHang { during, waited_ms, limit_ms, alive, .. }) => {
                let done = if *alive {
                    "its sidecar sent SIGKILL, which has not ended it yet"
                } else {
                    "its sidecar killed it, holds its requests, and has another engine go on with them"
                };
                format!(
                    "its engine on {gpu} hung at {at}: {waited_ms} ms without progress ({during}; the limit is {limit_ms} ms); {done}{taken}"
                )
            }
            Ended::Sidecar(SidecarHangs { waited_ms, .. }) => format!(
                "its sidecar on {gpu} hung and was killed at {at}: it did not run for {waited_ms} ms; another sidecar serves{taken}"
            ),
        }
    }
}

/// Whether the message of a condition is about another hang than the message before it.
pub fn is_another_hang(before: &str, after: &str) -> bool {
    match (moment(before), moment(after)) {
        (Some(before), Some(after)) => (after - before).abs() > SAME_HANG_SECONDS,
        _ => false,
    }
}

/// When the hang was that a message of this module describes, seconds since 1970; `None` = it lasts, or there is none.
fn moment(message: &str) -> Option<i64> {
    let mut words = message.split(' ').map(|word| word.trim_end_matches([':', ';', ',']));
    words.find(|word| *word == "at")?;
    let time: Timestamp = words.next()?.parse().ok()?;
    Some(time.as_second())
}

/// What neighbours report of the tenant `title`.
fn words<'a>(
    own: &'a str,
    title: &'a str,
    witnesses: &'a [(&'a str, &'a Report)],
) -> impl Iterator<Item = Word<'a>> {
    let neighbours = witnesses.iter().filter(move |(tenant, _)| *tenant != own);
    neighbours.flat_map(move |&(by, told)| {
        let late = told.late_holder.iter().filter(move |late| late.name == title);
        let holds = late.map(move |late| Word { by, at_ms: late.since_ms, what: What::Holds });
        let taken = told.takeover.iter().filter(move |taken| taken.from == title);
        let took = taken.map(move |taken| Word {
            by,
            at_ms: ms(taken.at_unix_ms),
            what: What::Took { overdue_ms: taken.overdue_ms },
        });
        let skips = told.skip.iter().filter(move |skip| skip.of == title);
        let skipped = skips.map(move |skip| Word { by, at_ms: ms(skip.at_unix_ms), what: What::Skipped });
        holds.chain(took).chain(skipped)
    })
}

/// The hang of a holder whose own sidecar reports none: a sidecar that answers runs its scheduler, so while it holds
/// the turn too long it is its engine that hangs.
fn holder(word: &Word<'_>, own: Option<&Report>, slot: Slot<'_>) -> (Reason, String) {
    let (at, by) = (clock(word.at_ms), format!("{}/{}", slot.namespace, word.by));
    let gpu = slot.gpu;
    match (word.what, own) {
        (What::Holds, Some(_)) => (
            Reason::EngineHung,
            format!("its engine has held the turn of {gpu} past its deadline since {at}, as {by} tells"),
        ),
        (What::Holds, None) => (
            Reason::SidecarHung,
            format!(
                "its sidecar does not answer and has held the turn of {gpu} past its deadline since {at}, as {by} tells"
            ),
        ),
        (What::Skipped, _) => (
            Reason::SidecarHung,
            format!(
                "its sidecar does not answer; it was first in the queue for the turn of {gpu}, did not take it, and {by} skipped it at {at}"
            ),
        ),
        (What::Took { overdue_ms }, own) => {
            let now = if own.is_some() { "it answers again" } else { "it does not answer" };
            let message = format!(
                "its sidecar hung: {by} took the turn of {gpu} from it at {at}, {overdue_ms} ms past its deadline; {now}"
            );
            (Reason::SidecarHung, message)
        }
    }
}

/// What a tenant with requests waits for.
fn waits(own: &Report, title: &str, gpu: &str) -> Option<String> {
    let late = own.late_holder.as_ref().filter(|late| late.name != title && own.idle_since.is_none())?;
    let since = clock(late.since_ms);
    Some(format!("waits for the turn of {gpu}, which {} holds past its deadline since {since}", late.name))
}

fn took(own: &Report, gpu: &str, now: i64) -> Option<String> {
    let taken = own.takeover.as_ref()?;
    let at_ms = i64::try_from(taken.at_unix_ms).ok().filter(|at_ms| is_recent(*at_ms, now))?;
    let (from, at, overdue_ms) = (&taken.from, clock(at_ms), taken.overdue_ms);
    Some(format!("took the turn of {gpu} from {from} at {at}, {overdue_ms} ms past its deadline"))
}

/// A moment, to the second.
fn clock(at_ms: i64) -> String {
    time(at_ms / 1_000).0.to_string()
}
