//! What a viewer is sent of one GPU: built from the states of its tenants, and from nothing else.

use serde::Serialize;
use sluice_wire::State;
use sluice_wire::state::{Direction, Percentiles, Phase, Residency, SloState, TenantReport};

use crate::shortages::Shortage;
use crate::text::reason::{Level, Reason};
use crate::text::{explain, hangs, missed_tokens};

/// What is read of one GPU at one time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading<'a> {
    /// Namespace of its pool.
    pub namespace: &'a str,
    /// Its pool.
    pub pool: &'a str,
    /// Its name in the namespace.
    pub name: &'a str,
    /// Its node; `None` = not known.
    pub node: Option<&'a str>,
    /// Its memory, bytes; `None` = as much as its tenants may use together.
    pub capacity_bytes: Option<u64>,
    /// When its tenants were read, milliseconds since the Unix epoch; `None` = never.
    pub read_unix_ms: Option<u64>,
    /// Why they could not be read this time.
    pub problem: Option<&'a str>,
    /// Its tenants.
    pub tenants: &'a [TenantReport],
}

impl Reading<'_> {
    /// By which a viewer asks for the GPU: `NAMESPACE/NAME`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuView {
    /// `NAMESPACE/NAME`.
    pub key: String,
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: Option<String>,
    /// When its tenants were read, milliseconds since the Unix epoch.
    pub read_unix_ms: Option<u64>,
    /// Its memory, bytes.
    pub capacity_bytes: u64,
    /// The worst of all reasons.
    pub level: Level,
    /// What is wrong with the GPU itself.
    pub reasons: Vec<Reason>,
    /// Its tenants, by title.
    pub tenants: Vec<TenantView>,
    /// Loans between tenants.
    pub loans: Vec<Loan>,
}

/// Memory that one tenant lends to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loan {
    /// Title of the lender.
    pub from: String,
    /// Title of the borrower.
    pub to: String,
    /// Sum of the grants, bytes.
    pub bytes: u64,
}

/// One tenant of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TenantView {
    /// `NAMESPACE/NAME`.
    pub title: String,
    /// Colour of the tenant, the same in all views: an index, counted from 0.
    pub colour: usize,
    /// Whether its sidecar answered.
    pub answers: bool,
    /// What it does; empty = not known.
    pub phase: &'static str,
    /// The worst of its reasons.
    pub level: Level,
    /// The headline of `explain`, then its reasons.
    pub reasons: Vec<Reason>,
    /// Which of the reasons a view of many tenants shows: what is wrong, where an objective is missed, what it
    /// comes
    /// from, and what wakes a tenant that sleeps by hand.
    pub shown_reasons: Vec<usize>,
    /// Device memory by owner, bytes; the names are those of [`OWNERS`].
    pub owners: [u64; 8],
    /// What it may hold, bytes.
    pub capacity_bytes: u64,
    /// A letter for each layer, front first: `r`esident, `m`oving, `l`oading, `a`bsent.
    pub layers: String,
    /// KV cache that requests use, permille; `None` = it has none.
    pub kv_used_permille: Option<u32>,
    /// KV cache in all, bytes.
    pub kv_total_bytes: u64,
    /// KV in host memory, bytes.
    pub kv_host_bytes: u64,
    /// Requests in the running batch.
    pub running: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Tokens per second since the reading before; `None` = not known.
    pub tokens_per_s: Option<f32>,
    /// Time to the first token, 99th percentile, ns; `None` = nothing was measured.
    pub ttft_ns: Option<u64>,
    /// Time between tokens, 99th percentile, ns; `None` = nothing was measured.
    pub tbt_ns: Option<u64>,
    /// Its objectives, as far as tokens came.
    pub objectives: Vec<Objective>,
}

/// Names of [`TenantView::owners`], in order.
pub const OWNERS: [&str; 8] =
    ["weights_global", "weights_layers", "slots", "kv", "activation", "staging", "earmarked", "free"];

/// One objective of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Objective {
    /// `first token` or `later token`.
    pub name: &'static str,
    /// Share of tokens in time, permille.
    pub attained_permille: u32,
    /// Share that is promised, permille.
    pub promised_permille: u32,
    /// In time means within this, ns.
    pub limit_ns: u64,
    /// The same for people.
    pub within: String,
    /// Length of the window that ends now and that the share is over, seconds.
    pub window_seconds: u32,
    /// Whether fewer tokens were in time than are promised.
    pub missed: bool,
}

impl Objective {
    /// How far the attained share is above the promised one, permille; below 0 = missed.
    pub fn margin(&self) -> i64 {
        i64::from(self.attained_permille) - i64::from(self.promised_permille)
    }
}

impl GpuView {
    /// Of a reading at `now_unix_ms`. `rate` gives tokens per second, `shortage` how often KV ran short lately, and
    /// `colour` the colour of a tenant, each by its title.
    pub fn of(
        reading: &Reading<'_>,
        now_unix_ms: u64,
        rate: impl Fn(&str) -> Option<f32>,
        shortage: impl Fn(&str) -> Option<Shortage>,
        mut colour: impl FnMut(&str) -> usize,
    ) -> GpuView {
        let mut tenants: Vec<TenantView> =
            reading.tenants.iter().map(|report| TenantView::of(report, now_unix_ms, &shortage)).collect();
        tenants.sort_by(|a, b| a.title.cmp(&b.title));
        for tenant in &mut tenants {
            tenant.tokens_per_s = rate(&tenant.title).filter(|_| tenant.answers);
            tenant.colour = colour(&tenant.title);
        }
        let problem = reading
            .problem
            .map(|said| Reason::new(Level::Bad, "read", format!("Could not be read: {said}.")));
        let reasons: Vec<_> = problem.into_iter().chain(late_holder(reading.tenants)).collect();
        let own = reasons.iter().map(|reason| reason.level);
        let level = own.chain(tenants.iter().map(|tenant| tenant.level)).max().unwrap_or_default();
        let held = reading.tenants.iter().map(own_budget_bytes).sum();
        GpuView {
            key: reading.key(),
            pool: reading.pool.to_owned(),
            name: reading.name.to_owned(),
            node: reading.node.map(str::to_owned),
            read_unix_ms: reading.read_unix_ms,
            capacity_bytes: reading.capacity_bytes.unwrap_or(held),
            level,
            reasons,
            loans: loans(reading.tenants),
            tenants,
        }
    }

    /// Bytes that are not free, of all tenants.
    pub fn used_bytes(&self) -> u64 {
        self.tenants.iter().flat_map(|tenant| &tenant.owners[..7]).sum()
    }

    /// The worst that is wrong, for people; `None` = nothing is.
    pub fn worst(&self) -> Option<String> {
        let own = self.reasons.iter().map(|reason| (reason.level, reason.text.clone()));
        let tenants = self.tenants.iter().flat_map(|tenant| {
            tenant.reasons.iter().map(|reason| {
                // The headline names the tenant.
                let text = if reason.kind == "phase" {
                    reason.text.clone()
                } else {
                    format!("{}: {}", tenant.title, reason.text)
                };
                (reason.level, text)
            })
        });
        let wrong = own.chain(tenants).filter(|(level, _)| *level > Level::Fine);
        // The first of the worst ones.
        wrong.reduce(|worst, next| if next.0 > worst.0 { next } else { worst }).map(|(_, text)| text)
    }
}

/// Returns the states of the tenants that answered.
pub fn states(reports: &[TenantReport]) -> impl Iterator<Item = &State> {
    reports.iter().filter_map(|report| match report {
        TenantReport::State(state) => Some(&**state),
        TenantReport::Unreachable { .. } => None,
    })
}

/// `NAMESPACE/NAME` of a state's tenant.
pub fn title(state: &State) -> String {
    format!("{}/{}", state.tenant.namespace, state.tenant.name)
}

/// Returns the holder of the time slice, if it is past its deadline: it may not answer itself.
fn late_holder(reports: &[TenantReport]) -> Option<Reason> {
    let slices = states(reports).filter_map(hangs::time_slice).filter(|slice| slice.holder_overdue_ms > 0);
    let slice = slices.max_by_key(|slice| slice.holder_overdue_ms)?;
    let (holder, overdue_ms) = (slice.holder.as_ref()?, slice.holder_overdue_ms);
    let text = format!("{holder} holds the time slice and is {overdue_ms} ms past its deadline.");
    Some(Reason::new(Level::Bad, "holder", text))
}

/// Sums grants by lender and borrower. Either end reports them; the larger report counts, so that a missing one
/// does no harm.
fn loans(reports: &[TenantReport]) -> Vec<Loan> {
    let mut sums: Vec<(Loan, bool)> = Vec::new();
    for state in states(reports) {
        for grant in state.peers.iter().flat_map(|own| &own.grants) {
            let (own, other) = (title(state), format!("{}/{}", grant.namespace, grant.name));
            let lends = grant.direction == Direction::Lent;
            let (from, to) = if lends { (own, other) } else { (other, own) };
            match sums.iter_mut().find(|(loan, by)| *by == lends && loan.from == from && loan.to == to) {
                Some((loan, _)) => loan.bytes += grant.bytes,
                None => sums.push((Loan { from, to, bytes: grant.bytes }, lends)),
            }
        }
    }
    let mut loans: Vec<Loan> = sums.into_iter().map(|(loan, _)| loan).collect();
    loans.sort_by(|a, b| (&a.from, &a.to, b.bytes).cmp(&(&b.from, &b.to, a.bytes)));
    loans.dedup_by(|next, kept| next.from == kept.from && next.to == kept.to);
    loans
}

impl TenantView {
    /// The objective that is furthest below its promise, or closest to it; `None` = no token has come.
    pub fn worst_objective(&self) -> Option<&Objective> {
        self.objectives.iter().min_by_key(|one| one.margin())
    }

    /// The reasons that a view of many tenants shows.
    pub fn shown_reasons(&self) -> impl Iterator<Item = &Reason> {
        self.shown_reasons.iter().map(|at| &self.reasons[*at])
    }

    fn of(
        report: &TenantReport,
        now_unix_ms: u64,
        shortage: impl Fn(&str) -> Option<Shortage>,
    ) -> TenantView {
        match report {
            TenantReport::State(state) => TenantView::of_state(state, now_unix_ms, shortage(&title(state))),
            TenantReport::Unreachable { namespace, name, reason } => {
                let text = format!("Its sidecar does not answer: {reason}.");
                TenantView {
                    title: format!("{namespace}/{name}"),
                    level: Level::Bad,
                    reasons: vec![Reason::new(Level::Bad, "silent", text)],
                    shown_reasons: vec![0],
                    ..TenantView::default()
                }
            }
        }
    }

    fn of_state(state: &State, now_unix_ms: u64, shortage: Option<Shortage>) -> TenantView {
        let headline = explain::headline(state, now_unix_ms);
        let mut reasons = vec![Reason::new(explain::phase_level(state.phase), "phase", headline)];
        reasons.extend(explain::reasons(state, now_unix_ms, shortage));
        let objectives = objectives(&state.slo);
        let (kv, figures) = (&state.kv, &state.figures);
        TenantView {
            title: title(state),
            answers: true,
            phase: phase(state),
            level: reasons.iter().map(|reason| reason.level).max().unwrap_or_default(),
            shown_reasons: shown_reasons(&reasons, objectives.iter().any(|one| one.missed)),
            reasons,
            owners: state.memory.owners.by_name().map(|(_, bytes)| bytes),
            capacity_bytes: state.memory.capacity_bytes,
            layers: layers(state),
            kv_used_permille: used_permille(kv.layer_blocks_used, kv.layer_blocks_total),
            kv_total_bytes: kv.layer_blocks_total.saturating_mul(kv.layer_block_bytes),
            kv_host_bytes: kv.host_layer_blocks_used.saturating_mul(kv.layer_block_bytes),
            running: state.queue.running,
            waiting: state.queue.waiting,
            ttft_ns: p99(&figures.ttft),
            tbt_ns: p99(&figures.delivered_tbt),
            objectives,
            ..TenantView::default()
        }
    }
}

/// An objective has a place of its own in every view, so its reason is not shown again. What wakes a tenant is
/// shown as
/// long as it sleeps by hand.
fn shown_reasons(reasons: &[Reason], missed: bool) -> Vec<usize> {
    let is_shown = |reason: &Reason| match reason.kind {
        "objective" => false,
        "sleep" => true,
        "cause" if missed => true,
        _ => reason.level > Level::Fine,
    };
    (0..reasons.len()).filter(|at| is_shown(&reasons[*at])).collect()
}

fn used_permille(used: u64, total: u64) -> Option<u32> {
    u32::try_from(used.saturating_mul(1000).checked_div(total)?).ok()
}

/// What a tenant may hold of its GPU without loans: these move memory, and the GPU stays as large.
fn own_budget_bytes(report: &TenantReport) -> u64 {
    let TenantReport::State(state) = report else { return 0 };
    let share = state.peers.as_ref().map_or(0, |place| place.share_bytes);
    if share > 0 { share } else { state.memory.capacity_bytes }
}

fn p99(measured: &Percentiles) -> Option<u64> {
    (measured.samples > 0).then_some(measured.p99_ns)
}

fn objectives(slo: &SloState) -> Vec<Objective> {
    let promised_permille = missed_tokens::promised_permille(slo);
    let one = |name, attained: Option<u32>, limit_ns, within| {
        let of = |attained_permille| Objective {
            name,
            attained_permille,
            promised_permille,
            limit_ns,
            within,
            window_seconds: slo.window_seconds,
            missed: attained_permille < promised_permille,
        };
        attained.map(of)
    };
    let [ttft, tbt] = explain::limits(slo);
    let first = one("first token", slo.ttft_attained_permille, slo.ttft_target_ns, ttft);
    let next = one("later token", slo.tbt_attained_permille, slo.tbt_limit_ns(), tbt);
    first.into_iter().chain(next).collect()
}

const fn phase(state: &State) -> &'static str {
    match state.phase {
        Phase::Loading => "loading",
        Phase::Active if state.idle_since_unix_ms.is_some() => "ready",
        Phase::Active => "serving",
        Phase::Idle => "idle",
        Phase::Hibernated if state.sleep_ordered => "asleep by hand",
        Phase::Hibernated => "hibernated",
        Phase::Waking => "waking",
        Phase::EngineLost => "engine lost",
        Phase::Draining => "draining",
        Phase::Failed => "failed",
    }
}

/// A tenant that lends whole layers lends its last ones.
fn layers(state: &State) -> String {
    let here = state.layers.len().saturating_sub(usize::from(state.activity.lent_layers));
    let symbol = |(index, layer): (usize, &Residency)| match layer {
        _ if index >= here || state.phase == Phase::Hibernated => 'a',
        Residency::Resident => 'r',
        Residency::Moving { .. } => 'm',
        Residency::Loading => 'l',
    };
    state.layers.iter().enumerate().map(symbol).collect()
}

#[cfg(test)]
mod tests;
