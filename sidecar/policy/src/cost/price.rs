//! Compares reclaim options by their loss per freed byte (the least predicted goodput loss per byte freed).
//!
//! A delayed token is lost only if it becomes late. With an objective, a client reads one token per interval, from its
//! buffer as long as that lasts: while no request waits, a longer step costs nothing as long as it is within the
//! objective. While a request waits, or without an objective, every token not generated is a loss.
//!
//! Of options with equal loss, the one that keeps the most tokens wins (the planner's second objective), then the first
//! in the order of [`ReclaimKind`].

use core::cmp::Ordering;

use super::{CostContext, MILLI};
use crate::ids::RequestId;

/// The clients' buffers, and whether other requests wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clients<'a> {
    /// Buffered tokens of each running request.
    pub buffered_tokens: &'a [u32],
    /// Whether requests wait that could generate tokens.
    pub waiting: bool,
}

/// Loss of tokens in the window, thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LateTokens {
    /// Tokens not generated in time.
    pub late: u64,
    /// Tokens not generated, including those that no client misses yet.
    pub lost: u64,
}

/// An option's cost and gain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimCost {
    /// The loss.
    pub loss: LateTokens,
    /// Bytes freed.
    pub freed_bytes: u64,
}

impl ReclaimCost {
    /// Orders by loss per byte, smallest first.
    pub fn by_byte(&self, other: &ReclaimCost) -> Ordering {
        let cross = |a: u64, b: &ReclaimCost| u128::from(a) * u128::from(b.freed_bytes);
        let late = cross(self.loss.late, other).cmp(&cross(other.loss.late, self));
        late.then_with(|| cross(self.loss.lost, other).cmp(&cross(other.loss.lost, self)))
    }
}

/// Reclaim options that use the link or time, in the order that breaks ties. KV of paused requests is
/// reclaimed before them, because its loss has already occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReclaimKind {
    /// Move more own layers, so that tokens wait for them.
    OwnWeights,
    /// Pause a request with its KV in the host tier.
    Pause,
    /// Preempt a request and recompute it.
    Preempt,
}

/// A possible reclaim option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimOption {
    /// Its kind.
    pub kind: ReclaimKind,
    /// The request to pause or preempt.
    pub request: Option<RequestId>,
    /// The highest priority among the affected requests.
    pub priority: i32,
    /// Its cost.
    pub cost: ReclaimCost,
}

impl ReclaimOption {
    /// Orders options. A request never loses tokens for one of lower priority, whatever the cost.
    fn before(&self, other: &ReclaimOption) -> Ordering {
        let hurt = |offer: &ReclaimOption| (offer.cost.loss.late > 0).then_some(offer.priority);
        let price = || self.cost.by_byte(&other.cost);
        hurt(self).cmp(&hurt(other)).then_with(price).then_with(|| self.kind.cmp(&other.kind))
    }
}

/// Returns the option with the lowest cost, the first of equals. Options that free nothing are ignored.
pub fn cheapest(offers: impl IntoIterator<Item = ReclaimOption>) -> Option<ReclaimOption> {
    let offers = offers.into_iter().filter(|offer| offer.cost.freed_bytes > 0);
    offers.min_by(ReclaimOption::before)
}

impl CostContext {
    /// Returns the loss if every step takes `added_ns` longer.
    pub fn stall(&self, added_ns: u64, clients: &Clients<'_>) -> LateTokens {
        if added_ns == 0 {
            return LateTokens::default();
        }
        let later_ns = self.step_ns.saturating_add(added_ns);
        let unmade = super::part(self.all(), added_ns, later_ns);
        let counts = self.misses_all(clients) || !self.was_on_time();
        let late = clients.buffered_tokens.iter().map(|store| self.late_under(later_ns, *store)).sum();
        let late = if counts { unmade.max(late) } else { late };
        LateTokens { late, lost: unmade }
    }

    /// Returns the loss if a request with `buffered_tokens` buffered tokens pauses for the window, and the whole batch
    /// stops for `leaving_ns` while its KV is copied.
    pub fn pause(&self, buffered_tokens: u32, leaving_ns: u64, clients: &Clients<'_>) -> LateTokens {
        let halt = self.halt_cost(leaving_ns, clients);
        let late = u64::from(self.read_in_window().saturating_sub(buffered_tokens)) * MILLI as u64;
        LateTokens { late: late.saturating_add(halt.late), lost: self.paused(1, 0).saturating_add(halt.lost) }
    }

    /// Returns the loss of a pause after which `tokens` tokens are recomputed, which delays the others.
    pub fn preemption(&self, buffered_tokens: u32, tokens: u64, clients: &Clients<'_>) -> LateTokens {
        self.pause(buffered_tokens, self.prefill_token_ns.saturating_mul(tokens), clients)
    }

    /// Returns the loss if `requests` requests with unknown buffers pause for the window and `tokens` of their tokens
    /// are recomputed.
    pub fn dropped(&self, requests: u32, tokens: u64) -> u64 {
        let late = u64::from(requests) * u64::from(self.read_in_window()) * MILLI as u64;
        late.saturating_add(self.once(self.prefill_token_ns.saturating_mul(tokens)))
    }

    /// Returns the loss of a single stop of the batch for `ns`.
    fn halt_cost(&self, ns: u64, clients: &Clients<'_>) -> LateTokens {
        let unmade = self.once(ns);
        let later_ns = self.step_ns.saturating_add(ns);
        let misses =
            |store: &&u32| u64::from(**store).saturating_add(1).saturating_mul(self.tbt_ns) < later_ns;
        let late = || clients.buffered_tokens.iter().filter(misses).count() as u64 * MILLI as u64;
        LateTokens { late: if self.misses_all(clients) { unmade } else { unmade.min(late()) }, lost: unmade }
    }

    /// Whether every token that is not generated is missed.
    fn misses_all(&self, clients: &Clients<'_>) -> bool {
        clients.waiting || self.tbt_ns == 0
    }

    /// Whether there is an objective that the steps meet.
    fn was_on_time(&self) -> bool {
        (1..=self.tbt_ns).contains(&self.step_ns)
    }

    /// Returns the tokens that a client reads during the window.
    fn read_in_window(&self) -> u32 {
        let window_ns = u128::from(self.step_ns) * u128::from(self.window_steps);
        let read = window_ns.div_ceil(u128::from(self.tbt_ns.max(1)));
        if self.tbt_ns == 0 || self.step_ns == 0 {
            self.window_steps
        } else {
            read.min(self.window_steps.into()) as u32
        }
    }

    /// Returns the late tokens of one request in a window of steps of `step_ns`: those after its buffer is empty.
    fn late_under(&self, step_ns: u64, buffered_tokens: u32) -> u64 {
        let Some(behind_ns) = step_ns.checked_sub(self.tbt_ns).filter(|ns| *ns > 0 && self.was_on_time())
        else {
            return 0;
        };
        let bridged = u128::from(self.tbt_ns) * u128::from(buffered_tokens) / u128::from(behind_ns);
        (u128::from(self.window_steps).saturating_sub(bridged) * MILLI) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten steps of 100 ns; a client reads a token in 400 ns, so three of them during the window.
    const PACED: CostContext =
        CostContext { window_steps: 10, step_ns: 100, requests: 4, tbt_ns: 400, prefill_token_ns: 5 };
    const UNPACED: CostContext = CostContext { tbt_ns: 0, ..PACED };

    const fn alone(buffered_tokens: &[u32]) -> Clients<'_> {
        Clients { buffered_tokens, waiting: false }
    }

    const fn crowded(buffered_tokens: &[u32]) -> Clients<'_> {
        Clients { buffered_tokens, waiting: true }
    }

    fn loss(late: u64, unmade: u64) -> LateTokens {
        LateTokens { late, lost: unmade }
    }

    #[test]
    fn stall_within_slo_is_free_without_waiting_clients() {
        let of = |context: CostContext, clients| context.stall(300, &clients);
        assert_eq!(of(PACED, alone(&[0; 4])), loss(0, 30_000), "400 ns instead of 100: three quarters of 40");
        assert_eq!(of(PACED, crowded(&[9; 4])), loss(30_000, 30_000));
        assert_eq!(
            of(UNPACED, alone(&[0; 4])),
            loss(30_000, 30_000),
            "an unpaced request loses each late token"
        );
        assert_eq!(
            of(CostContext { tbt_ns: 50, ..PACED }, alone(&[0; 4])),
            loss(30_000, 30_000),
            "late before"
        );
        assert_eq!(PACED.stall(0, &crowded(&[0; 4])), LateTokens::default());
    }

    /// Layers restored from peers are compared without knowledge of clients: on a shared GPU a request is assumed to
    /// wait.
    #[test]
    fn stall_without_clients_counts_unbuffered_requests() {
        for context in [PACED, UNPACED, CostContext { tbt_ns: 50, ..PACED }] {
            for added_ns in [0, 1, 300, 301, 5000] {
                assert_eq!(context.stalled(added_ns), context.stall(added_ns, &crowded(&[0; 4])).late);
            }
        }
    }

    #[test]
    fn buffered_tokens_cover_a_stall_beyond_slo() {
        // At 500 ns a step is 100 ns behind, so a buffered token lasts for four steps.
        let clients = alone(&[0, 1, 2, 3]);
        assert_eq!(PACED.stall(400, &clients).late, 10_000 + 6_000 + 2_000);
        let waiting = Clients { waiting: true, ..clients };
        assert_eq!(PACED.stall(400, &waiting).late, 32_000, "four fifths of 40");
    }

    #[test]
    fn pause_loses_tokens_beyond_buffer() {
        let of = |context: CostContext, buffered_tokens| context.pause(buffered_tokens, 0, &alone(&[0; 4]));
        assert_eq!([0, 1, 3, 9].map(|store| of(PACED, store).late), [3_000, 2_000, 0, 0]);
        assert_eq!(of(PACED, 9).lost, 10_000);
        assert_eq!(of(UNPACED, 0), loss(10_000, 10_000));
        let unknown = CostContext { step_ns: 0, ..PACED };
        assert_eq!(of(unknown, 0), loss(10_000, 10_000));
    }

    #[test]
    fn swap_and_recompute_delay_other_requests() {
        // 60 tokens take 300 ns: three steps of four requests.
        assert_eq!(UNPACED.preemption(0, 60, &alone(&[0; 4])), loss(10_000 + 12_000, 10_000 + 12_000));
        assert_eq!(PACED.preemption(9, 60, &crowded(&[0; 4])), loss(12_000, 22_000));
        assert_eq!(PACED.preemption(9, 60, &alone(&[0; 4])), loss(0, 22_000), "400 ns are not too long");
        assert_eq!(PACED.preemption(9, 61, &alone(&[0, 0, 0, 1])), loss(3_000, 10_000 + 12_200));
        assert_eq!(PACED.pause(9, 301, &alone(&[0, 1, 9, 9])).late, 1_000);
    }

    #[test]
    fn dropped_requests_lose_tokens_and_work() {
        // 60 tokens take 300 ns: three steps of four requests.
        assert_eq!((PACED.dropped(2, 60), UNPACED.dropped(2, 60)), (6_000 + 12_000, 20_000 + 12_000));
    }

    fn offer(kind: ReclaimKind, late: u64, unmade: u64, freed_bytes: u64) -> ReclaimOption {
        ReclaimOption {
            kind,
            request: None,
            priority: 0,
            cost: ReclaimCost { loss: LateTokens { late, lost: unmade }, freed_bytes },
        }
    }

    fn cheapest(offers: impl IntoIterator<Item = ReclaimOption>) -> Option<ReclaimKind> {
        super::cheapest(offers).map(|offer| offer.kind)
    }

    use ReclaimKind::{OwnWeights, Pause, Preempt};

    #[test]
    fn option_with_lowest_loss_per_byte_is_chosen() {
        let of = |weights, pause, preempt| {
            cheapest([
                offer(Preempt, 6, 0, preempt),
                offer(Pause, 4, 0, pause),
                offer(OwnWeights, 9, 0, weights),
            ])
        };
        assert_eq!(of(100, 40, 60), Some(OwnWeights), "9/100 of 10/100 and 10/100");
        assert_eq!(of(100, 45, 60), Some(Pause), "4/45 is less than 9/100");
        assert_eq!(of(100, 45, 68), Some(Preempt), "6/68 is less than 4/45");
        assert_eq!(of(0, 0, 1), Some(Preempt), "an option that frees nothing is not chosen");
        assert_eq!(cheapest([]), None);
    }

    #[test]
    fn large_figures_are_compared_exactly() {
        let bytes = u64::MAX / 3;
        let offers = |late| [offer(OwnWeights, u64::MAX, 0, bytes), offer(Pause, late, 0, bytes)];
        assert_eq!(cheapest(offers(u64::MAX - 1)), Some(Pause));
        assert_eq!(cheapest(offers(u64::MAX)), Some(OwnWeights));
    }

    #[test]
    fn equal_losses_prefer_most_tokens_then_order() {
        assert_eq!(cheapest([offer(OwnWeights, 0, 3, 10), offer(Pause, 0, 2, 10)]), Some(Pause));
        assert_eq!(cheapest([offer(OwnWeights, 0, 3, 10), offer(Pause, 1, 0, 10)]), Some(OwnWeights));
        let equal = [offer(Preempt, 4, 4, 20), offer(Pause, 2, 2, 10), offer(OwnWeights, 6, 6, 30)];
        assert_eq!(cheapest(equal), Some(OwnWeights));
        assert_eq!(cheapest([equal[0], equal[1]]), Some(Pause));
    }

    #[test]
    fn higher_priority_never_loses_for_lower() {
        let weights = ReclaimOption { priority: 5, ..offer(OwnWeights, 1, 0, 1000) };
        let preempt = offer(Preempt, 1000, 0, 1);
        assert_eq!(cheapest([weights, preempt]), Some(Preempt));
        let unattributed = ReclaimOption { priority: 5, ..offer(OwnWeights, 0, 9, 1) };
        assert_eq!(cheapest([unattributed, preempt]), Some(OwnWeights), "no request loses anything");
    }
}
