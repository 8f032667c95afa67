//! The part of the scheduler that lets requests in, and sends those back whose first step finds no memory yet.

use sluice_policy::ids::RequestId;

use super::World;

/// A request that was let in at this boundary, and whether its KV was kept for it.
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
            let Some(mut request) = self.waiting.pop_front() else { break };
            let kept = std::mem::take(&mut request.kept);
            if kept {
                self.brain.resume(request.id);
            } else {
                let cached = self.brain.open(request.id, request.salt, &request.tokens);
                assert!(
                    cached.is_multiple_of(16) && (cached as usize) < request.tokens.len(),
                    "the last token is computed"
                );
                request.committed = cached as usize;
            }
            admitted.push(Admitted { id: request.id, kept });
            self.tables.insert(request.id, Vec::new());
            self.running.push(request);
        }
        admitted
    }

    /// No step has begun: those who were to have their first one wait as before, in their order.
    pub(super) fn send_back(&mut self, admitted: Vec<Admitted>) {
        for Admitted { id, kept } in admitted.into_iter().rev() {
            let Some(at) = self.running.iter().position(|request| request.id == id) else { continue };
            let mut request = self.running.remove(at);
            self.tables.remove(&id);
            request.kept = kept;
            if kept {
                self.brain.suspend(id);
            } else {
                request.committed = 0;
                self.brain.close(id);
                self.brain.check();
            }
            self.waiting.push_front(request);
        }
    }
}
