//! Whether a tenant's engine or sidecar hangs, or hung a moment ago.
//!
//! A sidecar reports its own engine that exceeded its deadline, and the sidecars before it that hung and were killed. A stopped
//! sidecar reports nothing: its neighbours do, which wait for the turn that it holds, have taken it, or have skipped it.

use k8s_openapi::jiff::Timestamp;
use sluice_types::conditions::Reason;
use sluice_wire::state::{EngineHang, SidecarHangs};

use super::mps_fault::REPORTED_MS;
use super::time;
use crate::conditions::{ConditionResult, ConditionStatus};
use crate::observed::SidecarReport;

/// A turn that is taken within this time of the end of an engine, milliseconds, is taken because of it.
const ENGINE_TAKEOVER_WINDOW_MS: i64 = 60_000;
/// As [`ENGINE_TAKEOVER_WINDOW_MS`], after the end of a sidecar: the kernel frees its turn, so a later takeover is of another hang.
const SIDECAR_TAKEOVER_WINDOW_MS: i64 = 2_000;
/// A tenant that was skipped and does not answer is reported for this long, milliseconds: until the kubelet has ended it.
const SKIP_REPORTED_MS: i64 = 180_000;
/// A sidecar is killed so long after a neighbour saw it hang at most, seconds: 12 s, of which a quarter counts on a slow node.
const SAME_HANG_SECONDS: i64 = 60;

/// When a hang was. One that lasts is later than any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HangTime {
    /// At this moment, milliseconds since 1970.
    At(i64),
    /// It lasts.
    Ongoing,
}

/// A hang of a slot's own engine or sidecar.
#[derive(Debug)]
pub struct OwnHang {
    /// What `Degraded` reports.
    pub finding: ConditionResult,
    /// When it was.
    pub when: HangTime,
}

/// The hangs that concern one slot.
#[derive(Debug, Default)]
pub struct Hangs {
    /// Its own engine or sidecar hangs, or hung a moment ago.
    pub own: Option<OwnHang>,
    /// Its sidecar does not answer, and neighbours say that it holds, or held, the turn past its deadline.
    pub is_unresponsive: bool,
    /// A neighbour holds the turn past its deadline, and this tenant waits for it.
    pub turn_wait: Option<String>,
    /// It took the turn from a neighbour a moment ago.
    pub turn_takeover: Option<String>,
}

/// A slot, by its tenant.
#[derive(Clone, Copy, Debug)]
pub struct SlotIdentity<'a> {
    /// Namespace of its tenant.
    pub namespace: &'a str,
    /// Its tenant.
    pub tenant: &'a str,
    /// Its GPU.
    pub gpu: &'a str,
    /// When its pod was made, seconds since 1970; `None` = it has none that stays.
    pub created_at: Option<i64>,
}

/// What a neighbour tells of a holder of the turn.
#[derive(Debug)]
struct PeerReport<'a> {
    /// The neighbour.
    reporter: &'a str,
    /// Since when the holder is past its deadline, or when the neighbour took the turn or skipped it, milliseconds since 1970.
    at_ms: i64,
    /// What the neighbour saw or did.
    observation: PeerObservation,
}

impl PeerReport<'_> {
    fn when(&self) -> HangTime {
        if self.observation == PeerObservation::Holds { HangTime::Ongoing } else { HangTime::At(self.at_ms) }
    }
}

/// What a neighbour reports of another tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerObservation {
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
pub fn of(
    slot: SlotIdentity<'_>,
    own: Option<&SidecarReport>,
    witnesses: &[(&str, &SidecarReport)],
    now: i64,
) -> Hangs {
    let title = format!("{}/{}", slot.namespace, slot.tenant);
    let words = peer_reports(slot.tenant, &title, witnesses);
    let counts = |word: &PeerReport<'_>| match word.observation {
        PeerObservation::Holds => true,
        PeerObservation::Took { .. } => is_recent(word.at_ms, now),
        // A pod that was made since has never been skipped: it starts.
        PeerObservation::Skipped => {
            let is_of_pod = slot.created_at.is_some_and(|made_at| word.at_ms > made_at * 1_000);
            own.is_none() && is_of_pod && now * 1_000 - word.at_ms < SKIP_REPORTED_MS
        }
    };
    let word = words.filter(counts).max_by_key(|word| word.at_ms);
    let silent =
        own.is_none() && word.as_ref().is_some_and(|word| word.observation != PeerObservation::Skipped);
    let ended = own.and_then(|own| KilledProcess::last(own, now));
    let when = ended.map(KilledProcess::when).max(word.as_ref().map(PeerReport::when));
    let found = match (ended, word) {
        (Some(ended), word)
            if word.as_ref().is_none_or(|word| word.at_ms <= ended.at_ms() + ended.takeover_window_ms()) =>
        {
            Some((ended.reason(), ended.message(word.as_ref(), slot)))
        }
        (_, Some(word)) => Some(peer_reported_hang(&word, own, slot)),
        (_, None) => None,
    };
    let own_hang = found.zip(when).map(|((reason, message), when)| {
        let finding = ConditionResult { status: ConditionStatus::True, reason, message };
        OwnHang { finding, when }
    });
    Hangs {
        own: own_hang,
        is_unresponsive: silent,
        turn_wait: own.and_then(|own| turn_wait_message(own, &title, slot.gpu)),
        turn_takeover: own.and_then(|own| takeover_message(own, slot.gpu, now)),
    }
}

fn is_recent(at_ms: i64, now: i64) -> bool {
    now * 1_000 - at_ms < REPORTED_MS
}

fn to_ms(at_unix_ms: u64) -> i64 {
    i64::try_from(at_unix_ms).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

/// A process of the tenant that hung and was killed, as its own sidecar reports it.
#[derive(Clone, Copy, Debug)]
enum KilledProcess<'a> {
    Engine(&'a EngineHang),
    Sidecar(&'a SidecarHangs),
}

impl<'a> KilledProcess<'a> {
    /// The last one that is recent, or an engine that still lives.
    fn last(own: &'a SidecarReport, now: i64) -> Option<KilledProcess<'a>> {
        let engine = own.engine_hang.as_ref().map(KilledProcess::Engine);
        let sidecar = own.sidecar_hangs.as_ref().map(KilledProcess::Sidecar);
        let all = engine.into_iter().chain(sidecar);
        all.filter(|one| one.is_alive() || is_recent(one.at_ms(), now))
            .max_by_key(|one| (one.is_alive(), one.at_ms()))
    }

    fn is_alive(self) -> bool {
        matches!(self, KilledProcess::Engine(hang) if hang.alive)
    }

    fn when(self) -> HangTime {
        if self.is_alive() { HangTime::Ongoing } else { HangTime::At(self.at_ms()) }
    }

    fn at_ms(self) -> i64 {
        match self {
            KilledProcess::Engine(hang) => to_ms(hang.at_unix_ms),
            KilledProcess::Sidecar(hangs) => to_ms(hangs.at_unix_ms),
        }
    }

    /// A turn that is taken so long after its end, milliseconds, is taken because of it.
    fn takeover_window_ms(self) -> i64 {
        match self {
            KilledProcess::Engine(_) => ENGINE_TAKEOVER_WINDOW_MS,
            KilledProcess::Sidecar(_) => SIDECAR_TAKEOVER_WINDOW_MS,
        }
    }

    fn reason(self) -> Reason {
        match self {
            KilledProcess::Engine(_) => Reason::EngineHung,
            KilledProcess::Sidecar(_) => Reason::SidecarHung,
        }
    }

    fn message(self, word: Option<&PeerReport<'_>>, slot: SlotIdentity<'_>) -> String {
        let is_same = |word: &&PeerReport<'_>| {
            matches!(word.observation, PeerObservation::Took { .. })
                && word.at_ms >= self.at_ms() - ENGINE_TAKEOVER_WINDOW_MS
        };
        let taken = word.filter(is_same);
        let taken = taken.map(|word| format!("; {}/{} took the turn from it", slot.namespace, word.reporter));
        let taken = taken.unwrap_or_default();
        let (gpu, at) = (slot.gpu, format_time(self.at_ms()));
        match self {
            KilledProcess::Engine(EngineHang { during, waited_ms, limit_ms, alive, .. }) => {
                let done = if *alive {
                    "its sidecar sent SIGKILL, which has not ended it yet"
                } else {
                    "its sidecar killed it, holds its requests, and has another engine go on with them"
                };
                format!(
                    "its engine on {gpu} hung at {at}: {waited_ms} ms without progress ({during}; the limit is {limit_ms} ms); {done}{taken}"
                )
            }
            KilledProcess::Sidecar(SidecarHangs { waited_ms, .. }) => format!(
                "its sidecar on {gpu} hung and was killed at {at}: it did not run for {waited_ms} ms; another sidecar serves{taken}"
            ),
        }
    }
}

/// Whether the message of a condition is about another hang than the message before it.
///
/// A tenant's own report has an exact moment and says how long the hang had lasted. What a neighbour saw of the same hang comes
/// after its beginning, or, where that is not known, up to [`SAME_HANG_SECONDS`] before the report.
pub fn is_another_hang(before: &str, after: &str) -> bool {
    let (Some(before), Some(after)) = (HangMoment::of(before), HangMoment::of(after)) else { return false };
    match (before.own, after.own) {
        (true, true) => before.seconds != after.seconds,
        (true, false) => after.seconds > before.seconds,
        (false, _) => {
            let earliest = after
                .started_at
                .map_or(after.seconds - SAME_HANG_SECONDS, |began| began - MAX_CLOCK_SKEW_SECONDS);
            before.seconds < earliest
        }
    }
}

/// Clocks of neighbours and whole seconds differ by no more.
const MAX_CLOCK_SKEW_SECONDS: i64 = 2;

/// When the hang was that a message of this module describes.
struct HangMoment {
    seconds: i64,
    /// The tenant itself reports it, and no neighbour.
    own: bool,
    /// When it began, if the message says how long it had lasted.
    started_at: Option<i64>,
}

impl HangMoment {
    fn of(message: &str) -> Option<HangMoment> {
        let words = message.split(' ').map(|word| word.trim_end_matches([':', ';', ',']));
        let time = words.filter_map(|word| word.parse::<Timestamp>().ok()).next()?;
        let own = message.contains(" hung at ") || message.contains(" killed at ");
        let seconds = time.as_second();
        let lasted_ms = message.split_once(" did not run for ").and_then(|(_, rest)| rest.split(' ').next());
        let began = lasted_ms.and_then(|ms| ms.parse::<i64>().ok()).map(|ms| seconds - ms / 1000);
        Some(HangMoment { seconds, own, started_at: began })
    }
}

/// What neighbours report of the tenant `title`.
fn peer_reports<'a>(
    own: &'a str,
    title: &'a str,
    witnesses: &'a [(&'a str, &'a SidecarReport)],
) -> impl Iterator<Item = PeerReport<'a>> {
    let neighbours = witnesses.iter().filter(move |(tenant, _)| *tenant != own);
    neighbours.flat_map(move |&(by, told)| {
        let late = told.late_holder.iter().filter(move |late| late.name == title);
        let holds = late.map(move |late| PeerReport {
            reporter: by,
            at_ms: late.since_ms,
            observation: PeerObservation::Holds,
        });
        let taken = told.takeover.iter().filter(move |taken| taken.from == title);
        let took = taken.map(move |taken| PeerReport {
            reporter: by,
            at_ms: to_ms(taken.at_unix_ms),
            observation: PeerObservation::Took { overdue_ms: taken.overdue_ms },
        });
        let skips = told.skip.iter().filter(move |skip| skip.of == title);
        let skipped = skips.map(move |skip| PeerReport {
            reporter: by,
            at_ms: to_ms(skip.at_unix_ms),
            observation: PeerObservation::Skipped,
        });
        holds.chain(took).chain(skipped)
    })
}

/// The hang of a holder whose own sidecar reports none: a sidecar that answers runs its scheduler, so while it holds
/// the turn too long it is its engine that hangs.
fn peer_reported_hang(
    word: &PeerReport<'_>,
    own: Option<&SidecarReport>,
    slot: SlotIdentity<'_>,
) -> (Reason, String) {
    let (at, by) = (format_time(word.at_ms), format!("{}/{}", slot.namespace, word.reporter));
    let gpu = slot.gpu;
    match (word.observation, own) {
        (PeerObservation::Holds, Some(_)) => (
            Reason::EngineHung,
            format!("its engine has held the turn of {gpu} past its deadline since {at}, as {by} tells"),
        ),
        (PeerObservation::Holds, None) => (
            Reason::SidecarHung,
            format!(
                "its sidecar does not answer and has held the turn of {gpu} past its deadline since {at}, as {by} tells"
            ),
        ),
        (PeerObservation::Skipped, _) => (
            Reason::SidecarHung,
            format!(
                "its sidecar does not answer; it was first in the queue for the turn of {gpu}, did not take it, and {by} skipped it at {at}"
            ),
        ),
        (PeerObservation::Took { overdue_ms }, own) => {
            let now = if own.is_some() { "it answers again" } else { "it does not answer" };
            let message = format!(
                "its sidecar hung: {by} took the turn of {gpu} from it at {at}, {overdue_ms} ms past its deadline; {now}"
            );
            (Reason::SidecarHung, message)
        }
    }
}

/// What a tenant with requests waits for.
fn turn_wait_message(own: &SidecarReport, title: &str, gpu: &str) -> Option<String> {
    let late = own.late_holder.as_ref().filter(|late| late.name != title && own.idle_since.is_none())?;
    let since = format_time(late.since_ms);
    Some(format!("waits for the turn of {gpu}, which {} holds past its deadline since {since}", late.name))
}

fn takeover_message(own: &SidecarReport, gpu: &str, now: i64) -> Option<String> {
    let taken = own.takeover.as_ref()?;
    let at_ms = i64::try_from(taken.at_unix_ms).ok().filter(|at_ms| is_recent(*at_ms, now))?;
    let (from, at, overdue_ms) = (&taken.from, format_time(at_ms), taken.overdue_ms);
    Some(format!("took the turn of {gpu} from {from} at {at}, {overdue_ms} ms past its deadline"))
}

/// A moment, to the second.
fn format_time(at_ms: i64) -> String {
    time(at_ms / 1_000).0.to_string()
}
