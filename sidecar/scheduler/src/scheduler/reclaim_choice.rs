//! Chooses the reclaim option with the lowest cost per byte when running requests outgrow memory (`Unified`).
//!
//! The memory manager knows what remapping own layers frees. The cost of a pause or a preemption depends on the tokens
//! that the client has buffered, which the scheduler knows. The comparison is [`sluice_policy::cost::price`].

use sluice_policy::cost::price::{Clients, ReclaimCost, ReclaimKind, ReclaimOption, least};
use sluice_policy::ids::{Nanos, RequestId};

use super::Scheduler;
use crate::config::Sharing;
use crate::sequence::Sequence;

impl Scheduler {
    /// Remaps own layers, with stalls, if that costs less than any pause or preemption; returns whether the remap
    /// began. It never does so for requests that could be admitted later.
    pub(super) fn apply_stalling_remap(
        &mut self,
        now: Nanos,
        kv_blocks: u32,
        admitted: &[RequestId],
    ) -> bool {
        let later = admitted.iter().any(|id| !self.is_overdue(now, *id));
        if later || self.running.len() <= 1 || !self.manager.params().compares_costs() {
            return false;
        }
        let Some(stalling) = self.manager.stalling_remap(kv_blocks) else { return false };
        let in_store = self.buffered_tokens(now);
        let clients = self.clients(&in_store);
        let price = self.manager.price_of_layers(&stalling, &clients);
        let priority = self.running.values().map(|one| one.request.priority).max().unwrap_or(0);
        let layers = ReclaimOption { kind: ReclaimKind::OwnWeights, request: None, priority, cost: price };
        let mut offers = self.victim_options(now, &clients);
        let instead = !offers.is_empty();
        offers.push(layers);
        instead
            && least(offers).is_some_and(|best| best.kind == ReclaimKind::OwnWeights)
            && self.manager.apply_stalling_remap(stalling, &mut self.actions)
    }

    /// Pauses or preempts the request with the lowest cost.
    pub(super) fn evict_cheapest(&mut self, now: Nanos) {
        let in_store = self.buffered_tokens(now);
        match least(self.victim_options(now, &self.clients(&in_store))) {
            Some(ReclaimOption { kind: ReclaimKind::Pause, request: Some(id), .. })
                if self.pause(now, id) => {}
            _ => self.preempt_victim(now),
        }
    }

    /// Returns the options: pausing the first pause victim, and pausing or preempting the preemption victim.
    fn victim_options(&self, now: Nanos, clients: &Clients<'_>) -> Vec<ReclaimOption> {
        let victim = self.preemption_victim(now);
        let pausing = self.manager.can_pause_help();
        let latest = self.pause_victim(now).filter(|id| pausing && self.can_be_paused(now, *id));
        let instead = victim.filter(|id| pausing && self.can_be_paused(now, *id));
        let pause = |one: &Sequence| {
            self.manager.price_of_pause(one.id(), self.buffered_tokens_of(now, one), clients)
        };
        let again = |one: &Sequence| {
            self.manager.price_of_preemption(
                one.id(),
                self.buffered_tokens_of(now, one),
                one.committed,
                clients,
            )
        };
        let pauses = latest
            .into_iter()
            .chain(instead)
            .filter_map(|id| self.reclaim_option(id, ReclaimKind::Pause, pause));
        let all = pauses.chain(victim.and_then(|id| self.reclaim_option(id, ReclaimKind::Preempt, again)));
        all.filter(|offer| offer.cost.freed_bytes > 0).collect()
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
        let shared = self.config.sharing != Sharing::Exclusive;
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
