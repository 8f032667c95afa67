//! Chooses which layers move, how many, and over how many slots (Oneiros 5.2 to 5.4, Algorithm 1, Eq. 1 to 5).
//!
//! Oneiros chooses one or two slots by a constant ("alpha >= 9 at n = 40"). Here the step model evaluates real
//! positions and each layer's constant slot, so that even m, or a wider gap over the end of the token, is preferred
//! exactly where it pays. The caller decides *when* to remap; this module decides *what*.

use alloc::vec::Vec;

use crate::ids::LayerId;
use crate::reason::Reason;
use crate::step_model::{Layout, MAX_BETA, Times, stall_per_token_ns};

mod bounds;
mod sets;

pub use sets::{even, nested, uniform, uniform_widened};

/// Input of [`choose_layout`].
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Times of each layer.
    pub times: &'a Times<'a>,
    /// The current layout.
    pub current: &'a Layout,
    /// Number of layers whose memory is wanted.
    pub wanted_alpha: u16,
    /// Maximum number of moving layers (the tenant's cap). A whole model never moves: n - 1 is a limit too.
    pub cap_m: u16,
    /// Allowed stall of a token, nanoseconds.
    pub allowance_ns: u64,
    /// Tokens over which the loads of a change are amortized when layouts are compared. At least 1.
    pub horizon_tokens: u64,
}

/// Output of [`choose_layout`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The chosen layout.
    pub layout: Layout,
    /// Its steady-state stall per token, nanoseconds.
    pub stall_ns: u64,
    /// Link time of the change: copies of moving layers that become resident, nanoseconds.
    pub transition_ns: u64,
    /// Why fewer layers than wanted are freed; `None` if enough are.
    pub declined: Option<Reason>,
}

impl Choice {
    /// Returns the cost of the choice over the horizon, nanoseconds.
    pub fn cost_ns(&self, horizon_tokens: u64) -> u128 {
        u128::from(self.stall_ns) * u128::from(horizon_tokens) + u128::from(self.transition_ns)
    }
}

/// Returns the smallest alpha >= the wanted one whose stall is allowed; if there is none, the largest allowed one below
/// it, with the reason (0, all layers resident, is always allowed). For that alpha it returns the cheapest of one or
/// two slots, uniform or nested in the current layout, for odd m at two slots also with a wider gap over the token's
/// end. Ties prefer one slot, then the nested set. The choice never costs more over the horizon than always alpha + 1
/// or always alpha + 2, where those are allowed.
pub fn choose_layout(question: &Question<'_>) -> Choice {
    let search = Search::new(question);
    if question.wanted_alpha == 0 {
        return search.resident(None);
    }
    let wanted = question.wanted_alpha;
    let enough = (wanted..search.limit_m)
        .take_while(|&a| search.bounds.can_be_allowed(a))
        .find_map(|a| search.best(a));
    if let Some(choice) = enough {
        return choice;
    }
    let cap = wanted >= search.limit_m;
    let declined = Some(if cap { Reason::DeclinedCap } else { Reason::DeclinedStall });
    let below = (1..wanted.min(search.limit_m)).rev().filter(|&a| search.bounds.can_be_allowed(a));
    match below.into_iter().find_map(|alpha| search.best(alpha)) {
        Some(choice) => Choice { declined, ..choice },
        None => search.resident(declined),
    }
}

struct Search<'a> {
    question: &'a Question<'a>,
    layers: u16,
    limit_m: u16,
    bounds: bounds::Bounds,
}

impl<'a> Search<'a> {
    fn new(question: &'a Question<'a>) -> Search<'a> {
        assert!(question.horizon_tokens > 0, "a change is spread over at least one token");
        let layers = question.times.layers();
        let limit_m = question.cap_m.min(layers.saturating_sub(1));
        let bounds = bounds::Bounds::new(question.times, question.allowance_ns, limit_m);
        Search { question, layers, limit_m, bounds }
    }

    fn resident(&self, declined: Option<Reason>) -> Choice {
        let layout = Layout::resident();
        Choice { stall_ns: 0, transition_ns: self.transition_ns(&layout.moving), layout, declined }
    }

    /// Returns the cheapest allowed layout that frees `alpha` layers.
    fn best(&self, alpha: u16) -> Option<Choice> {
        let mut best: Option<Choice> = None;
        for beta in 1..=MAX_BETA {
            if !self.bounds.can_allow_beta(alpha, beta) {
                continue;
            }
            for moving in self.sets(alpha + u16::from(beta), beta) {
                let Some(found) = self.evaluate(Layout { moving, beta }) else { continue };
                let horizon = self.question.horizon_tokens;
                if best.as_ref().is_none_or(|b| found.cost_ns(horizon) < b.cost_ns(horizon)) {
                    best = Some(found);
                }
            }
            if best.as_ref().is_some_and(|b| b.cost_ns(self.question.horizon_tokens) == 0) {
                break; // no layout is cheaper, and one slot wins a tie
            }
        }
        best
    }

    /// Returns the sets of `m` moving layers to compare, preferred ones first.
    fn sets(&self, m: u16, beta: u8) -> impl Iterator<Item = Vec<LayerId>> {
        let nested = (!self.question.current.moving.is_empty())
            .then(|| nested(self.layers, &self.question.current.moving, m));
        nested.into_iter().chain(even(self.layers, m, beta))
    }

    fn evaluate(&self, layout: Layout) -> Option<Choice> {
        let stall_ns = stall_per_token_ns(self.question.times, &layout);
        let transition_ns = self.transition_ns(&layout.moving);
        (stall_ns <= self.question.allowance_ns).then_some(Choice {
            layout,
            stall_ns,
            transition_ns,
            declined: None,
        })
    }

    /// Returns the copy time of the moving layers that would become resident, nanoseconds.
    fn transition_ns(&self, moving: &[LayerId]) -> u64 {
        let back = self.question.current.moving.iter().filter(|layer| moving.binary_search(layer).is_err());
        back.map(|layer| self.question.times.transfer(layer.index())).sum()
    }
}
