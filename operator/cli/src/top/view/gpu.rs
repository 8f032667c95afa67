//! Tenants of one GPU together: memory limits, loans, and the time slice.

use ratatui::style::Color;
use ratatui::text::{Line, Span};
use sluice_wire::State;
use sluice_wire::state::{Direction, SharingState};

use super::RenderContext;
use super::wrap::{Fragment, plain_fragment, wrap_fragments};
use sluice_page::text::formatting::{age, bytes, percentiles};
use sluice_page::text::hangs;

/// Indent of a tenant of a shared GPU.
const INDENT: &str = "  ";

/// A GPU and its tenants that have answered.
#[derive(Debug)]
pub struct GpuTenants<'a> {
    /// Titles and states; at least one.
    pub tenants: Vec<(&'a str, &'a State)>,
}

impl<'a> GpuTenants<'a> {
    /// Returns all GPUs, in the order of their first tenants.
    pub fn group_by_gpu(view: &RenderContext<'a>) -> Vec<GpuTenants<'a>> {
        let mut gpus: Vec<GpuTenants<'a>> = Vec::new();
        let key = |state: &'a State| (&state.tenant.namespace, &state.tenant.gpu);
        for (title, state) in view.answered() {
            match gpus.iter_mut().find(|gpu| key(gpu.tenants[0].1) == key(state)) {
                Some(gpu) => gpu.tenants.push((title, state)),
                None => gpus.push(GpuTenants { tenants: vec![(title, state)] }),
            }
        }
        gpus
    }

    /// Whether the GPU has details beyond those of its one tenant.
    pub fn is_shared(&self) -> bool {
        self.tenants.len() > 1 || self.peer_states().next().is_some()
    }

    fn peer_states(&self) -> impl Iterator<Item = &'a SharingState> {
        self.tenants.iter().filter_map(|(_, state)| state.peers.as_ref())
    }

    fn sum(&self, of: fn(&SharingState) -> u64) -> u64 {
        self.peer_states().map(of).fold(0, u64::saturating_add)
    }

    /// Bytes of its memory: a tenant reports its limit, which is all of it or its part.
    fn memory(&self) -> u64 {
        let largest = self.tenants.iter().map(|(_, state)| state.memory.capacity_bytes).max();
        largest.unwrap_or(0).max(self.sum(|own| own.budget_bytes))
    }

    /// Renders the GPU as a whole.
    pub fn heading(&self, view: &RenderContext, width: usize) -> Vec<Line<'static>> {
        let (_, first) = self.tenants[0];
        let count = self.tenants.len();
        let tenants = if count == 1 { "1 tenant".to_owned() } else { format!("{count} tenants") };
        let mut phrases = vec![
            vec![RenderContext::bold(first.tenant.gpu.clone())],
            plain_fragment(format!("{}, {tenants}", bytes(self.memory()))),
        ];
        if self.peer_states().next().is_some() {
            let sum = |name: &str, of| plain_fragment(format!("{name} {}", bytes(self.sum(of))));
            phrases.push(sum("shares", |own| own.share_bytes));
            phrases.push(sum("borrowed", |own| own.borrowed_bytes));
            phrases.push(sum("lent", |own| own.lent_bytes));
        }
        phrases.extend(self.time_slice(view));
        wrap_fragments("GPU ", phrases, 3, width)
    }

    /// Returns the holder of the time slice, whether it is past its deadline, and the number of waiters; `None` =
    /// no time slices.
    fn time_slice(&self, view: &RenderContext) -> Option<Fragment> {
        let slices = || self.tenants.iter().filter_map(|(_, state)| hangs::time_slice(state));
        let waiting = slices().map(|slice| slice.waiting).max()?;
        // Waiting tenants name a holder that does not answer.
        let late =
            slices().filter(|slice| slice.holder_overdue_ms > 0).max_by_key(|slice| slice.holder_overdue_ms);
        let late = late.and_then(|slice| Some((slice.holder.as_deref()?, slice.holder_overdue_ms)));
        let holds = |state: &State| hangs::time_slice(state).is_some_and(|slice| slice.holds);
        let holder = self.tenants.iter().find(|(_, state)| holds(state)).map(|(title, _)| *title);
        let named = || slices().find_map(|slice| slice.holder.as_deref());
        let mut phrase = match late {
            Some((holder, overdue_ms)) => {
                let said = format!("slice {holder}, {overdue_ms} ms past its deadline");
                vec![Span::styled(said, view.style(Color::Red))]
            }
            None => plain_fragment(format!("slice {}", holder.or_else(named).unwrap_or("free"))),
        };
        if waiting > 0 {
            phrase.push(format!(", {waiting} waiting").into());
        }
        Some(phrase)
    }
}

/// Renders one tenant of a shared GPU, above its map; `cell` only if it fits into the line.
pub fn tenant(title: &str, state: &State, brief: &str, cell: &str, width: usize) -> Vec<Line<'static>> {
    let mut phrases: Vec<Fragment> = vec![vec![RenderContext::bold(title)]];
    match &state.peers {
        Some(own) => {
            phrases.push(plain_fragment(format!("{brief}share {}", bytes(own.share_bytes))));
            phrases.push(plain_fragment(format!("budget {}", bytes(own.budget_bytes))));
            phrases.extend(loan_fragments(own).into_iter().map(plain_fragment));
        }
        None => phrases.push(plain_fragment(format!("{brief}{}", bytes(state.memory.capacity_bytes)))),
    }
    let used: usize = phrases.iter().flatten().map(Span::width).sum::<usize>() + 3 * phrases.len();
    if INDENT.len() + used + cell.chars().count() <= width {
        phrases.push(plain_fragment(cell));
    }
    wrap_fragments(INDENT, phrases, 3, width)
}

/// Returns the loans to and from peers, one phrase per peer.
fn loan_fragments(own: &SharingState) -> Vec<String> {
    let mut sums: Vec<(Direction, &str, u64)> = Vec::new();
    for grant in &own.grants {
        let same =
            |sum: &&mut (Direction, &str, u64)| (sum.0, sum.1) == (grant.direction, grant.name.as_str());
        match sums.iter_mut().find(same) {
            Some(sum) => sum.2 = sum.2.saturating_add(grant.bytes),
            None => sums.push((grant.direction, &grant.name, grant.bytes)),
        }
    }
    let words = |(direction, name, sum): (Direction, &str, u64)| match direction {
        Direction::Lent => format!("lent {} to {name}", bytes(sum)),
        Direction::Borrowed => format!("borrowed {} from {name}", bytes(sum)),
    };
    sums.into_iter().map(words).collect()
}

/// Describes a tenant's budget, for its details.
pub fn budget_fragments(own: &SharingState) -> Vec<String> {
    let amounts = [
        ("share", own.share_bytes),
        ("budget", own.budget_bytes),
        ("held", own.held_bytes),
        ("floor", own.floor_bytes),
        ("could lend", own.lendable_bytes),
    ];
    amounts.map(|(name, amount)| format!("{name} {}", bytes(amount))).into()
}

/// Describes a tenant's time slices, for its details; empty if there are none.
pub fn slice_fragments(own: &SharingState) -> Vec<String> {
    let Some(slice) = &own.time_slice else { return Vec::new() };
    vec![
        if slice.holds { "holds it".to_owned() } else { "does not hold it".to_owned() },
        format!("{} so far, {} in all", slice.slices_total, age(slice.held_ns_total / 1_000_000)),
        format!("p50/p99 ms: wait {}, hand-over {}", percentiles(&slice.wait), percentiles(&slice.handover)),
    ]
}
