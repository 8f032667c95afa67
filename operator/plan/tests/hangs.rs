//! What is told of engines and sidecars that hang.

use std::collections::BTreeMap;

use sluice_plan::report::{is_another_hang, passes, tenant_status};
use sluice_plan::seen::{PodSeen, Seen, SlotSeen};
use sluice_plan::told::report;
use sluice_plan::unit::plan;
use sluice_types::ModelTenant;
use sluice_types::tenant::ModelTenantStatus;
use sluice_wire::state::{EngineHang, Neighbourhood, Phase, SidecarHangs, Skip, State, Takeover, TurnState};

use super::world::{NOW, given, host_pool, inspected, settled};

/// 1970-01-12T13:46:40Z.
const NOW_MS: u64 = NOW as u64 * 1_000;
const CLAIM: &str = "p-chat-0-e4";

/// A GPU with two tenants of `ns`: `code`, which hangs, and `chat`, its neighbour.
struct Town {
    code: Option<State>,
    chat: Option<State>,
    /// Whether the pod of `code` is ready, in the eyes of the kubelet.
    ready: bool,
}

fn state() -> State {
    let turn = Some(TurnState::default());
    let neighbourhood = Some(Neighbourhood { turn, ..Neighbourhood::default() });
    State { at_unix_ms: NOW_MS, phase: Phase::Active, neighbourhood, ..State::default() }
}

fn with_turn(edit: impl FnOnce(&mut TurnState)) -> State {
    let mut state = state();
    edit(state.neighbourhood.as_mut().and_then(|own| own.turn.as_mut()).expect("it takes turns"));
    state
}

/// Its engine hung so long before now.
fn hung(ago_ms: u64, alive: bool) -> State {
    let (at_unix_ms, during) = (NOW_MS - ago_ms, "step".to_owned());
    let mut state = state();
    state.engine.last_hang =
        Some(EngineHang { at_unix_ms, during, waited_ms: 2_300, limit_ms: 2_250, alive });
    state.engine.hangs = 1;
    state
}

/// Took the turn from `ns/code` so long before now.
fn took(ago_ms: u64) -> State {
    let (from, at_unix_ms) = ("ns/code".to_owned(), NOW_MS - ago_ms);
    with_turn(|turn| turn.last_takeover = Some(Takeover { from, at_unix_ms, overdue_ms: 260 }))
}

/// A sidecar of it was killed so long before now because it hung.
fn sidecar_hung(ago_ms: u64) -> State {
    let hangs = SidecarHangs { total: 2, at_unix_ms: NOW_MS - ago_ms, waited_ms: 12_400 };
    State { sidecar_hangs: Some(hangs), ..state() }
}

/// Skipped `ns/code` in the queue for the turn so long before now.
fn skipped(ago_ms: u64) -> State {
    with_turn(|turn| turn.last_skip = Some(Skip { of: "ns/code".into(), at_unix_ms: NOW_MS - ago_ms }))
}

/// Sees `ns/code` hold the turn, so long past its deadline.
fn sees_late(overdue_ms: u64) -> State {
    with_turn(|turn| (turn.holder, turn.holder_overdue_ms) = (Some("ns/code".into()), overdue_ms))
}

impl Town {
    fn new(code: Option<State>, chat: Option<State>) -> Town {
        Town { code, chat, ready: true }
    }

    fn seen(&self) -> Seen {
        let pool = host_pool();
        let names = ["code", "chat"];
        let pod = |name: &str| PodSeen {
            name: format!("{name}-0-x"),
            tenant: name.into(),
            claim: CLAIM.into(),
            ready: name != "code" || self.ready,
            ..PodSeen::default()
        };
        let told = [("code", &self.code), ("chat", &self.chat)];
        let told = told.into_iter().filter_map(|(name, state)| Some((name, report(state.as_ref()?))));
        let reports = told.map(|(name, told)| ((name.to_owned(), "p-chat-0".to_owned()), told)).collect();
        let slots =
            names.map(|name| SlotSeen { tenant: name.into(), index: 0, claim: CLAIM.into() }).to_vec();
        Seen { slots, pods: names.map(pod).to_vec(), reports, ..settled(&pool) }
    }

    fn status(&self, name: &str) -> ModelTenantStatus {
        self.status_of(name, &self.seen())
    }

    fn status_of(&self, name: &str, seen: &Seen) -> ModelTenantStatus {
        let pool = host_pool();
        let tenants = ["code", "chat"].map(|name| {
            let mut tenant = inspected();
            tenant.metadata.name = Some(name.into());
            tenant
        });
        let tenants: Vec<&ModelTenant> = tenants.iter().collect();
        let given = given(&pool, &tenants, seen);
        let plan = plan(&given);
        let own = plan.tenants.iter().find(|one| one.tenant.metadata.name.as_deref() == Some(name));
        tenant_status(&given, &plan, own.expect("it is planned"), None)
    }

    /// Status, reason and message of a condition.
    fn told(&self, name: &str, kind: &str) -> [String; 3] {
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
fn without_a_hang_nothing_is_told() {
    let town = Town::new(Some(state()), Some(state()));
    for name in ["code", "chat"] {
        assert_eq!(town.told(name, "Degraded"), ["False", "AsExpected", ""]);
        assert_eq!(town.told(name, "Ready"), ["True", "AsExpected", ""]);
        assert!(!passes(&town.status(name)));
    }
}

#[test]
fn an_engine_that_hung_is_told_with_what_it_did_and_what_was_done() {
    let town = Town::new(Some(hung(30_000, false)), Some(state()));
    let said = "slot code-0: its engine on p-chat-0 hung at 1970-01-12T13:46:10Z: 2300 ms without progress (step; the limit \
                is 2250 ms); its sidecar killed it, holds its requests, and has another engine go on with them";
    assert_eq!(town.told("code", "Degraded"), ["True", "EngineHung", said]);
    assert_eq!(town.told("code", "Ready")[0], "True", "its requests are held and answered");
    assert_eq!(town.told("chat", "Degraded")[0], "False", "only its own tenant is");
    let beside = Town::new(Some(hung(30_000, false)), Some(took(29_000)));
    let [status, reason, message] = beside.told("code", "Degraded");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "EngineHung"));
    assert!(message.ends_with("; ns/chat took the turn from it"), "one story: {message}");
    let older = Town::new(Some(hung(30_000, false)), Some(took(90_001)));
    assert_eq!(older.told("code", "Degraded")[2], said, "it was taken for something else");
}

#[test]
fn a_hang_is_told_for_ten_minutes_and_one_that_lasts_for_as_long_as_it_does() {
    let degraded = |code| {
        let town = Town::new(Some(code), Some(state()));
        (town.told("code", "Degraded")[0].clone(), passes(&town.status("code")))
    };
    let of = |truth: &str, again| (truth.to_owned(), again);
    assert_eq!(degraded(hung(599_999, false)), of("True", true), "looked at again, or it would stay");
    assert_eq!(degraded(hung(600_000, false)), of("False", false));
    assert_eq!(degraded(hung(6_000_000, true)), of("True", true));
    let lives = Town::new(Some(hung(5_000, true)), Some(state())).told("code", "Degraded");
    assert!(lives[2].ends_with("; its sidecar sent SIGKILL, which has not ended it yet"), "{lives:?}");
}

#[test]
fn a_hung_sidecar_is_told_by_the_neighbour_that_took_its_turn() {
    let town = Town::new(None, Some(took(40_000)));
    let said = "its sidecar hung: ns/chat took the turn of p-chat-0 from it at 1970-01-12T13:46:00Z, 260 ms past its \
                deadline; it does not answer";
    let said = format!("slot code-0: {said}");
    assert_eq!(town.told("code", "Degraded"), ["True", "SidecarHung", &said]);
    assert_eq!(town.told("code", "Serving"), ["False", "SidecarHung", &said], "nobody answers its requests");
    assert_eq!(town.told("code", "Ready"), ["False", "SidecarHung", &format!("Serving: {said}")]);
    let back = Town::new(Some(state()), Some(took(40_000)));
    let [status, reason, message] = back.told("code", "Degraded");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "SidecarHung"));
    assert!(message.ends_with("past its deadline; it answers again"), "{message}");
    assert_eq!(back.told("code", "Ready")[0], "True");
    let later = Town::new(None, Some(took(600_000)));
    assert_eq!(later.told("code", "Degraded")[0], "False");
}

#[test]
fn a_pod_that_is_not_ready_for_its_sidecar_hangs_says_so_and_not_that_it_starts() {
    let town = Town { ready: false, ..Town::new(None, Some(took(40_000))) };
    let told = town.conditions("code");
    assert_eq!(told["WeightsLoaded"], "Unknown SidecarHung");
    assert_eq!(told["Serving"], "False SidecarHung");
    assert_eq!(told["Ready"], "Unknown SidecarHung");
    let silent = Town { ready: false, ..Town::new(None, Some(state())) };
    assert_eq!(silent.conditions("code")["WeightsLoaded"], "Unknown PodNotReady", "no neighbour names it");
}

#[test]
fn a_tenant_that_holds_the_turn_too_long_is_told_before_it_is_taken() {
    let stopped = Town::new(None, Some(sees_late(90_000)));
    let [status, reason, message] = stopped.told("code", "Degraded");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "SidecarHung"));
    let said = "its sidecar does not answer and has held the turn of p-chat-0 past its deadline since \
                1970-01-12T13:45:10Z, as ns/chat tells";
    assert_eq!(message, format!("slot code-0: {said}"));
    let answers = Town::new(Some(state()), Some(sees_late(90_000)));
    assert_eq!(answers.told("code", "Degraded")[1], "EngineHung", "its sidecar goes round");
    let soon = Town::new(Some(state()), Some(sees_late(999)));
    assert_eq!(soon.told("code", "Degraded")[0], "False", "the turn is about to be taken");
}

#[test]
fn a_victim_names_the_culprit_while_it_waits_and_after_it_took_the_turn() {
    let waits = Town::new(None, Some(sees_late(90_000)));
    let said = "slot chat-0: waits for the turn of p-chat-0, which ns/code holds past its deadline since 1970-01-12T13:45:10Z";
    assert_eq!(waits.told("chat", "Degraded"), ["True", "NeighbourHung", said]);
    assert_eq!(waits.told("chat", "Ready")[0], "True", "it takes requests");
    let mut both = sees_late(90_000);
    both.sidecar_hangs = sidecar_hung(60_000).sidecar_hangs;
    assert_eq!(
        Town::new(None, Some(both)).told("chat", "Degraded")[1],
        "NeighbourHung",
        "its own hang is over"
    );
    let mut idle = sees_late(90_000);
    idle.idle_since_unix_ms = Some(NOW_MS - 100_000);
    assert_eq!(Town::new(None, Some(idle)).told("chat", "Degraded")[0], "False", "it waits for nothing");
    let after = Town::new(None, Some(took(40_000)));
    let said = "slot chat-0: took the turn of p-chat-0 from ns/code at 1970-01-12T13:46:00Z, 260 ms past its deadline";
    assert_eq!(after.told("chat", "Degraded"), ["False", "AsExpected", said]);
    assert!(passes(&after.status("chat")), "it is told for a while only");
    let later = Town::new(None, Some(took(600_000)));
    assert_eq!(later.told("chat", "Degraded"), ["False", "AsExpected", ""]);
}

#[test]
fn a_sidecar_that_hangs_long_after_its_engine_did_is_another_story() {
    let town = |taken_ago| Town::new(Some(hung(300_000, false)), Some(took(taken_ago)));
    let reason = |taken_ago: u64| town(taken_ago).told("code", "Degraded")[1].clone();
    assert_eq!([300_000, 240_000, 239_999].map(reason), ["EngineHung", "EngineHung", "SidecarHung"]);
}

#[test]
fn neighbours_on_another_gpu_and_other_namespaces_say_nothing_of_it() {
    let mut stranger = took(40_000);
    let turn = stranger.neighbourhood.as_mut().and_then(|own| own.turn.as_mut()).expect("it takes turns");
    turn.last_takeover.as_mut().expect("it took one").from = "other/code".into();
    assert_eq!(Town::new(Some(state()), Some(stranger)).told("code", "Degraded")[0], "False");
    let town = Town::new(Some(state()), Some(took(40_000)));
    let mut seen = town.seen();
    let told = seen.reports.remove(&("chat".to_owned(), "p-chat-0".to_owned())).expect("it told something");
    seen.reports.insert(("chat".to_owned(), "p-chat-1".to_owned()), told);
    let (pool, tenant) = (host_pool(), {
        let mut tenant = inspected();
        tenant.metadata.name = Some("code".into());
        tenant
    });
    let tenants = [&tenant];
    let given = given(&pool, &tenants, &seen);
    let plan = plan(&given);
    let status = tenant_status(&given, &plan, &plan.tenants[0], None);
    let degraded = status.conditions.iter().find(|one| one.type_ == "Degraded").expect("all are there");
    assert_eq!(degraded.status, "False");
}

#[test]
fn a_sidecar_that_was_killed_is_reported_by_the_next_one() {
    let town = Town::new(Some(sidecar_hung(30_000)), Some(state()));
    let message = "slot code-0: its sidecar on p-chat-0 hung and was killed at 1970-01-12T13:46:10Z: it did not run for \
                   12400 ms; another sidecar serves";
    assert_eq!(town.told("code", "Degraded"), ["True", "SidecarHung", message]);
    assert_eq!(town.told("code", "Ready")[0], "True");
    assert_eq!(town.told("chat", "Degraded")[0], "False", "only its own tenant is");
    let taken = Town::new(Some(sidecar_hung(30_000)), Some(took(42_000))).told("code", "Degraded")[2].clone();
    assert_eq!(taken, format!("{message}; ns/chat took the turn from it"));
    let before = "slot code-0: its sidecar hung: ns/chat took the turn of p-chat-0 from it at 1970-01-12T13:45:58Z, 260 ms";
    assert!(!is_another_hang(before, &taken), "one hang, two reports");
    let again = Town::new(Some(sidecar_hung(60_000)), Some(took(12_000))).told("code", "Degraded")[2].clone();
    assert!(
        again.contains("took the turn of p-chat-0 from it at 1970-01-12T13:46:28Z"),
        "another hang: {again}"
    );
    let later = Town::new(Some(sidecar_hung(600_000)), Some(state()));
    assert_eq!(later.told("code", "Degraded")[0], "False");
    let mut both = hung(20_000, false);
    both.sidecar_hangs = sidecar_hung(30_000).sidecar_hangs;
    assert_eq!(Town::new(Some(both.clone()), None).told("code", "Degraded")[1], "EngineHung", "the last one");
    both.engine.last_hang = hung(40_000, false).engine.last_hang;
    assert_eq!(
        Town::new(Some(both.clone()), None).told("code", "Degraded")[1],
        "SidecarHung",
        "the last one"
    );
    both.engine.last_hang = hung(40_000, true).engine.last_hang;
    assert_eq!(Town::new(Some(both), None).told("code", "Degraded")[1], "EngineHung", "it still lives");
}

#[test]
fn a_tenant_that_was_skipped_and_does_not_answer_hangs() {
    let degraded = |code, ago_ms| Town::new(code, Some(skipped(ago_ms))).told("code", "Degraded");
    let message = "slot code-0: its sidecar does not answer; it was first in the queue for the turn of p-chat-0, did not \
                   take it, and ns/chat skipped it at 1970-01-12T13:46:10Z";
    assert_eq!(degraded(None, 30_000), ["True", "SidecarHung", message]);
    assert_eq!(degraded(Some(state()), 30_000), ["False", "AsExpected", ""], "it answers");
    assert_eq!(degraded(None, 180_000)[0], "False", "the kubelet has ended it by then");
    assert_eq!(
        Town::new(None, Some(skipped(30_000))).told("code", "Serving")[0],
        "True",
        "it may only have been slow"
    );
}

#[test]
fn two_hangs_are_two_events() {
    let told = |code: Option<State>, chat| Town::new(code, chat).told("code", "Degraded")[2].clone();
    let engine = |ago_ms| told(Some(hung(ago_ms, false)), None);
    assert!(is_another_hang(&engine(100_000), &engine(80_000)), "each has a moment of its own");
    assert!(!is_another_hang(&engine(60_000), &engine(60_000)), "the same");
    let sidecar = |ago_ms| told(Some(sidecar_hung(ago_ms)), None);
    let taken = |ago_ms| told(None, Some(took(ago_ms)));
    assert!(!is_another_hang(&taken(20_000), &sidecar(10_000)), "it was killed after its turn was taken");
    assert!(is_another_hang(&taken(63_000), &sidecar(10_000)), "its turn was taken before this hang began");
    assert!(is_another_hang(&taken(90_000), &sidecar(10_000)));
    assert!(is_another_hang(&sidecar(60_000), &taken(20_000)), "a turn is not taken from a dead one");
    assert!(!is_another_hang(&sidecar(20_000), &taken(60_000)), "an old one that shows again");
    let holds = |overdue_ms| told(None, Some(sees_late(overdue_ms)));
    assert!(!is_another_hang(&holds(90_000), &taken(40_000)), "it lasted, and has ended");
    assert!(is_another_hang(&taken(300_000), &holds(10_000)), "it hangs again");
}

#[test]
fn a_pod_that_was_made_after_a_skip_only_starts() {
    let town = Town::new(None, Some(skipped(30_000)));
    let told = |made_at| {
        let mut seen = town.seen();
        seen.pods.iter_mut().for_each(|pod| pod.made_at = made_at);
        town.status_of("code", &seen)
            .conditions
            .into_iter()
            .find(|one| one.type_ == "Degraded")
            .unwrap()
            .status
    };
    assert_eq!([NOW - 31, NOW - 30].map(told), ["True", "False"]);
}
