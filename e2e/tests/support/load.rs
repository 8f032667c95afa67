//! A load that needs about three times the KV of a small device, and checks that the accounting is consistent
//! throughout.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use sluice_wire::State;

use super::tenant::{greedy, prompt};
use super::{Answer, Tenant};

/// Options of the model.
pub const MODEL: &str = "--layers 8 --hidden 64 --intermediate 256 --vocab 300 --max-positions 256";
/// Device memory.
pub const MEMORY: &str = "5Mi";
/// Requests at once. Each grows to 15 blocks of 4 KiB in each of 8 layers: about 11 MiB in all.
pub const LOAD: u32 = 24;

/// One request of the load.
pub fn request(seed: u32) -> Value {
    greedy(&prompt(seed, 30), 200)
}

/// Returns the answers to one request at a time, without memory pressure.
pub async fn sequential_answers(tenant: &Tenant) -> Vec<Answer> {
    let mut answers = Vec::new();
    for seed in 0..LOAD {
        answers.push(tenant.complete(&request(seed)).await.unwrap());
    }
    answers
}

/// Observations over all polls.
#[derive(Debug, Default)]
pub struct Observed {
    /// Polls.
    pub polls: u32,
    /// Maximum of layers that had given up their memory.
    pub most_alpha: u16,
    /// Most requests in a batch.
    pub most_running: u32,
}

impl Observed {
    /// Checks one poll: the accounting must be consistent.
    pub fn check(&mut self, state: &State) {
        assert!(state.memory.balances(), "the capacity equation: {:?}", state.memory);
        let kv = &state.kv;
        assert_eq!(
            kv.layer_blocks_total,
            kv.layer_blocks_used + kv.layer_blocks_cached + kv.layer_blocks_free,
            "{kv:?}"
        );
        assert!(
            kv.layer_blocks_total * kv.layer_block_bytes <= state.memory.owners.kv_bytes,
            "{kv:?} {:?}",
            state.memory
        );
        assert!(state.remap.alpha <= state.remap.cap_layers, "{:?}", state.remap);
        let moving = usize::from(state.remap.alpha) + usize::from(state.remap.beta);
        assert_eq!(state.remap.moving_layers.len(), moving, "{:?}", state.remap);
        assert_eq!(
            state.memory.owners.slots_bytes > 0,
            state.remap.beta > 0,
            "{:?} {:?}",
            state.remap,
            state.memory
        );
        self.polls += 1;
        self.most_alpha = self.most_alpha.max(state.remap.alpha);
        self.most_running = self.most_running.max(state.queue.running);
    }
}

/// Polls without a pause while `on`.
pub async fn poll_while(tenant: &Tenant, on: &AtomicBool) -> Observed {
    let mut seen = Observed::default();
    while on.load(Ordering::Relaxed) {
        seen.check(&tenant.state().await);
    }
    seen
}

/// Sends all requests at once and waits for their answers.
pub async fn load(tenant: &Tenant) -> Vec<Answer> {
    let requests: Vec<_> = (0..LOAD)
        .map(|seed| {
            let tenant = tenant.clone();
            tokio::spawn(async move { tenant.complete(&request(seed)).await.unwrap() })
        })
        .collect();
    let mut answers = Vec::new();
    for request in requests {
        answers.push(request.await.unwrap());
    }
    answers
}
