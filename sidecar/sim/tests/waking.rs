//! A tenant that lent its last layers wakes during a prompt: its first token is as early as the closed form predicts.

use std::sync::Arc;

use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerCommand, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;
use sluice_policy::reason::Reason;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::peers::{PeerPort, PeerPortEvent, SliceCommand};
use sluice_ports::sampling::Sampling;
use sluice_scheduler::{Event, Membership, Request, TimeSharing};
use sluice_sim::Simulation;
use sluice_sim::simulation::Setup;

use self::closed_form::{Waking, chunk_by_chunk_ns};
use crate::support::{LIMIT, VOCAB, setup};

mod closed_form;

const STEP_TOKENS: u32 = 64;
const MODEL_TOKENS: u32 = 400;
const SLAB_CHUNKS: u32 = 4;
const TOKEN_NS: u64 = 5_000;
const CHUNK_NS: u64 = 20_000;
const PEER: Peer = Peer { index: 1, instance: 1 };

/// n layers of which f stay resident, a prompt, and the ratio of a layer's copy time to the compute time of the whole
/// prompt in it.
#[derive(Clone, Copy, Debug)]
struct Case {
    layers: u16,
    present: u16,
    prompt_tokens: u32,
    ratio_permille: u64,
    /// KV beyond the guarantee, KV blocks.
    spare_kv_blocks: u32,
}

impl Case {
    /// Returns the compute time of a step of `tokens` in one layer.
    fn compute_ns(tokens: u32) -> u64 {
        TOKEN_NS * u64::from(tokens) + CHUNK_NS * u64::from(tokens.div_ceil(STEP_TOKENS))
    }

    fn transfer_ns(&self) -> u64 {
        Case::compute_ns(self.prompt_tokens) * self.ratio_permille / 1000
    }

    fn closed_form(&self) -> Waking {
        let compute_ns = Case::compute_ns(self.prompt_tokens);
        let (layers, present) = (self.layers, self.present);
        Waking { layers, present, transfer_ns: self.transfer_ns(), compute_ns }
    }

    fn setup(&self) -> Setup {
        let kv_blocks = Geometry::kv_blocks_for(MODEL_TOKENS);
        let mut setup = setup(PolicyName::Oneiros, self.layers, kv_blocks + self.spare_kv_blocks, 1);
        let guaranteed = setup.geometry.kv_chunks_for(kv_blocks);
        setup.params.guaranteed_kv_bytes = u64::from(guaranteed) * setup.geometry.chunk_bytes;
        (setup.params.max_model_tokens, setup.config.max_model_tokens) = (MODEL_TOKENS, MODEL_TOKENS);
        setup.params.remap_cap_permille = 1000;
        setup.config.sharing = TimeSharing::Spatial;
        let me = Peer { index: 0, instance: 1 };
        setup.config.membership = Some(Membership { own_peer: me, terms: NegotiationPolicy::default() });
        if self.spare_kv_blocks == 0 {
            // No token beyond the largest usual step fits the activation chunks.
            let cost = &mut setup.geometry.activation;
            let chunks = cost.bytes(setup.params.max_step).div_ceil(setup.geometry.chunk_bytes);
            (cost.per_sequence_bytes, cost.per_logit_row_bytes) = (0, 0);
            let used_bytes = cost.bytes(setup.params.max_step) - cost.fixed_bytes;
            cost.fixed_bytes = chunks * setup.geometry.chunk_bytes - used_bytes;
        }
        let slab_bytes = u128::from(setup.geometry.slab_bytes[0]);
        let rate = slab_bytes * 1_000_000_000 / u128::from(self.transfer_ns());
        setup.profile.link_bytes_per_second = rate as u64;
        setup.profile.copy_start_ns = 0;
        setup.profile.remap_ns = 5_000;
        (setup.profile.layer_ns, setup.profile.layer_token_ns) = (CHUNK_NS, TOKEN_NS);
        setup
    }

    fn request(&self) -> Request {
        Request {
            id: RequestId(1),
            prompt: (0..self.prompt_tokens).map(|token| token % VOCAB).collect(),
            max_tokens: 2,
            sampling: Arc::new(Sampling::default()),
            priority: 0,
            salt: 0,
            paced: false,
        }
    }
}

/// A port that discards messages; the test answers them.
#[derive(Debug)]
struct NullPort;

impl PeerPort for NullPort {
    fn send(&mut self, _now: Nanos, _message: PeerCommand) {}

    fn send_slice_command(&mut self, _now: Nanos, call: SliceCommand) {
        panic!("all run at once: {call:?}");
    }
}

fn on_peer_event(world: &mut Simulation, event: PeerEvent) {
    world.driver.push(Event::Peer(PeerPortEvent::Peer(event)));
}

/// Lends the last n - f layers, and all KV that can be lent with them.
fn asleep(case: &Case) -> (Simulation, u32) {
    let world = Simulation::with_peers(Box::new(NullPort), case.setup(), None);
    let mut world = world.unwrap_or_else(|refused| panic!("{refused}"));
    world.run_until(Nanos(1_000_000_000));
    world.driver.push(Event::Tick);
    world.run_until(world.now().plus(1_000_000));
    assert!(world.driver.scheduler().manager().status().is_loaded(), "{case:?}");
    // The minimum memory keeps a layer and a slot.
    let chunks = world.driver.scheduler().manager().loans().lendable_chunks()
        - SLAB_CHUNKS * u32::from(case.present - 2);
    on_peer_event(&mut world, PeerEvent::Asked { peer: PEER, nonce: Nonce(7), chunks, ttl_ns: 1 << 40 });
    world.run_until(world.now().plus(100_000_000));
    assert_eq!(
        world.driver.scheduler().manager().status().absent_layers(),
        case.layers - case.present,
        "{case:?}"
    );
    (world, chunks)
}

/// Returns the time from the return of the layers' memory to the first token.
fn first_token_ns(case: &Case) -> (u64, Simulation) {
    let (mut world, chunks) = asleep(case);
    world.submit(case.request());
    on_peer_event(&mut world, PeerEvent::Returned { peer: PEER, nonce: Nonce(7), chunks });
    // A tick handles the events of one time, and then advances to the next.
    let (mut woke, mut moment) = (None, world.now());
    while world.outcomes[&RequestId(1)].tokens.is_empty() {
        moment = world.now();
        assert!(world.tick(LIMIT), "{case:?}");
        let back = world.driver.scheduler().manager().status().absent_layers() == 0;
        woke = woke.or_else(|| back.then_some(moment));
    }
    let taken = moment.since(woke.unwrap_or(Nanos(0)));
    assert!(world.run_until_idle(LIMIT), "{case:?}");
    assert_eq!(world.driver.compute().wrong_reads(), 0, "{case:?}");
    (taken, world)
}

fn cases() -> impl Iterator<Item = Case> {
    let sizes = [(4, 2), (8, 2), (8, 5), (12, 2), (12, 11)];
    let prompts = [(40, 1200), (64, 4000), (150, 300), (300, 700), (300, 1000), (390, 2500)];
    sizes.into_iter().flat_map(move |(layers, present)| {
        prompts.into_iter().map(move |(prompt_tokens, ratio_permille)| Case {
            layers,
            present,
            prompt_tokens,
            ratio_permille,
            spare_kv_blocks: 40,
        })
    })
}

#[test]
fn first_token_of_waking_tenant_is_within_bound() {
    let mut whole = 0;
    for case in cases() {
        let (taken_ns, world) = first_token_ns(&case);
        let bound_ns = case.closed_form().ttft_ns();
        assert!(taken_ns >= bound_ns, "{case:?}: {taken_ns} ns is less than the least, {bound_ns}");
        assert!(taken_ns * 100 <= bound_ns * 115, "{case:?}: {taken_ns} ns, the bound is {bound_ns}");
        whole += world.driver.scheduler().manager().figures().counted(Reason::WholePrompt);
        let manager = world.driver.scheduler().manager();
        let usual =
            manager.geometry().chunks_for(manager.geometry().activation.bytes(manager.params().max_step));
        assert_eq!(manager.figures().activation_chunks(), usual, "{case:?}: what prompts took went back");
        assert!(world.driver.scheduler().snapshot().counters.stall_ns == 0, "{case:?}: waking is no stall");
    }
    assert!(whole > 0, "activations grew for some of them");
}

/// Negative control: without memory for a whole prompt's activations the prompt is computed in chunks, and only the
/// first chunk hides the copies.
#[test]
fn chunk_by_chunk_misses_the_bound_where_copies_take_longer_than_the_prompt() {
    for (layers, present, ratio_permille) in [(8, 2, 1500), (12, 2, 2000), (12, 6, 1200)] {
        let case = Case { layers, present, prompt_tokens: 390, ratio_permille, spare_kv_blocks: 0 };
        let (taken_ns, world) = first_token_ns(&case);
        assert_eq!(world.driver.scheduler().manager().figures().counted(Reason::WholePrompt), 0, "{case:?}");
        let bound_ns = case.closed_form().ttft_ns();
        assert!(taken_ns * 100 > bound_ns * 115, "{case:?}: {taken_ns} ns, the bound is {bound_ns}");
        let loads: Vec<_> = (0..layers).map(|l| if l < present { 0 } else { case.transfer_ns() }).collect();
        let chunks = [64, 64, 64, 64, 64, 64, 6].map(|t| vec![Case::compute_ns(t); layers.into()]);
        let chunks: Vec<_> = chunks.iter().map(Vec::as_slice).collect();
        let expected_ns = chunk_by_chunk_ns(&loads, &chunks);
        assert!(taken_ns.abs_diff(expected_ns) * 100 < expected_ns, "{taken_ns} ns, not {expected_ns}");
        let (whole_ns, _) = first_token_ns(&Case { spare_kv_blocks: 40, ..case });
        assert!(whole_ns < taken_ns, "{case:?}");
    }
}
