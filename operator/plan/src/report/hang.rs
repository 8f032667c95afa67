//! Whether a tenant's engine or sidecar hangs, or hung a moment ago.
//!
//! A sidecar reports its own engine that exceeded its deadline. A stopped sidecar reports nothing: its neighbours do, which
//! wait for the turn that it holds or have taken it.

use sluice_types::conditions::Reason;
use sluice_wire::state::EngineHang;

use super::fault::TOLD_MS;
use super::time;
use crate::seen::Report;
use crate::status::{Finding, Truth};

/// A turn that is taken within this time of the end of an engine, milliseconds, is taken because of that engine.
const SAME_MS: i64 = 60_000;

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
    /// When it took the turn, or since when the holder is past its deadline, milliseconds since 1970.
    at_ms: i64,
    /// How long the holder was past its deadline when the turn was taken; `None` = it still holds it.
    taken_after_ms: Option<u64>,
}

/// The hangs that concern `slot` at `now`, seconds since 1970.
///
/// `own` is what its sidecar told, `witnesses` what tenants of its GPU did that tell something of a holder of the turn.
pub fn of(slot: Slot<'_>, own: Option<&Report>, witnesses: &[(&str, &Report)], now: i64) -> Hangs {
    let title = format!("{}/{}", slot.namespace, slot.tenant);
    let word = last_word(slot.tenant, &title, witnesses, now);
    let hang = own.and_then(|own| own.hang.as_ref()).filter(|hang| hang.alive || is_recent(ms(hang), now));
    let silent = own.is_none() && word.is_some();
    let found = match (hang, word) {
        (Some(hang), word) if word.as_ref().is_none_or(|word| word.at_ms <= ms(hang) + SAME_MS) => {
            Some((Reason::EngineHung, engine(hang, word.as_ref(), slot)))
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

fn ms(hang: &EngineHang) -> i64 {
    i64::try_from(hang.at_unix_ms).unwrap_or(i64::MAX / 2)
}

/// The last that a neighbour tells of the tenant `title` as the holder of the turn.
fn last_word<'a>(own: &str, title: &str, witnesses: &[(&'a str, &'a Report)], now: i64) -> Option<Word<'a>> {
    let neighbours = witnesses.iter().filter(|(tenant, _)| *tenant != own);
    let words = neighbours.flat_map(|&(tenant, told)| {
        let late = told.late_holder.iter().filter(|late| late.name == title);
        let holds = late.map(|late| Word { by: tenant, at_ms: late.since_ms, taken_after_ms: None });
        let taken = told.takeover.iter().filter(|taken| taken.from == title);
        let taken = taken.filter_map(|taken| {
            let at_ms = i64::try_from(taken.at_unix_ms).ok()?;
            Some(Word { by: tenant, at_ms, taken_after_ms: Some(taken.overdue_ms) })
        });
        holds.chain(taken.filter(|word| is_recent(word.at_ms, now)))
    });
    words.max_by_key(|word| word.at_ms)
}

fn engine(hang: &EngineHang, word: Option<&Word<'_>>, slot: Slot<'_>) -> String {
    let EngineHang { during, waited_ms, limit_ms, alive, .. } = hang;
    let taken = word.filter(|word| word.taken_after_ms.is_some() && word.at_ms >= ms(hang) - SAME_MS);
    let taken = taken.map(|word| format!("; {}/{} took the turn from it", slot.namespace, word.by));
    let done = if *alive {
        "its sidecar sent SIGKILL, which has not ended it yet"
    } else {
        "its sidecar killed it, holds its requests, and has another engine go on with them"
    };
    format!(
        "its engine on {} hung at {}: {waited_ms} ms without progress ({during}; the limit is {limit_ms} ms); {done}{}",
        slot.gpu,
        clock(ms(hang)),
        taken.unwrap_or_default()
    )
}

/// The hang of a holder whose own sidecar reports none: a sidecar that answers runs its scheduler, so while it holds
/// the turn too long it is its engine that hangs.
fn holder(word: &Word<'_>, own: Option<&Report>, slot: Slot<'_>) -> (Reason, String) {
    let (at, by) = (clock(word.at_ms), format!("{}/{}", slot.namespace, word.by));
    let gpu = slot.gpu;
    match (word.taken_after_ms, own) {
        (None, Some(_)) => (
            Reason::EngineHung,
            format!("its engine has held the turn of {gpu} past its deadline since {at}, as {by} tells"),
        ),
        (None, None) => (
            Reason::SidecarHung,
            format!(
                "its sidecar does not answer and has held the turn of {gpu} past its deadline since {at}, as {by} tells"
            ),
        ),
        (Some(overdue_ms), own) => {
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
