//! The part of the scheduler that plans admissions and requeues those whose first step has no memory yet.

use sluice_policy::ids::RequestId;
use sluice_policy::memory_manager::{
    Admission, AdmittedKv, MemoryNotes, PlannedAdmissions, PrefillOffload, SuspendReason,
};

use super::super::device::chance;
use super::{Request, World};

/// A request that the next step admits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admitted {
    id: RequestId,
    kept: bool,
    /// Whether its prompt is offloaded.
    spills: bool,
}

impl World {
    /// Fills the batch. The memory manager opens or resumes the requests when the step has its memory.
    pub(super) fn admit(&mut self) {
        while self.running.len() < self.max_batch {
            let coming = |request: &mut Request| self.manager.kv_of(request.id).is_loading();
            let Some(mut request) = self.waiting.pop_front_if(|request| !coming(request)) else { break };
            let kept = std::mem::take(&mut request.kept);
            let spills = !kept && self.offloads_prefill(&request);
            self.admitted.push(Admitted { id: request.id, kept, spills });
            self.tables.insert(request.id, Vec::new());
            self.running.push(request);
        }
    }

    fn offloads_prefill(&mut self, request: &Request) -> bool {
        let kv_blocks = request.tokens.len().div_ceil(16) as u32;
        let planned = PlannedAdmissions::default();
        let wanted = chance(&mut self.rng, self.prefill_offload_permille);
        let answer = if wanted {
            self.manager.after(&planned).prefill_offload(kv_blocks, kv_blocks)
        } else {
            PrefillOffload::NotNow
        };
        if answer == PrefillOffload::LinkTooSlow {
            self.manager.note(&MemoryNotes { probes_link: true, ..MemoryNotes::default() });
        }
        // The answer holds for one prompt at a time.
        let offloads = answer == PrefillOffload::Fits && self.admitted.iter().all(|one| !one.spills);
        self.prefill_offloads += u32::from(offloads);
        offloads
    }

    /// Returns the admissions of the next step. New requests begin after the tokens that the cache has now.
    pub(super) fn admissions(&mut self) -> Vec<Admission> {
        let mut admissions = Vec::new();
        for one in &self.admitted {
            let request = self.running.iter_mut().find(|r| r.id == one.id).expect("it is among the running");
            if one.kept {
                admissions.push(Admission::suspended(one.id));
                continue;
            }
            let prefix = self.manager.cached_prefix(request.salt, &request.tokens);
            let cached = prefix.tokens() as usize;
            assert!(cached.is_multiple_of(16) && cached < request.tokens.len(), "the last token is computed");
            request.computed = cached;
            let spilled_kv_blocks = one.spills.then_some(request.tokens.len().div_ceil(16) as u32);
            admissions.push(Admission { request: one.id, kv: AdmittedKv::New { prefix, spilled_kv_blocks } });
        }
        admissions
    }

    /// Whether the prompt of a request of the next step is offloaded.
    pub(super) fn spills_prefill(&self, id: RequestId) -> bool {
        self.manager.kv_of(id).is_prefill_offloaded()
            || self.admitted.iter().any(|one| one.id == id && one.spills)
    }

    /// Returns the KV blocks of a request of the next step.
    pub(super) fn held_kv_blocks(&self, id: RequestId) -> u32 {
        match self.admitted.iter().any(|one| one.id == id && !one.kept) {
            true => (self.request(id).computed / 16) as u32,
            false => self.manager.kv_of(id).kv_blocks(),
        }
    }

    /// Requeues the requests whose KV is loading.
    pub(super) fn requeue_loading(&mut self) {
        let loading = |one: &mut Admitted| self.manager.kv_of(one.id).is_loading();
        let sent: Vec<_> = self.admitted.extract_if(.., loading).collect();
        assert!(!sent.is_empty(), "the KV of a request is on its way");
        self.admitted_count += sent.len() as u32;
        self.requeue(sent);
    }

    /// Requeues a request if no step has admitted it yet. Returns whether that is so.
    pub(super) fn requeue_admitted(&mut self, id: RequestId) -> bool {
        let gone: Vec<_> = self.admitted.extract_if(.., |one| one.id == id).collect();
        let some = !gone.is_empty();
        self.requeue(gone);
        some
    }

    /// Requeues all requests that no step has admitted.
    pub(super) fn requeue_all(&mut self) {
        let admitted = std::mem::take(&mut self.admitted);
        self.requeue(admitted);
    }

    /// Moves requests with a computed offloaded prompt to the end of the queue.
    pub(super) fn suspend_offloaded(&mut self) {
        let computed = |r: &Request| {
            self.manager.kv_of(r.id).is_prefill_offloaded()
                && r.tokens.len() - r.computed == 1
                && r.computed > 0
        };
        let (going, staying): (Vec<_>, Vec<_>) = self.running.drain(..).partition(computed);
        self.running = staying;
        for mut request in going {
            self.manager.suspend(request.id, SuspendReason::Pause);
            self.manager.check();
            self.tables.remove(&request.id);
            request.kept = true;
            self.waiting.push_back(request);
        }
    }

    /// Requeues requests in order, because no step began with them.
    fn requeue(&mut self, admitted: Vec<Admitted>) {
        for Admitted { id, kept, .. } in admitted.into_iter().rev() {
            let Some(at) = self.running.iter().position(|request| request.id == id) else { continue };
            let mut request = self.running.remove(at);
            self.tables.remove(&id);
            request.kept = kept;
            if !kept {
                request.computed = 0;
            }
            self.waiting.push_front(request);
        }
    }
}
