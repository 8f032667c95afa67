//! Names the options that cost requests tokens, with their prices, and carries out the one that the policy chooses.
//!
//! The memory manager knows what remapping own layers frees. The cost of a pause or a preemption depends on the tokens
//! that the client has buffered, which the scheduler knows. The choice is
//! [`sluice_policy::reclaim::ReclaimPolicy::evict`].

use sluice_policy::cost::price::{Clients, ReclaimCost, ReclaimKind, ReclaimOption};
use sluice_policy::ids::{Nanos, RequestId};

use super::Scheduler;
use crate::config::TimeSharing;
use crate::sequence::Sequence;

impl Scheduler {
    /// Remaps own layers, with stalls, if the policy prefers that to a pause or a preemption; returns whether the remap
    /// began. It never does so for requests that could be admitted later, or for a request that runs alone.
    pub(super) fn apply_stalling_remap(
        &mut self,
        now: Nanos,
        kv_blocks: u32,
        admitted: &[RequestId],
    ) -> bool {
        let later = admitted.iter().any(|id| !self.is_overdue(now, *id));
        if later || self.running.len() <= 1 {
            return false;
        }
        let Some(stalling) = self.manager.stalling_remap(kv_blocks) else { return false };
        let buffered = self.buffered_tokens(now);
        let clients = self.clients(&buffered);
        let mut options = self.victim_options(now, &clients, self.manager.can_pause_help());
        if options.is_empty() {
            return false;
        }
        let cost = self.manager.price_of_layers(&stalling, &clients);
        let priority = self.running.values().map(|one| one.request.priority).max().unwrap_or(0);
        options.push(ReclaimOption { kind: ReclaimKind::OwnWeights, request: None, priority, cost });
        let chosen = self.manager.params().evict(&options);
        chosen.is_some_and(|option| option.kind == ReclaimKind::OwnWeights)
            && self.manager.apply_stalling_remap(stalling, &mut self.actions)
    }

    /// Pauses or preempts the request that the policy chooses, for requests that grow.
    pub(super) fn evict_for_growth(&mut self, now: Nanos) {
        self.evict(now, self.manager.can_pause_help());
    }

    /// Pauses or preempts the request that the policy chooses, for memory that is owed. A pause helps only if the KV of
    /// the paused request can leave the device.
    pub(super) fn evict_for_debt(&mut self, now: Nanos) {
        self.evict(now, self.manager.can_pause_help() && self.manager.can_evict_paused());
    }

    fn evict(&mut self, now: Nanos, may_pause: bool) {
        let buffered = self.buffered_tokens(now);
        let options = self.victim_options(now, &self.clients(&buffered), may_pause);
        match self.manager.params().evict(&options) {
            Some(ReclaimOption { kind: ReclaimKind::Pause, request: Some(id), .. })
                if self.pause(now, id) => {}
            _ => self.preempt_victim(now),
        }
    }

    /// Returns the options: pausing the first pause victim, and pausing or preempting the preemption victim.
    fn victim_options(&self, now: Nanos, clients: &Clients<'_>, may_pause: bool) -> Vec<ReclaimOption> {
        let victim = self.preemption_victim(now);
        let pausable = |id: &RequestId| may_pause && self.can_be_paused(now, *id);
        let first = self.pause_victim(now).filter(pausable);
        let instead = victim.filter(pausable);
        let pause = |one: &Sequence| {
            self.manager.price_of_pause(one.id(), self.buffered_tokens_of(now, one), clients)
        };
        let again = |one: &Sequence| {
            let buffered = self.buffered_tokens_of(now, one);
            self.manager.price_of_preemption(one.id(), buffered, one.committed, clients)
        };
        let pauses = first
            .into_iter()
            .chain(instead)
            .filter_map(|id| self.reclaim_option(id, ReclaimKind::Pause, pause));
        let all = pauses.chain(victim.and_then(|id| self.reclaim_option(id, ReclaimKind::Preempt, again)));
        all.filter(|option| option.cost.freed_bytes > 0).collect()
    }

    fn can_be_paused(&self, now: Nanos, id: RequestId) -> bool {
        self.victims(now).contains(&id)
            && self.manager.exclusive_kv_blocks(id) <= self.manager.host_capacity_blocks()
    }

    fn reclaim_option(
        &self,
        id: RequestId,
        remedy: ReclaimKind,
        price: impl Fn(&Sequence) -> ReclaimCost,
    ) -> Option<ReclaimOption> {
        let one = self.running_request(id)?;
        Some(ReclaimOption {
            kind: remedy,
            request: Some(id),
            priority: one.request.priority,
            cost: price(one),
        })
    }

    /// Under time or space sharing, peers use spare GPU time and link bandwidth, so a request is assumed to wait.
    fn clients<'a>(&self, in_store: &'a [u32]) -> Clients<'a> {
        let shared = self.config.sharing != TimeSharing::Exclusive;
        Clients { buffered_tokens: in_store, waiting: shared || !self.queue.is_empty() }
    }

    fn buffered_tokens(&self, now: Nanos) -> Vec<u32> {
        self.running.values().map(|one| self.buffered_tokens_of(now, one)).collect()
    }

    /// Returns the tokens that the client has not read yet.
    fn buffered_tokens_of(&self, now: Nanos, one: &Sequence) -> u32 {
        let left_ns = one.buffered_until(now).since(now);
        left_ns
            .checked_div(self.manager.params().slo.tbt_ns)
            .map_or(0, |tokens| tokens.min(u32::MAX.into()) as u32)
    }
}
