//! The engine's part of a step: each layer reads the KV that it wrote before.

use sluice_common::random::mix;
use sluice_policy::ellm::Violations;
use sluice_policy::ids::{LayerId, RequestId};
use sluice_policy::memory_manager::{MemoryNotes, StepTimes};

use super::World;

impl World {
    /// Computes one layer if it has arrived.
    pub(super) fn run_layer(&mut self) {
        let step = self.step.as_mut().expect("a step runs");
        let layer = LayerId(step.layer);
        let generation = step.lease.get(&layer).copied();
        let kv_generation = step.kv_lease.get(&layer).copied();
        if generation.is_some_and(|generation| self.device.ready[layer.index()] != generation)
            || kv_generation.is_some_and(|generation| self.device.kv_ready[layer.index()] != generation)
        {
            return;
        }
        self.device
            .read_layer(layer)
            .unwrap_or_else(|wrong| panic!("a layer is read when it is there: {wrong}"));
        step.layer += 1;
        let (parts, over) = (step.parts.clone(), step.layer == self.device.geometry.layers());
        parts.iter().for_each(|(id, tokens)| self.attend(layer, *id, *tokens));
        if let Some(generation) = generation {
            self.device.done[layer.index()] = generation;
        }
        if let Some(generation) = kv_generation {
            self.device.kv_done[layer.index()] = generation;
        }
        if over {
            self.finish();
        }
    }

    /// Writes the new tokens' KV and reads the KV before them.
    fn attend(&mut self, layer: LayerId, id: RequestId, tokens: usize) {
        if self.manager.kv_of(id).is_kv_lost() {
            return;
        }
        let request = self.running.iter().find(|r| r.id == id).expect("running").clone();
        let (start, end) = (request.computed, request.computed + tokens);
        let table = &self.tables[&id];
        let mut tag = mix(request.salt) ^ u64::from(layer.0);
        for (position, token) in request.tokens[..end].iter().enumerate() {
            tag = mix(tag ^ u64::from(*token));
            let layer_block = table[position / 16][layer.index()];
            if position >= start {
                self.device.write_token(layer_block, position % 16, tag);
            }
            let read = self.device.read_token(layer_block, position % 16);
            assert_eq!(read, tag, "{id:?} reads its own KV at {position} of {layer:?}");
        }
    }

    fn finish(&mut self) {
        let step = self.step.take().expect("a step runs");
        self.requeue_lost();
        let mut decode_only = true;
        for (id, tokens) in &step.parts {
            // A request that was lost during the step is recomputed.
            let Some(request) = self.running.iter_mut().find(|r| r.id == *id) else { continue };
            decode_only &= *tokens == 1;
            let end = request.computed + tokens;
            self.manager.on_tokens_computed(*id, &request.tokens[request.computed..end]);
            request.computed = end;
            if end == request.tokens.len() && end < request.limit {
                let next = request.tokens.iter().fold(request.salt, |h, t| mix(h ^ u64::from(*t)));
                request.tokens.push((next % 50) as u32);
            }
        }
        let violations = Violations { ttft: self.prefill_offload_permille > 0, tpot: false };
        self.manager.note(&MemoryNotes { slo_violations: Some(violations), ..MemoryNotes::default() });
        let layers = usize::from(self.device.geometry.layers());
        let layer_ns = vec![self.layer_ns; layers];
        let total_ns = self.layer_ns * layers as u64;
        let (shape, stall_ns, kv_stall_ns) = (step.shape, vec![0; layers], vec![0; layers]);
        let times = StepTimes { shape, decode_only, layer_ns, stall_ns, kv_stall_ns, total_ns };
        self.send_event(|manager, _| manager.finish(&times));
        self.steps += 1;
        self.retire();
    }

    fn retire(&mut self) {
        let (over, still_running): (Vec<_>, Vec<_>) =
            self.running.drain(..).partition(|r| r.computed == r.limit);
        self.running = still_running;
        for request in over {
            self.manager.close(request.id);
            self.manager.check();
            self.tables.remove(&request.id);
            self.finished.insert(request.id, request.tokens);
            self.max_batch = 4;
        }
    }
}
