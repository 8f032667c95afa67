//! Detects whether a tenant's engine or sidecar hangs, or hung recently.
//!
//! A sidecar reports a hang of its own engine, and earlier sidecars that hung and were killed. A stopped sidecar
//! reports nothing: its peers do, which wait for the time slice that it holds, have taken it, or have skipped it.

use k8s_openapi::jiff::Timestamp;
use sluice_types::conditions::Reason;
use sluice_wire::state::{EngineHang, SidecarHangs};

use super::mps_fault::REPORTED_MS;
use super::time::time;
use crate::conditions::{ConditionResult, ConditionStatus};
use crate::observed::SidecarReport;

/// A takeover of the time slice within this time of an engine's exit, milliseconds, is attributed to that exit.
const ENGINE_TAKEOVER_WINDOW_MS: i64 = 60_000;
/// As [`ENGINE_TAKEOVER_WINDOW_MS`], after the exit of a sidecar: the kernel frees its time slice, so a later
/// takeover belongs to another hang.
const SIDECAR_TAKEOVER_WINDOW_MS: i64 = 2_000;
/// A skipped tenant that does not answer is reported for this long, milliseconds: until the kubelet has killed it.
const SKIP_REPORTED_MS: i64 = 180_000;
/// A sidecar is killed at most this long after a peer saw it hang, seconds: the limit is 12 s, and on a slow node
/// only a quarter of the time counts.
const SAME_HANG_SECONDS: i64 = 60;

/// When a hang was. An ongoing one is later than any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HangTime {
    /// Milliseconds since 1970.
    At(i64),
    /// The hang is ongoing.
    Ongoing,
}

/// A hang of a slot's own engine or sidecar.
#[derive(Debug)]
pub struct OwnHang {
    /// The finding for `Degraded`.
    pub finding: ConditionResult,
    pub when: HangTime,
}

/// The hangs that concern one slot.
#[derive(Debug, Default)]
pub struct Hangs {
    /// Its own engine or sidecar hangs, or hung recently.
    pub own: Option<OwnHang>,
    /// Its sidecar does not answer, and peers report that it holds, or held, the time slice past its deadline.
    pub is_unresponsive: bool,
    /// A peer holds the time slice past its deadline, and this tenant waits for it.
    pub slice_wait: Option<String>,
    /// It took the time slice from a peer recently.
    pub slice_takeover: Option<String>,
}

/// Identity of a slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotIdentity<'a> {
    pub namespace: &'a str,
    pub tenant: &'a str,
    pub gpu: &'a str,
    /// Creation time of its current pod, seconds since 1970; `None` = it has none.
    pub created_at: Option<i64>,
}

/// A peer's report on a holder of the time slice.
#[derive(Debug)]
struct PeerReport<'a> {
    /// The reporting peer.
    reporter: &'a str,
    /// Since when the holder is past its deadline, or when the peer took the time slice or skipped the tenant,
    /// milliseconds since 1970.
    at_ms: i64,
    /// The peer's observation or action.
    observation: PeerObservation,
}

impl PeerReport<'_> {
    fn when(&self) -> HangTime {
        if self.observation == PeerObservation::Holds { HangTime::Ongoing } else { HangTime::At(self.at_ms) }
    }
}

/// A peer's observation of another tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerObservation {
    /// The tenant holds the time slice past its deadline.
    Holds,
    /// The peer took the time slice from the tenant, this long after its deadline.
    Took { overdue_ms: u64 },
    /// The peer skipped the tenant in the time-slice queue.
    Skipped,
}

/// Returns the hangs that concern `slot` at `now`, seconds since 1970.
///
/// `own` is the report of its sidecar; `witnesses` are the tenants of its GPU that report on a holder of the time
/// slice.
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
        // A pod created after the skip was not skipped: it is starting.
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
        slice_wait: own.and_then(|own| slice_wait_message(own, &title, slot.gpu)),
        slice_takeover: own.and_then(|own| takeover_message(own, slot.gpu, now)),
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
    /// Returns the last recent one, or an engine that has not exited yet.
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

    /// Returns how long after its exit a takeover is attributed to it, milliseconds.
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
        let taken =
            taken.map(|word| format!("; {}/{} took over its time slice", slot.namespace, word.reporter));
        let taken = taken.unwrap_or_default();
        let (gpu, at) = (slot.gpu, format_time(self.at_ms()));
        match self {
            KilledProcess::Engine(EngineHang { during, waited_ms, limit_ms, alive, .. }) => {
                let done = if *alive {
                    "its sidecar sent SIGKILL, and the process has not ended yet"
                } else {
                    "its sidecar killed it, holds its requests, and continues them with a new engine"
                };
                format!(
                    "its engine on {gpu} hung at {at}: {waited_ms} ms without progress ({during}; the limit is {limit_ms} ms); {done}{taken}"
                )
            }
            KilledProcess::Sidecar(SidecarHangs { waited_ms, .. }) => format!(
                "its sidecar on {gpu} hung and was killed at {at}: it did not run for {waited_ms} ms; a new \
                 sidecar serves{taken}"
            ),
        }
    }
}

/// Whether two condition messages are about different hangs.
///
/// A tenant's own report has an exact time and the duration of the hang. A peer's observation of the same hang
/// follows its start, or, if the start is not known, is at most [`SAME_HANG_SECONDS`] before the report.
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

/// Maximum difference from clocks of peers and from rounding to seconds.
const MAX_CLOCK_SKEW_SECONDS: i64 = 2;

/// Time of the hang in a message of this module.
struct HangMoment {
    seconds: i64,
    /// The tenant itself reports it, not a peer.
    own: bool,
    /// Its start, if the message has the duration.
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

/// Returns the reports of peers on the tenant `title`.
fn peer_reports<'a>(
    own: &'a str,
    title: &'a str,
    witnesses: &'a [(&'a str, &'a SidecarReport)],
) -> impl Iterator<Item = PeerReport<'a>> {
    let peers = witnesses.iter().filter(move |(tenant, _)| *tenant != own);
    peers.flat_map(move |&(by, report)| {
        let late = report.late_holder.iter().filter(move |late| late.name == title);
        let holds = late.map(move |late| PeerReport {
            reporter: by,
            at_ms: late.since_ms,
            observation: PeerObservation::Holds,
        });
        let taken = report.takeover.iter().filter(move |taken| taken.from == title);
        let took = taken.map(move |taken| PeerReport {
            reporter: by,
            at_ms: to_ms(taken.at_unix_ms),
            observation: PeerObservation::Took { overdue_ms: taken.overdue_ms },
        });
        let skips = report.skip.iter().filter(move |skip| skip.of == title);
        let skipped = skips.map(move |skip| PeerReport {
            reporter: by,
            at_ms: to_ms(skip.at_unix_ms),
            observation: PeerObservation::Skipped,
        });
        holds.chain(took).chain(skipped)
    })
}

/// Returns the hang of a holder whose own sidecar reports none. A sidecar that answers runs its scheduler, so if it
/// holds the time slice too long, its engine hangs.
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
            format!(
                "its engine has held the time slice of {gpu} past its deadline since {at}, as {by} reports"
            ),
        ),
        (PeerObservation::Holds, None) => (
            Reason::SidecarHung,
            format!(
                "its sidecar does not answer and has held the time slice of {gpu} past its deadline since \
                 {at}, as {by} reports"
            ),
        ),
        (PeerObservation::Skipped, _) => (
            Reason::SidecarHung,
            format!(
                "its sidecar does not answer; it was first in the time-slice queue of {gpu}, did not take \
                 its time slice, and {by} skipped it at {at}"
            ),
        ),
        (PeerObservation::Took { overdue_ms }, own) => {
            let now = if own.is_some() { "it answers again" } else { "it does not answer" };
            let message = format!(
                "its sidecar hung: {by} took over its time slice of {gpu} at {at}, {overdue_ms} ms past the \
                 deadline; {now}"
            );
            (Reason::SidecarHung, message)
        }
    }
}

/// Returns what a tenant with requests waits for.
fn slice_wait_message(own: &SidecarReport, title: &str, gpu: &str) -> Option<String> {
    let late = own.late_holder.as_ref().filter(|late| late.name != title && own.idle_since.is_none())?;
    let since = format_time(late.since_ms);
    Some(format!(
        "waits for a time slice of {gpu}, which {} has held past its deadline since {since}",
        late.name
    ))
}

fn takeover_message(own: &SidecarReport, gpu: &str, now: i64) -> Option<String> {
    let taken = own.takeover.as_ref()?;
    let at_ms = i64::try_from(taken.at_unix_ms).ok().filter(|at_ms| is_recent(*at_ms, now))?;
    let (from, at, overdue_ms) = (&taken.from, format_time(at_ms), taken.overdue_ms);
    Some(format!("took over the time slice of {from} on {gpu} at {at}, {overdue_ms} ms past its deadline"))
}

/// Formats a time, to the second.
fn format_time(at_ms: i64) -> String {
    time(at_ms / 1_000).0.to_string()
}
