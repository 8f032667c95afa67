//! Tests the choice of the batch: late tokens first, then tokens per second, with the clients' deposits.

use std::cmp::Reverse;

use sluice_common::random::Rng;
use sluice_policy::placement_planner::batch::{self, BatchCandidate, BatchContext, BatchPlan, BatchScore};
use sluice_policy::placement_planner::link::Link;
use sluice_policy::placement_planner::problem::{Object, Problem};
use sluice_policy::placement_planner::request::{PlanRequest, PlanResult, RequestState, options};
use sluice_policy::placement_planner::search::NoPlan;
use sluice_policy::placement_planner::shared_buffers;

/// With 10 KV blocks of 100 bytes in each of 8 layers a request has 8,000 bytes of KV; with every second layer
/// offloaded over two buffers it keeps 6,000. A byte takes a nanosecond on the link, a step without stalls 8,000.
const LAYERS: u16 = 8;
const STEP_NS: u64 = 8_000;

fn request_state(deposit: u32, immune: bool) -> RequestState {
    RequestState { full: 10, deposit, immune, ..RequestState::default() }
}

fn request(running: &[RequestState], waiting: usize, capacity_bytes: u64, tbt_ns: u64) -> PlanRequest {
    PlanRequest {
        id: 1,
        layers: LAYERS,
        layer_block_bytes: 100,
        running: running.to_vec(),
        waiting: vec![request_state(0, false); waiting],
        capacity_bytes,
        compute_ns: vec![STEP_NS / u64::from(LAYERS); LAYERS.into()],
        kv_block_ns: 0,
        overhead_ns: 0,
        link: Link::fluid(1_000_000_000),
        window: 32,
        tbt_ns,
        allowed_permille: 0,
        expansions: 1_000,
        alike: false,
    }
}

fn found(running: &[RequestState], waiting: usize, capacity_bytes: u64, tbt_ns: u64) -> PlanResult {
    request(running, waiting, capacity_bytes, tbt_ns).solve().result.expect("something fits")
}

#[test]
fn fitting_layers_stay_resident() {
    let found = found(&[request_state(0, false); 2], 0, 16_000, STEP_NS);
    assert_eq!(
        found,
        PlanResult { paused: 0, admitted: 0, chosen: vec![0, 0], step_ns: STEP_NS, bound_ns: STEP_NS }
    );
}

#[test]
fn request_is_paused_to_keep_others_on_time() {
    let two = [request_state(0, false); 2];
    let away = found(&two, 0, 12_000, 0);
    assert_eq!(
        (away.paused, &away.chosen[..]),
        (0, &[2, 2][..]),
        "without an objective no request is paused"
    );
    assert!(away.step_ns > STEP_NS, "and steps wait for KV: {away:?}");
    assert!((STEP_NS..=away.step_ns).contains(&away.bound_ns), "{away:?}");
    let proven = away.gap_permille();
    assert_eq!(u64::from(proven), ((away.step_ns - away.bound_ns) * 1000).div_ceil(away.step_ns));
    let paused = found(&two, 0, 12_000, STEP_NS);
    assert_eq!(
        paused,
        PlanResult { paused: 1, admitted: 0, chosen: vec![0], step_ns: STEP_NS, bound_ns: STEP_NS }
    );
    assert_eq!(
        found(&two, 0, 12_000, STEP_NS - 1).paused,
        0,
        "where all are late anyway it helps no request"
    );
    let immune = [request_state(0, true); 2];
    assert_eq!(found(&immune, 0, 12_000, STEP_NS).paused, 0, "who may not be is not");
}

#[test]
fn deposit_allows_slower_step() {
    let late_ns = found(&[request_state(0, false); 2], 0, 12_000, 0).step_ns - STEP_NS;
    // This deposit lasts for the window of 32 steps that are late_ns late each.
    let enough = (33 * late_ns).div_ceil(STEP_NS) as u32;
    assert_eq!(found(&[request_state(enough, false); 2], 0, 12_000, STEP_NS).paused, 0);
    assert_eq!(found(&[request_state(0, false); 2], 0, 12_000, STEP_NS).paused, 1);
}

#[test]
fn waiting_request_is_admitted_if_none_becomes_late() {
    let one = [request_state(0, true)];
    assert_eq!(found(&one, 1, 16_000, STEP_NS).admitted, 1);
    assert_eq!(found(&one, 1, 12_000, STEP_NS).admitted, 0);
    assert_eq!(found(&one, 1, 14_000, 0).admitted, 1, "a larger batch makes more tokens");
    assert_eq!(found(&[], 2, 16_000, STEP_NS).admitted, 2);
    let late = STEP_NS / 2;
    assert_eq!(found(&one, 1, 16_000, late).admitted, 0, "not either where all are late already");
}

#[test]
fn admitted_request_has_all_kv_on_device() {
    let one = [request_state(0, true)];
    let least = found(&one, 1, 14_000, 0);
    assert_eq!((least.admitted, &least.chosen[..]), (1, &[2, 0][..]), "others make room for all of it");
    assert_eq!(found(&one, 1, 13_999, 0).admitted, 0);
}

#[test]
fn compute_grows_with_running_kv_blocks() {
    let two = PlanRequest { kv_block_ns: 10, ..request(&[request_state(0, false); 2], 0, 16_000, 0) };
    let found = two.solve().result.expect("it fits");
    assert_eq!(found.step_ns, STEP_NS + 20 * 10 * u64::from(LAYERS));
    let paced = PlanRequest { tbt_ns: STEP_NS + 10 * 10 * u64::from(LAYERS), ..two };
    assert_eq!(paced.solve().result.map(|found| found.paused), Some(1), "one of them alone is in time");
}

#[test]
fn token_time_includes_step_overhead() {
    let beside = |beside_ns, tbt_ns| {
        let request =
            PlanRequest { overhead_ns: beside_ns, ..request(&[request_state(0, true)], 1, 16_000, tbt_ns) };
        request.solve().result.expect("it fits")
    };
    let (in_time, late) = (beside(500, STEP_NS + 500), beside(501, STEP_NS + 500));
    assert_eq!((in_time.admitted, in_time.step_ns, in_time.bound_ns), (1, STEP_NS + 500, STEP_NS + 500));
    assert_eq!((late.admitted, late.step_ns), (0, STEP_NS + 501));
}

/// The fetches of all requests pass through the same buffers.
#[test]
fn equal_requests_take_as_long_as_their_sum() {
    let link = Link::fluid(1_000_000_000);
    let object = |full| shared_buffers::object(&link, LAYERS, 100, (full, 0), &options(LAYERS));
    let problem = |objects: Vec<Object>| Problem {
        capacity_bytes: u64::MAX,
        compute_ns: vec![1_000; LAYERS.into()],
        link,
        write_bytes: 0,
        objects,
    };
    let (two, one) = (problem(vec![object(10); 2]), problem(vec![object(20)]));
    for choice in [0, 1, 2] {
        assert_eq!(shared_buffers::mean_ns(&two, &[choice; 2]), shared_buffers::mean_ns(&one, &[choice]));
    }
    // Every second layer, 4 fetches of 2,000 in a step: the link is always busy once the buffers are full.
    assert!(shared_buffers::mean_ns(&one, &[2]) >= 4 * 2_000);
    let bytes = |choice| one.bytes_of(&[choice]);
    assert_eq!(
        [bytes(0), bytes(1), bytes(2)],
        [16_000, 14_000, 12_000],
        "less what is away, and the buffers"
    );
}

/// Returns the late tokens of a window, by simulation.
fn late(member: &BatchCandidate, step_ns: u64, window: u16) -> u64 {
    let (mut due, mut late) = (0, 0);
    for token in 1..=u64::from(member.deposit) + u64::from(window) {
        let made = token.saturating_sub(member.deposit.into()) * step_ns;
        due += member.tbt_ns;
        if made > due {
            (due, late) = (made, late + u64::from(token > u64::from(member.deposit)));
        }
    }
    late
}

fn merit(
    outlook: &BatchContext,
    (paused, admitted): (usize, usize),
    (step_ns, link_bytes): (u64, u64),
) -> BatchScore {
    let members: Vec<_> = outlook.running[paused..].iter().chain(&outlook.waiting[..admitted]).collect();
    let window = outlook.window;
    let late: u64 = members.iter().map(|member| late(member, step_ns, window)).sum();
    let gaps = outlook.running[..paused]
        .iter()
        .filter(|member| u64::from(member.deposit) * member.tbt_ns < step_ns * u64::from(window));
    let present = outlook.running.len() - paused;
    let tokens = (present * usize::from(window) + paused).max(1) as u64;
    let share = ((late + gaps.count() as u64) * 1000).div_ceil(tokens);
    BatchScore {
        unadmitted: outlook.waiting[admitted..].iter().filter(|member| member.must_admit).count(),
        late_permille: share.saturating_sub(outlook.allowed_permille.into()),
        tokens_per_s_milli: Reverse(members.len() as u64 * 1_000_000_000_000 / step_ns),
        link_bytes,
    }
}

/// Returns the best score over all batches and all their placements.
fn exhaustive(outlook: &BatchContext) -> Option<BatchScore> {
    let pausable = outlook.running.iter().take_while(|member| !member.immune).count();
    let admissions = (0..=outlook.waiting.len()).map(|admitted| (0, admitted));
    let batches = admissions.chain((1..=pausable).map(|paused| (paused, 0)));
    let of_batch = |batch: (usize, usize)| {
        let problem = batch::problem(outlook, batch.0, batch.1);
        let costs = placements(&problem)
            .into_iter()
            .filter(|chosen| !outlook.alike || chosen.iter().all(|choice| *choice == chosen[0]))
            .filter(|chosen| problem.bytes_of(chosen) <= problem.capacity_bytes);
        let cost = |chosen: Vec<u16>| {
            let bytes = problem.choices_of(&chosen).map(|choice| choice.link_bytes).sum();
            (shared_buffers::mean_ns(&problem, &chosen).max(1), bytes)
        };
        let best = costs.map(cost).min();
        best.map(|(ns, bytes)| merit(outlook, batch, (ns + outlook.overhead_ns, bytes)))
    };
    batches.filter_map(of_batch).min()
}

fn placements(problem: &Problem) -> Vec<Vec<u16>> {
    let mut all = vec![Vec::new()];
    for object in &problem.objects {
        let longer = |chosen: &Vec<u16>| {
            let chosen = chosen.clone();
            (0..object.choices.len() as u16).map(move |choice| [&chosen[..], &[choice]].concat())
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

#[test]
fn found_batch_is_optimal() {
    let mut rng = Rng::new(7);
    let mut draw = |below| rng.below(below);
    let (mut pauses, mut admissions) = (0, 0);
    for _ in 0..300 {
        let link = Link::fluid(1_000_000_000);
        let (tbt_ns, beside_ns) = (STEP_NS + draw(4_000), draw(2) * 1_000);
        let mut member = |immune| BatchCandidate {
            kv: shared_buffers::object(&link, LAYERS, 100, (1 + draw(12) as u32, 1), &options(LAYERS)),
            compute_ns: draw(200),
            tbt_ns,
            deposit: draw(8) as u32,
            immune,
            must_admit: draw(4) == 0,
        };
        let (running, waiting) = ([member(false), member(false), member(true)].into(), vec![member(false)]);
        let outlook = BatchContext {
            capacity_bytes: 12_000 + draw(14_000),
            compute_ns: vec![1_000; LAYERS.into()],
            overhead_ns: beside_ns,
            link,
            write_bytes: 0,
            window: 16,
            allowed_permille: draw(2) as u32 * 20,
            alike: draw(5) == 0,
            other_requests: Vec::new(),
            running,
            waiting,
        };
        let best = batch::plan(&outlook, 1_000_000, shared_buffers::mean_ns);
        if let Ok(BatchPlan { paused, admitted, .. }) = &best {
            (pauses, admissions) = (pauses + paused.min(&1), admissions + admitted);
        }
        assert_eq!(best.map(|best| best.merit), exhaustive(&outlook).ok_or(NoPlan::Proven), "{outlook:?}");
    }
    assert!(pauses > 20 && admissions > 20, "{pauses} pauses, {admissions} admissions");
}
