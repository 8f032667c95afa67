//! Reports of hung engines and sidecars.

use std::collections::BTreeMap;

use sluice_plan::observed::{ObservedPod, ObservedPool, ObservedSlot};
use sluice_plan::pool_plan::plan;
use sluice_plan::report::{has_expiring_reason, is_another_hang, tenant_status};
use sluice_plan::sidecar_report::report;
use sluice_types::ModelTenant;
use sluice_types::tenant::ModelTenantStatus;
use sluice_wire::state::{
    EngineHang, Phase, SharingState, SidecarHangs, Skip, State, Takeover, TimeSliceState,
};

use super::fixtures::{NOW, host_pool, inspected, placed_and_ready, plan_context};

/// 1970-01-12T13:46:40Z.
const NOW_MS: u64 = NOW as u64 * 1_000;
const CLAIM: &str = "p-chat-0-e4";

/// A GPU with two tenants of `ns`: `code`, which hangs, and its peer `chat`.
struct HangTest {
    code: Option<State>,
    chat: Option<State>,
    /// Whether the kubelet reports the pod of `code` as ready.
    ready: bool,
}

fn state() -> State {
    let time_slice = Some(TimeSliceState::default());
    let peers = Some(SharingState { time_slice, ..SharingState::default() });
    State { at_unix_ms: NOW_MS, phase: Phase::Active, peers, ..State::default() }
}

fn with_slice(edit: impl FnOnce(&mut TimeSliceState)) -> State {
    let mut state = state();
    edit(state.peers.as_mut().and_then(|own| own.time_slice.as_mut()).expect("it has time slices"));
    state
}

/// Its engine hung this long before now.
fn hung(ago_ms: u64, alive: bool) -> State {
    let (at_unix_ms, during) = (NOW_MS - ago_ms, "step".to_owned());
    let mut state = state();
    state.engine.last_hang =
        Some(EngineHang { at_unix_ms, during, waited_ms: 2_300, limit_ms: 2_250, alive });
    state.engine.hangs = 1;
    state
}

/// Took the time slice from `ns/code` this long before now.
fn took(ago_ms: u64) -> State {
    let (from, at_unix_ms) = ("ns/code".to_owned(), NOW_MS - ago_ms);
    with_slice(|slice| slice.last_takeover = Some(Takeover { from, at_unix_ms, overdue_ms: 260 }))
}

/// A sidecar of it was killed this long before now because it hung.
fn sidecar_hung(ago_ms: u64) -> State {
    let hangs = SidecarHangs { total: 2, at_unix_ms: NOW_MS - ago_ms, waited_ms: 12_400 };
    State { sidecar_hangs: Some(hangs), ..state() }
}

/// Skipped `ns/code` in the time-slice queue this long before now.
fn skipped(ago_ms: u64) -> State {
    with_slice(|slice| slice.last_skip = Some(Skip { of: "ns/code".into(), at_unix_ms: NOW_MS - ago_ms }))
}

/// Sees `ns/code` hold the time slice, this long past its deadline.
fn sees_late(overdue_ms: u64) -> State {
    with_slice(|slice| (slice.holder, slice.holder_overdue_ms) = (Some("ns/code".into()), overdue_ms))
}

impl HangTest {
    fn new(code: Option<State>, chat: Option<State>) -> HangTest {
        HangTest { code, chat, ready: true }
    }

    fn seen(&self) -> ObservedPool {
        let pool = host_pool();
        let names = ["code", "chat"];
        let pod = |name: &str| ObservedPod {
            name: format!("{name}-0-x"),
            tenant: name.into(),
            claim: CLAIM.into(),
            is_ready: name != "code" || self.ready,
            ..ObservedPod::default()
        };
        let states = [("code", &self.code), ("chat", &self.chat)];
        let states = states.into_iter().filter_map(|(name, state)| Some((name, report(state.as_ref()?))));
        let reports =
            states.map(|(name, report)| ((name.to_owned(), "p-chat-0".to_owned()), report)).collect();
        let slots =
            names.map(|name| ObservedSlot { tenant: name.into(), index: 0, claim: CLAIM.into() }).to_vec();
        ObservedPool { slots, pods: names.map(pod).to_vec(), reports, ..placed_and_ready(&pool) }
    }

    fn status(&self, name: &str) -> ModelTenantStatus {
        self.status_of(name, &self.seen())
    }

    fn status_of(&self, name: &str, seen: &ObservedPool) -> ModelTenantStatus {
        let pool = host_pool();
        let tenants = ["code", "chat"].map(|name| {
            let mut tenant = inspected();
            tenant.metadata.name = Some(name.into());
            tenant
        });
        let tenants: Vec<&ModelTenant> = tenants.iter().collect();
        let given = plan_context(&pool, &tenants, seen);
        let plan = plan(&given);
        let own = plan.tenants.iter().find(|one| one.tenant.metadata.name.as_deref() == Some(name));
        tenant_status(&given, &plan, own.expect("it is planned"), None)
    }

    /// Status, reason and message of a condition.
    fn condition_of(&self, name: &str, kind: &str) -> [String; 3] {
        let conditions = self.status(name).conditions;
        let found = conditions.into_iter().find(|one| one.type_ == kind).expect("all are there");
        [found.status, found.reason, found.message]
    }

    fn conditions(&self, name: &str) -> BTreeMap<String, String> {
        let conditions = self.status(name).conditions.into_iter();
        conditions.map(|one| (one.type_, format!("{} {}", one.status, one.reason))).collect()
    }
}

#[test]
fn no_hang_reports_nothing() {
    let test = HangTest::new(Some(state()), Some(state()));
    for name in ["code", "chat"] {
        assert_eq!(test.condition_of(name, "Degraded"), ["False", "AsExpected", ""]);
        assert_eq!(test.condition_of(name, "Ready"), ["True", "AsExpected", ""]);
        assert!(!has_expiring_reason(&test.status(name)));
    }
}

#[test]
fn engine_hang_is_reported_with_operation_and_action() {
    let test = HangTest::new(Some(hung(30_000, false)), Some(state()));
    let said = "slot code-0: its engine on p-chat-0 hung at 1970-01-12T13:46:10Z: 2300 ms without progress \
                (step; the limit is 2250 ms); its sidecar killed it, holds its requests, and continues them \
                with a new engine";
    assert_eq!(test.condition_of("code", "Degraded"), ["True", "EngineHung", said]);
    assert_eq!(test.condition_of("code", "Ready")[0], "True", "its requests are held and answered");
    assert_eq!(test.condition_of("chat", "Degraded")[0], "False", "only its own tenant is");
    let beside = HangTest::new(Some(hung(30_000, false)), Some(took(29_000)));
    let [status, reason, message] = beside.condition_of("code", "Degraded");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "EngineHung"));
    assert!(message.ends_with("; ns/chat took over its time slice"), "one story: {message}");
    let older = HangTest::new(Some(hung(30_000, false)), Some(took(90_001)));
    assert_eq!(older.condition_of("code", "Degraded")[2], said, "it was taken for something else");
}

#[test]
fn hang_is_reported_for_ten_minutes_and_ongoing_hang_until_it_ends() {
    let degraded = |code| {
        let test = HangTest::new(Some(code), Some(state()));
        (test.condition_of("code", "Degraded")[0].clone(), has_expiring_reason(&test.status("code")))
    };
    let of = |truth: &str, again| (truth.to_owned(), again);
    assert_eq!(degraded(hung(599_999, false)), of("True", true), "looked at again, or it would stay");
    assert_eq!(degraded(hung(600_000, false)), of("False", false));
    assert_eq!(degraded(hung(6_000_000, true)), of("True", true));
    let lives = HangTest::new(Some(hung(5_000, true)), Some(state())).condition_of("code", "Degraded");
    assert!(lives[2].ends_with("; its sidecar sent SIGKILL, and the process has not ended yet"), "{lives:?}");
}

#[test]
fn hung_sidecar_is_reported_by_peer_that_took_over() {
    let test = HangTest::new(None, Some(took(40_000)));
    let said = "its sidecar hung: ns/chat took over its time slice of p-chat-0 at 1970-01-12T13:46:00Z, 260 \
                ms past the deadline; it does not answer";
    let said = format!("slot code-0: {said}");
    assert_eq!(test.condition_of("code", "Degraded"), ["True", "SidecarHung", &said]);
    assert_eq!(
        test.condition_of("code", "Serving"),
        ["False", "SidecarHung", &said],
        "its requests have no answer"
    );
    assert_eq!(test.condition_of("code", "Ready"), ["False", "SidecarHung", &format!("Serving: {said}")]);
    let back = HangTest::new(Some(state()), Some(took(40_000)));
    let [status, reason, message] = back.condition_of("code", "Degraded");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "SidecarHung"));
    assert!(message.ends_with("past the deadline; it answers again"), "{message}");
    assert_eq!(back.condition_of("code", "Ready")[0], "True");
    let later = HangTest::new(None, Some(took(600_000)));
    assert_eq!(later.condition_of("code", "Degraded")[0], "False");
}

#[test]
fn pod_not_ready_because_of_hung_sidecar_reports_hang() {
    let test = HangTest { ready: false, ..HangTest::new(None, Some(took(40_000))) };
    let conditions = test.conditions("code");
    assert_eq!(conditions["WeightsLoaded"], "Unknown SidecarHung");
    assert_eq!(conditions["Serving"], "False SidecarHung");
    assert_eq!(conditions["Ready"], "Unknown SidecarHung");
    let silent = HangTest { ready: false, ..HangTest::new(None, Some(state())) };
    assert_eq!(silent.conditions("code")["WeightsLoaded"], "Unknown PodNotReady", "no neighbour names it");
}

#[test]
fn overdue_holder_is_reported_before_takeover() {
    let stopped = HangTest::new(None, Some(sees_late(90_000)));
    let [status, reason, message] = stopped.condition_of("code", "Degraded");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "SidecarHung"));
    let said = "its sidecar does not answer and has held the time slice of p-chat-0 past its deadline since \
                1970-01-12T13:45:10Z, as ns/chat reports";
    assert_eq!(message, format!("slot code-0: {said}"));
    let answers = HangTest::new(Some(state()), Some(sees_late(90_000)));
    assert_eq!(answers.condition_of("code", "Degraded")[1], "EngineHung", "its sidecar goes round");
    let soon = HangTest::new(Some(state()), Some(sees_late(999)));
    assert_eq!(soon.condition_of("code", "Degraded")[0], "False", "the time slice is about to be taken over");
}

#[test]
fn waiting_tenant_names_overdue_holder_before_and_after_takeover() {
    let waits = HangTest::new(None, Some(sees_late(90_000)));
    let said = "slot chat-0: waits for a time slice of p-chat-0, which ns/code has held past its deadline \
                since 1970-01-12T13:45:10Z";
    assert_eq!(waits.condition_of("chat", "Degraded"), ["True", "PeerHung", said]);
    assert_eq!(waits.condition_of("chat", "Ready")[0], "True", "it takes requests");
    let mut both = sees_late(90_000);
    both.sidecar_hangs = sidecar_hung(60_000).sidecar_hangs;
    assert_eq!(
        HangTest::new(None, Some(both)).condition_of("chat", "Degraded")[1],
        "PeerHung",
        "its own hang is over"
    );
    let mut idle = sees_late(90_000);
    idle.idle_since_unix_ms = Some(NOW_MS - 100_000);
    assert_eq!(
        HangTest::new(None, Some(idle)).condition_of("chat", "Degraded")[0],
        "False",
        "it waits for nothing"
    );
    let after = HangTest::new(None, Some(took(40_000)));
    let said = "slot chat-0: took over the time slice of ns/code on p-chat-0 at 1970-01-12T13:46:00Z, 260 \
                ms past its deadline";
    assert_eq!(after.condition_of("chat", "Degraded"), ["False", "AsExpected", said]);
    assert!(has_expiring_reason(&after.status("chat")), "it is reported for a while only");
    let later = HangTest::new(None, Some(took(600_000)));
    assert_eq!(later.condition_of("chat", "Degraded"), ["False", "AsExpected", ""]);
}

#[test]
fn sidecar_hang_long_after_engine_hang_is_separate() {
    let test = |taken_ago| HangTest::new(Some(hung(300_000, false)), Some(took(taken_ago)));
    let reason = |taken_ago: u64| test(taken_ago).condition_of("code", "Degraded")[1].clone();
    assert_eq!([300_000, 240_000, 239_999].map(reason), ["EngineHung", "EngineHung", "SidecarHung"]);
}

#[test]
fn peers_of_other_gpus_and_namespaces_do_not_report_hang() {
    let mut stranger = took(40_000);
    let slice = stranger.peers.as_mut().and_then(|own| own.time_slice.as_mut()).expect("it has time slices");
    slice.last_takeover.as_mut().expect("it took one").from = "other/code".into();
    assert_eq!(HangTest::new(Some(state()), Some(stranger)).condition_of("code", "Degraded")[0], "False");
    let test = HangTest::new(Some(state()), Some(took(40_000)));
    let mut seen = test.seen();
    let own_report =
        seen.reports.remove(&("chat".to_owned(), "p-chat-0".to_owned())).expect("it reported something");
    seen.reports.insert(("chat".to_owned(), "p-chat-1".to_owned()), own_report);
    let (pool, tenant) = (host_pool(), {
        let mut tenant = inspected();
        tenant.metadata.name = Some("code".into());
        tenant
    });
    let tenants = [&tenant];
    let given = plan_context(&pool, &tenants, &seen);
    let plan = plan(&given);
    let status = tenant_status(&given, &plan, &plan.tenants[0], None);
    let degraded = status.conditions.iter().find(|one| one.type_ == "Degraded").expect("all are there");
    assert_eq!(degraded.status, "False");
}

#[test]
fn a_sidecar_that_was_killed_is_reported_by_the_next_one() {
    let test = HangTest::new(Some(sidecar_hung(30_000)), Some(state()));
    let message = "slot code-0: its sidecar on p-chat-0 hung and was killed at 1970-01-12T13:46:10Z: it did \
                   not run for 12400 ms; a new sidecar serves";
    assert_eq!(test.condition_of("code", "Degraded"), ["True", "SidecarHung", message]);
    assert_eq!(test.condition_of("code", "Ready")[0], "True");
    assert_eq!(test.condition_of("chat", "Degraded")[0], "False", "only its own tenant is");
    let taken = HangTest::new(Some(sidecar_hung(30_000)), Some(took(42_000)))
        .condition_of("code", "Degraded")[2]
        .clone();
    assert_eq!(taken, format!("{message}; ns/chat took over its time slice"));
    let before = "slot code-0: its sidecar hung: ns/chat took over its time slice of p-chat-0 at \
                  1970-01-12T13:45:58Z, 260 ms";
    assert!(!is_another_hang(before, &taken), "one hang, two reports");
    let again = HangTest::new(Some(sidecar_hung(60_000)), Some(took(12_000)))
        .condition_of("code", "Degraded")[2]
        .clone();
    assert!(
        again.contains("took over its time slice of p-chat-0 at 1970-01-12T13:46:28Z"),
        "another hang: {again}"
    );
    let later = HangTest::new(Some(sidecar_hung(600_000)), Some(state()));
    assert_eq!(later.condition_of("code", "Degraded")[0], "False");
    let mut both = hung(20_000, false);
    both.sidecar_hangs = sidecar_hung(30_000).sidecar_hangs;
    assert_eq!(
        HangTest::new(Some(both.clone()), None).condition_of("code", "Degraded")[1],
        "EngineHung",
        "the last one"
    );
    both.engine.last_hang = hung(40_000, false).engine.last_hang;
    assert_eq!(
        HangTest::new(Some(both.clone()), None).condition_of("code", "Degraded")[1],
        "SidecarHung",
        "the last one"
    );
    both.engine.last_hang = hung(40_000, true).engine.last_hang;
    assert_eq!(
        HangTest::new(Some(both), None).condition_of("code", "Degraded")[1],
        "EngineHung",
        "it still lives"
    );
}

#[test]
fn a_tenant_that_was_skipped_and_does_not_answer_hangs() {
    let degraded = |code, ago_ms| HangTest::new(code, Some(skipped(ago_ms))).condition_of("code", "Degraded");
    let message = "slot code-0: its sidecar does not answer; it was first in the time-slice queue of \
                   p-chat-0, did not take its time slice, and ns/chat skipped it at 1970-01-12T13:46:10Z";
    assert_eq!(degraded(None, 30_000), ["True", "SidecarHung", message]);
    assert_eq!(degraded(Some(state()), 30_000), ["False", "AsExpected", ""], "it answers");
    assert_eq!(degraded(None, 180_000)[0], "False", "the kubelet has ended it by then");
    assert_eq!(
        HangTest::new(None, Some(skipped(30_000))).condition_of("code", "Serving")[0],
        "True",
        "it may only have been slow"
    );
}

#[test]
fn two_hangs_are_two_events() {
    let message =
        |code: Option<State>, chat| HangTest::new(code, chat).condition_of("code", "Degraded")[2].clone();
    let engine = |ago_ms| message(Some(hung(ago_ms, false)), None);
    assert!(is_another_hang(&engine(100_000), &engine(80_000)), "each has a moment of its own");
    assert!(!is_another_hang(&engine(60_000), &engine(60_000)), "the same");
    let sidecar = |ago_ms| message(Some(sidecar_hung(ago_ms)), None);
    let taken = |ago_ms| message(None, Some(took(ago_ms)));
    assert!(!is_another_hang(&taken(20_000), &sidecar(10_000)), "it was killed after its turn was taken");
    assert!(is_another_hang(&taken(63_000), &sidecar(10_000)), "its turn was taken before this hang began");
    assert!(is_another_hang(&taken(90_000), &sidecar(10_000)));
    assert!(is_another_hang(&sidecar(60_000), &taken(20_000)), "a turn is not taken from a dead one");
    assert!(!is_another_hang(&sidecar(20_000), &taken(60_000)), "an old one that shows again");
    let holds = |overdue_ms| message(None, Some(sees_late(overdue_ms)));
    assert!(!is_another_hang(&holds(90_000), &taken(40_000)), "it lasted, and has ended");
    assert!(is_another_hang(&taken(300_000), &holds(10_000)), "it hangs again");
}

#[test]
fn a_pod_that_was_made_after_a_skip_only_starts() {
    let test = HangTest::new(None, Some(skipped(30_000)));
    let degraded = |made_at| {
        let mut seen = test.seen();
        seen.pods.iter_mut().for_each(|pod| pod.created_at = made_at);
        test.status_of("code", &seen)
            .conditions
            .into_iter()
            .find(|one| one.type_ == "Degraded")
            .unwrap()
            .status
    };
    assert_eq!([NOW - 31, NOW - 30].map(degraded), ["True", "False"]);
}
