//! What hangs, or hung, in words: the same for `explain` and for `top`.

use sluice_wire::State;
use sluice_wire::state::{HANG_REPORTED_MS, TimeSliceState};

use super::formatting::age;

/// An engine that makes no progress for this long is reported before it counts as hung, milliseconds.
const SILENT_MS: u64 = 1_000;

/// Its time slice state, if its GPU has time slices.
pub fn time_slice(state: &State) -> Option<&TimeSliceState> {
    state.peers.as_ref()?.time_slice.as_ref()
}

fn title(state: &State) -> String {
    format!("{}/{}", state.tenant.namespace, state.tenant.name)
}

/// Whether its engine exceeded a deadline and still runs.
pub fn is_engine_hung(state: &State) -> bool {
    state.engine.last_hang.as_ref().is_some_and(|hang| hang.alive)
}

/// The last engine that exceeded a deadline, and what was done.
pub fn engine_hang_text(state: &State, now_unix_ms: u64) -> Option<String> {
    let hang = state.engine.last_hang.as_ref()?;
    let ago = age(now_unix_ms.saturating_sub(hang.at_unix_ms));
    let done = if hang.alive {
        "its process has not ended after SIGKILL".to_owned()
    } else {
        let next =
            if state.engine.pid.is_some() { "a new one serves" } else { "a new one has not attached yet" };
        format!("it was killed, and {next}")
    };
    let often = match state.engine.hangs {
        0 | 1 => String::new(),
        hangs => format!("; {hangs} hung since the start"),
    };
    let (during, waited_ms, limit_ms) = (&hang.during, hang.waited_ms, hang.limit_ms);
    Some(format!(
        "engine hung {ago} ago: {waited_ms} ms without progress ({during}; the limit is {limit_ms} ms); {done}{often}"
    ))
}

/// The last sidecar of this tenant that hung and was killed.
pub fn sidecar_hang_text(state: &State, now_unix_ms: u64) -> Option<String> {
    let hangs = state.sidecar_hangs.as_ref().filter(|hangs| is_recent(hangs.at_unix_ms, now_unix_ms))?;
    let (ago, waited_ms) = (age(now_unix_ms.saturating_sub(hangs.at_unix_ms)), hangs.waited_ms);
    let often = if hangs.total > 1 { format!("; {} hung so far", hangs.total) } else { String::new() };
    Some(format!(
        "sidecar hung and was killed {ago} ago: it did not run for {waited_ms} ms; a new one serves{often}"
    ))
}

/// The last tenant that it skipped in the wait queue.
pub fn skip_text(state: &State, now_unix_ms: u64) -> Option<String> {
    let slice = time_slice(state)?;
    let skip = slice.last_skip.as_ref().filter(|skip| is_recent(skip.at_unix_ms, now_unix_ms))?;
    let (of, ago) = (&skip.of, age(now_unix_ms.saturating_sub(skip.at_unix_ms)));
    let often = if slice.skips_total > 1 {
        format!("; {} skips since the start", slice.skips_total)
    } else {
        String::new()
    };
    Some(format!(
        "skipped {of}, which was first in the time-slice queue and did not take its time slice, {ago} ago{often}"
    ))
}

/// Another holder of the time slice, and its time past the deadline, milliseconds; `None` = the time slice is free
/// or
/// its own.
pub fn other_holder(state: &State) -> Option<(&str, u64)> {
    let slice = time_slice(state).filter(|slice| !slice.holds)?;
    let holder = slice.holder.as_deref().filter(|holder| *holder != title(state))?;
    Some((holder, slice.holder_overdue_ms))
}

/// The last time slice that it took over from a holder past its deadline.
pub fn takeover_text(state: &State, now_unix_ms: u64) -> Option<String> {
    let slice = time_slice(state)?;
    let taken = slice.last_takeover.as_ref().filter(|taken| is_recent(taken.at_unix_ms, now_unix_ms))?;
    let ago = age(now_unix_ms.saturating_sub(taken.at_unix_ms));
    let often = match slice.takeovers_total {
        0 | 1 => String::new(),
        total => format!("; {total} time slices since the start"),
    };
    Some(format!(
        "took over the time slice of {} {ago} ago, {} ms past its deadline{often}",
        taken.from, taken.overdue_ms
    ))
}

/// Number of takeovers of its time slice by others.
pub fn overtaken_text(state: &State) -> Option<String> {
    let total = time_slice(state)?.lost_total;
    let times = if total == 1 { "time" } else { "times" };
    (total > 0)
        .then(|| format!("lost the time slice to peers {total} {times} since the start, past its deadline"))
}

/// Returns a peer's account of the tenant `title`, NAMESPACE/NAME, as holder of the time slice.
pub fn peer_account(peer: &State, title: &str, now_unix_ms: u64) -> Option<String> {
    let own = time_slice(peer)?;
    let by = self::title(peer);
    if own.holder.as_deref() == Some(title) && own.holder_overdue_ms > 0 {
        let overdue_ms = own.holder_overdue_ms;
        return Some(format!(
            "{title} holds the time slice and is {overdue_ms} ms past its deadline, as {by} reports"
        ));
    }
    let recent = own.last_takeover.as_ref().filter(|taken| is_recent(taken.at_unix_ms, now_unix_ms));
    if let Some(taken) = recent.filter(|taken| taken.from == title) {
        let ago = age(now_unix_ms.saturating_sub(taken.at_unix_ms));
        return Some(format!(
            "{by} took over the time slice of {title} {ago} ago, {} ms past its deadline",
            taken.overdue_ms
        ));
    }
    own.last_skip.as_ref().filter(|skip| skip.of == title)?;
    Some(format!("{by} {}", skip_text(peer, now_unix_ms)?))
}

/// Why a peer is a culprit: its engine makes no progress, or its sidecar or engine hung recently.
pub fn hung_peer_text(peer: &State, now_unix_ms: u64) -> Option<String> {
    time_slice(peer)?;
    let by = title(peer);
    if let Some(work) = peer.engine.work.as_ref().filter(|work| work.waited_ms >= SILENT_MS) {
        let (during, waited_ms, limit_ms) = (&work.during, work.waited_ms, work.limit_ms);
        return Some(format!(
            "{by}: its engine has made no progress for {waited_ms} ms ({during}; the limit is {limit_ms} ms)"
        ));
    }
    let engine_at = peer.engine.last_hang.as_ref().and_then(|hang| {
        let lasts = hang.alive.then_some(u64::MAX);
        lasts.or_else(|| Some(hang.at_unix_ms).filter(|at| is_recent(*at, now_unix_ms)))
    });
    let sidecar_at = peer.sidecar_hangs.as_ref().map(|hangs| hangs.at_unix_ms);
    let said = match sidecar_at > engine_at {
        true => sidecar_hang_text(peer, now_unix_ms),
        false => engine_hang_text(peer, now_unix_ms).filter(|_| engine_at.is_some()),
    };
    Some(format!("{by}: its {}", said?))
}

fn is_recent(at_unix_ms: u64, now_unix_ms: u64) -> bool {
    now_unix_ms.saturating_sub(at_unix_ms) < HANG_REPORTED_MS
}

#[cfg(test)]
pub(crate) mod tests {
    use sluice_wire::state::{EngineHang, EngineWork, SharingState, SidecarHangs, Skip, Takeover, Tenant};

    use super::*;

    pub const NOW: u64 = 1_700_000_100_000;

    /// The tenant `team/NAME`, which shares its GPU in time slices.
    pub fn with_time_slice(name: &str, slice: TimeSliceState) -> State {
        let tenant = Tenant { namespace: "team".into(), name: name.into(), ..Tenant::default() };
        let peers = Some(SharingState { time_slice: Some(slice), ..SharingState::default() });
        State { tenant, peers, ..State::default() }
    }

    pub fn hang(alive: bool) -> EngineHang {
        EngineHang {
            at_unix_ms: NOW - 12_000,
            during: "step".into(),
            waited_ms: 2_300,
            limit_ms: 2_250,
            alive,
        }
    }

    pub fn takeover() -> Option<Takeover> {
        Some(Takeover { from: "team/code".into(), at_unix_ms: NOW - 30_000, overdue_ms: 260 })
    }

    #[test]
    fn engine_hang_is_described_with_outcome() {
        let mut state = State::default();
        assert_eq!((engine_hang_text(&state, NOW), is_engine_hung(&state)), (None, false));
        let begin = "engine hung 12s ago: 2300 ms without progress (step; the limit is 2250 ms); ";
        (state.engine.hangs, state.engine.last_hang) = (1, Some(hang(true)));
        let lives = format!("{begin}its process has not ended after SIGKILL");
        assert_eq!((engine_hang_text(&state, NOW), is_engine_hung(&state)), (Some(lives), true));
        state.engine.last_hang = Some(hang(false));
        let gone = format!("{begin}it was killed, and a new one has not attached yet");
        assert_eq!((engine_hang_text(&state, NOW), is_engine_hung(&state)), (Some(gone), false));
        (state.engine.pid, state.engine.hangs) = (Some(7), 3);
        let serves = format!("{begin}it was killed, and a new one serves; 3 hung since the start");
        assert_eq!(engine_hang_text(&state, NOW), Some(serves));
    }

    #[test]
    fn late_holder_is_named_by_waiting_peer_not_by_itself() {
        let held_by = |holder: &str, holds, holder_overdue_ms| {
            let holder = Some(holder.to_owned());
            with_time_slice(
                "chat",
                TimeSliceState { holder, holds, holder_overdue_ms, ..TimeSliceState::default() },
            )
        };
        let said = |state: &State| other_holder(state).map(|(holder, ms)| (holder.to_owned(), ms));
        assert_eq!(said(&held_by("team/code", false, 1_500)), Some(("team/code".to_owned(), 1_500)));
        assert_eq!(said(&held_by("team/chat", true, 0)), None);
        assert_eq!(said(&held_by("team/chat", false, 9)), None, "it is on its way out of it");
        assert_eq!(said(&with_time_slice("chat", TimeSliceState::default())), None);
        assert_eq!(said(&State::default()), None, "it takes no turns");
    }

    #[test]
    fn takeover_names_previous_holder_and_time() {
        let slice =
            TimeSliceState { last_takeover: takeover(), takeovers_total: 1, ..TimeSliceState::default() };
        let once = with_time_slice("chat", slice.clone());
        let said = "took over the time slice of team/code 30s ago, 260 ms past its deadline";
        assert_eq!(takeover_text(&once, NOW).as_deref(), Some(said));
        let often = with_time_slice("chat", TimeSliceState { takeovers_total: 4, ..slice });
        assert_eq!(takeover_text(&often, NOW), Some(format!("{said}; 4 time slices since the start")));
        let lost = |lost_total| {
            overtaken_text(&with_time_slice(
                "code",
                TimeSliceState { lost_total, ..TimeSliceState::default() },
            ))
        };
        assert_eq!(lost(0), None);
        let said = "lost the time slice to peers 1 time since the start, past its deadline";
        assert_eq!(lost(1).as_deref(), Some(said));
        assert_eq!(lost(2).as_deref(), Some(&*said.replace("1 time", "2 times")));
    }

    #[test]
    fn peer_reports_silent_holder() {
        let now = |holder: &str, holder_overdue_ms| {
            let holder = Some(holder.to_owned());
            let slice = TimeSliceState {
                holder,
                holder_overdue_ms,
                last_takeover: takeover(),
                ..TimeSliceState::default()
            };
            peer_account(&with_time_slice("chat", slice), "team/code", NOW)
        };
        let taken = "team/chat took over the time slice of team/code 30s ago, 260 ms past its deadline";
        let holds = "team/code holds the time slice and is 1500 ms past its deadline, as team/chat reports";
        assert_eq!(now("team/code", 1_500).as_deref(), Some(holds));
        assert_eq!(now("team/code", 0).as_deref(), Some(taken));
        assert_eq!(now("team/mail", 1_500).as_deref(), Some(taken));
        let other = TimeSliceState { last_takeover: takeover(), ..TimeSliceState::default() };
        assert_eq!(peer_account(&with_time_slice("chat", other), "team/mail", NOW), None);
    }

    #[test]
    fn peer_with_recent_engine_hang_is_named() {
        let mut code = with_time_slice("code", TimeSliceState::default());
        assert_eq!(hung_peer_text(&code, NOW), None);
        let work = |waited_ms| Some(EngineWork { during: "step".into(), waited_ms, limit_ms: 2_200 });
        code.engine.work = work(900);
        assert_eq!(hung_peer_text(&code, NOW), None, "a long step");
        code.engine.work = work(1_500);
        let silent = "team/code: its engine has made no progress for 1500 ms (step; the limit is 2200 ms)";
        assert_eq!(hung_peer_text(&code, NOW).as_deref(), Some(silent));
        (code.engine.work, code.engine.last_hang) = (None, Some(hang(false)));
        let hung = hung_peer_text(&code, NOW).expect("it hung 12 s ago");
        assert!(hung.starts_with("team/code: its engine hung 12s ago: 2300 ms without progress"), "{hung}");
        assert_eq!(hung_peer_text(&code, NOW + HANG_REPORTED_MS), None, "long ago");
        code.engine.last_hang = Some(hang(true));
        assert!(hung_peer_text(&code, NOW + HANG_REPORTED_MS).is_some(), "it lives");
        code.peers = None;
        assert_eq!(hung_peer_text(&code, NOW), None, "it takes no turns");
    }

    #[test]
    fn killed_sidecar_is_described_by_successor_and_named_as_hung_peer() {
        let mut code = with_time_slice("code", TimeSliceState::default());
        assert_eq!(sidecar_hang_text(&code, NOW), None);
        let mut hangs = SidecarHangs { total: 1, at_unix_ms: NOW - 20_000, waited_ms: 12_400 };
        code.sidecar_hangs = Some(hangs.clone());
        let said = "sidecar hung and was killed 20s ago: it did not run for 12400 ms; a new one serves";
        assert_eq!(sidecar_hang_text(&code, NOW).as_deref(), Some(said));
        assert_eq!(hung_peer_text(&code, NOW), Some(format!("team/code: its {said}")));
        assert_eq!(
            (sidecar_hang_text(&code, NOW + HANG_REPORTED_MS), hung_peer_text(&code, NOW + HANG_REPORTED_MS)),
            (None, None)
        );
        code.engine.last_hang = Some(hang(false));
        assert!(hung_peer_text(&code, NOW).unwrap().contains("its engine hung 12s ago"), "the last one");
        hangs.total = 3;
        code.sidecar_hangs = Some(hangs);
        assert_eq!(sidecar_hang_text(&code, NOW), Some(format!("{said}; 3 hung so far")));
    }

    #[test]
    fn a_tenant_that_was_skipped_is_named_by_the_one_that_skipped_it() {
        let last_skip = Some(Skip { of: "team/code".into(), at_unix_ms: NOW - 30_000 });
        let chat = with_time_slice(
            "chat",
            TimeSliceState { skips_total: 2, last_skip, ..TimeSliceState::default() },
        );
        let said = "skipped team/code, which was first in the time-slice queue and did not take its time \
                    slice, 30s ago; \
                    2 skips since the start";
        assert_eq!(skip_text(&chat, NOW).as_deref(), Some(said));
        assert_eq!(peer_account(&chat, "team/code", NOW), Some(format!("team/chat {said}")));
        assert_eq!(
            (peer_account(&chat, "team/mail", NOW), skip_text(&chat, NOW + HANG_REPORTED_MS)),
            (None, None)
        );
    }

    #[test]
    fn old_takeover_is_not_reported() {
        let taken = with_time_slice(
            "chat",
            TimeSliceState { last_takeover: takeover(), ..TimeSliceState::default() },
        );
        assert!(takeover_text(&taken, NOW).is_some() && peer_account(&taken, "team/code", NOW).is_some());
        let later = NOW + HANG_REPORTED_MS;
        assert_eq!((takeover_text(&taken, later), peer_account(&taken, "team/code", later)), (None, None));
    }
}
