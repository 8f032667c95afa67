//! The part of the scheduler that admits requests and requeues those whose first step has no memory yet.

use sluice_policy::ids::RequestId;

use super::super::device::happens;
use super::{Request, World};

/// A request admitted at this boundary, and whether its KV was kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admitted {
    id: RequestId,
    kept: bool,
}

impl World {
    /// Fills the batch.
    pub(super) fn admit(&mut self) -> Vec<Admitted> {
        let mut admitted = Vec::new();
        while self.running.len() < self.max_batch {
            let coming = |request: &mut Request| self.manager.is_loading(request.id);
            let Some(mut request) = self.waiting.pop_front_if(|request| !coming(request)) else { break };
            let kept = std::mem::take(&mut request.kept);
            if kept {
                self.manager.resume(request.id);
            } else {
                let cached = self.manager.open(request.id, request.salt, &request.tokens);
                assert!(
                    cached.is_multiple_of(16) && (cached as usize) < request.tokens.len(),
                    "the last token is computed"
                );
                request.committed = cached as usize;
                self.start_prefill_offload(&request);
            }
            admitted.push(Admitted { id: request.id, kept });
            self.tables.insert(request.id, Vec::new());
            self.running.push(request);
        }
        admitted
    }

    fn start_prefill_offload(&mut self, request: &Request) {
        let kv_blocks = request.tokens.len().div_ceil(16) as u32;
        if happens(&mut self.rng, self.prefill_offload_permille)
            && self.manager.can_offload_prefill(kv_blocks, kv_blocks)
        {
            self.manager.start_prefill_offload(request.id, kv_blocks);
            self.prefill_offloads += 1;
        }
    }

    /// Requeues the requests whose KV is loading.
    pub(super) fn requeue_loading(&mut self) {
        let coming = |request: &mut Request| self.manager.is_loading(request.id);
        let sent: Vec<_> = self.running.extract_if(.., coming).collect();
        assert!(!sent.is_empty(), "the KV of a request is on its way");
        for request in sent.into_iter().rev() {
            self.manager.suspend_request(request.id);
            self.tables.remove(&request.id);
            self.waiting.push_front(Request { kept: true, ..request });
            self.admitted_count += 1;
        }
    }

    /// Moves requests with a computed offloaded prompt to the end of the queue.
    pub(super) fn suspend_offloaded(&mut self) {
        let computed = |r: &Request| {
            self.manager.is_prefill_offloaded(r.id) && r.tokens.len() - r.committed == 1 && r.committed > 0
        };
        let (going, staying): (Vec<_>, Vec<_>) = self.running.drain(..).partition(computed);
        self.running = staying;
        for mut request in going {
            self.manager.suspend_request(request.id);
            self.manager.check();
            self.tables.remove(&request.id);
            request.kept = true;
            self.waiting.push_back(request);
        }
    }

    /// Requeues the admitted requests in order, because no step began.
    pub(super) fn requeue(&mut self, admitted: Vec<Admitted>) {
        for Admitted { id, kept } in admitted.into_iter().rev() {
            let Some(at) = self.running.iter().position(|request| request.id == id) else { continue };
            let mut request = self.running.remove(at);
            self.tables.remove(&id);
            request.kept = kept;
            if kept {
                self.manager.suspend_request(id);
            } else {
                request.committed = 0;
                self.manager.close(id);
                self.manager.check();
            }
            self.waiting.push_front(request);
        }
    }
}
