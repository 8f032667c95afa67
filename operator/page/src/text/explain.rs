//! Explains a sidecar's state to the user: the tenant's activity, its objectives, and the location of its memory.

use sluice_wire::State;
use sluice_wire::state::{
    Direction, HANG_REPORTED_MS, Percentiles, Phase, SharingState, SloState, TBT_TOLERANCE_PERCENT,
};

use super::formatting::{age, bytes, duration, move_text, moved_bytes, moved_memory, percent, window};
use super::missed_tokens::promised_permille;
use super::reason::{Level, Reason};
use super::{hangs, missed_tokens};
use crate::shortages::Shortage;

/// Maximum number of moves shown.
const SHOWN_MOVES: usize = 5;

/// Everything that explains the state, the most important first.
pub fn explain(state: &State, now_unix_ms: u64) -> Vec<String> {
    let mut lines = vec![headline(state, now_unix_ms)];
    lines.extend(reasons(state, now_unix_ms, None).into_iter().map(|reason| format!("  {}", reason.text)));
    lines.extend(move_lines(state, now_unix_ms));
    lines
}

/// Returns the part between the headline and the moves, the most important reason first. `shortage` covers the last
/// minutes; `None` = unknown, and the counters since the start are used.
pub fn reasons(state: &State, now_unix_ms: u64, shortage: Option<Shortage>) -> Vec<Reason> {
    let mut all = hang_reasons(state, now_unix_ms);
    all.extend(missed_tokens::sleep_reason(state));
    all.extend(wait_reason(state));
    all.extend(time_slice_reasons(state));
    all.extend(objective_reasons(state));
    let rest = [
        ("cause", layer_lines(state)),
        ("memory", peer_lines(state)),
        ("cause", request_lines(state, shortage)),
    ];
    let rest = rest.into_iter().chain([("engine", engine_lines(state))]);
    let reason = |kind| move |text| Reason::new(Level::Fine, kind, text);
    all.extend(rest.flat_map(|(kind, lines)| lines.into_iter().map(reason(kind))));
    all
}

/// How much it matters what the tenant does.
pub const fn phase_level(phase: Phase) -> Level {
    match phase {
        Phase::Failed | Phase::EngineLost => Level::Bad,
        Phase::Loading | Phase::Waking | Phase::Draining => Level::Watch,
        Phase::Active | Phase::Idle | Phase::Hibernated => Level::Fine,
    }
}

/// What the tenant does, since when, and by which policy.
pub fn headline(state: &State, now_unix_ms: u64) -> String {
    let tenant = &state.tenant;
    // A tenant counts as active for a while after its last request, and before its first one.
    let quiet = state.idle_since_unix_ms.filter(|_| state.phase == Phase::Active);
    let since = age(now_unix_ms.saturating_sub(quiet.unwrap_or(0).max(state.phase_since_unix_ms)));
    let doing = match state.phase {
        Phase::Loading => "is loading its weights, or waits for its engine".to_owned(),
        Phase::Active if quiet.is_some() => "is ready and has no requests".to_owned(),
        Phase::Active => "serves requests".to_owned(),
        Phase::Idle => "has no requests; it may lend its layers to peers".to_owned(),
        Phase::Hibernated if state.sleep_ordered => {
            "was put to sleep by hand and holds no device memory".to_owned()
        }
        Phase::Hibernated => "is hibernated: it holds no device memory; the next request wakes it".to_owned(),
        Phase::Waking => "wakes: it gets its memory back and loads its weights".to_owned(),
        Phase::EngineLost => {
            "has lost its engine; requests are held until a new engine has attached".to_owned()
        }
        Phase::Draining => "ends its open streams and takes no new request".to_owned(),
        Phase::Failed => match &state.engine.failure {
            Some(why) => format!("cannot serve: {why}"),
            None => "cannot serve".to_owned(),
        },
    };
    format!(
        "{}/{} on {} {doing}; since {since}. Policy {}.",
        tenant.namespace, tenant.name, tenant.gpu, state.policy
    )
}

/// Returns current and past hangs: of its own engine, or of a holder of the time slice.
fn hang_reasons(state: &State, now_unix_ms: u64) -> Vec<Reason> {
    let hang = state.engine.last_hang.as_ref();
    let level = match hang {
        Some(hang) if hang.alive => Level::Bad,
        Some(hang) if now_unix_ms.saturating_sub(hang.at_unix_ms) < HANG_REPORTED_MS => Level::Watch,
        _ => Level::Fine,
    };
    let engine = hangs::engine_hang_text(state, now_unix_ms).map(|said| (level, "hang", said));
    let sidecar = hangs::sidecar_hang_text(state, now_unix_ms).map(|said| (Level::Watch, "sidecar", said));
    let own = [engine, sidecar].into_iter().flatten();
    let own = own.map(|(level, kind, said)| Reason::new(level, kind, format!("Its {said}.")));
    let took = hangs::takeover_text(state, now_unix_ms).map(|said| (Level::Watch, said));
    let skipped = hangs::skip_text(state, now_unix_ms).map(|said| (Level::Watch, said));
    let overtaken = hangs::overtaken_text(state).map(|said| (Level::Fine, said));
    let slice = [took, skipped, overtaken].into_iter().flatten();
    let slice = slice.map(|(level, said)| Reason::new(level, "takeover", format!("It {said}.")));
    own.chain(slice).collect()
}

/// Returns the holder of the time slice that a tenant with requests waits for, and its waiting times.
fn time_slice_reasons(state: &State) -> Vec<Reason> {
    let Some(slice) = hangs::time_slice(state) else { return Vec::new() };
    let busy = state.queue.waiting + state.queue.running > 0;
    let waits = hangs::other_holder(state).filter(|_| busy).map(|(holder, overdue_ms)| match overdue_ms {
        0 => Reason::new(
            Level::Fine,
            "time_slice",
            format!("It waits for the time slice, which {holder} holds."),
        ),
        _ => Reason::new(
            Level::Bad,
            "time_slice",
            format!(
                "It waits for the time slice, which {holder} holds and is {overdue_ms} ms past its deadline."
            ),
        ),
    });
    let wait = &slice.wait;
    let cost = (wait.samples > 0).then(|| {
        let (half, most) = (duration(wait.p50_ns), duration(wait.p99_ns));
        let text = format!("Since the start it waited {half} for a time slice in the median, P99 {most}.");
        Reason::new(Level::Fine, "time_slice", text)
    });
    waits.into_iter().chain(cost).collect()
}

fn wait_reason(state: &State) -> Option<Reason> {
    let what = state.peers.as_ref()?.waits_for.as_ref()?;
    Some(Reason::new(Level::Watch, "wait", format!("It waits for {what}.")))
}

/// Whether tokens come in time, by the objective that is missed.
fn objective_reasons(state: &State) -> Vec<Reason> {
    let (slo, figures) = (&state.slo, &state.figures);
    let [first, next] = limits(slo);
    let first = objective("First token", slo, slo.ttft_attained_permille, &first, &figures.ttft);
    let next =
        objective("Time between tokens", slo, slo.tbt_attained_permille, &next, &figures.delivered_tbt);
    let overdue = [overdue_text(slo.ttft_overdue, "first"), overdue_text(slo.tbt_overdue, "next")];
    let overdue = overdue.into_iter().flatten().map(|text| Reason::new(Level::Watch, "overdue", text));
    let engine = slow_engine_text(state).map(|text| Reason::new(Level::Watch, "cause", text));
    first
        .into_iter()
        .chain(next)
        .chain(missed_tokens::token_reasons(state))
        .chain(overdue)
        .chain(engine)
        .collect()
}

/// Whether an objective is missed.
fn has_missed_objective(slo: &SloState) -> bool {
    let missed = |attained: Option<u32>| attained.is_some_and(|attained| attained < promised_permille(slo));
    missed(slo.ttft_attained_permille) || missed(slo.tbt_attained_permille)
}

/// An engine that makes tokens more slowly than the objective asks for: no pace and no memory helps.
fn slow_engine_text(state: &State) -> Option<String> {
    let (slo, made) = (&state.slo, &state.figures.engine_tbt);
    let slow = has_missed_objective(slo) && made.samples > 0 && made.p50_ns > slo.tbt_target_ns;
    slow.then(|| {
        let (made, target) = (duration(made.p50_ns), duration(slo.tbt_target_ns));
        format!(
            "Its engine makes a token every {made} (median) with {} requests at once; the objective is {target}.",
            state.queue.running
        )
    })
}

/// Answers that a client waits for at this moment, beyond the objective.
fn overdue_text(answers: u32, which: &str) -> Option<String> {
    match answers {
        0 => None,
        1 => Some(format!("Overdue now: the {which} token of 1 answer. It counts as missed.")),
        _ => Some(format!("Overdue now: the {which} tokens of {answers} answers. They count as missed.")),
    }
}

/// The share is over the window of the objectives, the percentile over another one: each says which.
/// Within which a first and a later token are in time.
pub fn limits(slo: &SloState) -> [String; 2] {
    let tbt = duration(slo.tbt_target_ns);
    [duration(slo.ttft_target_ns), format!("{tbt} + {TBT_TOLERANCE_PERCENT} %")]
}

fn objective(
    what: &str,
    slo: &SloState,
    attained: Option<u32>,
    limit: &str,
    recent: &Percentiles,
) -> Option<Reason> {
    let attained = attained?;
    let promised = promised_permille(slo);
    let (level, verdict) = if attained < promised { (Level::Bad, "MISSED") } else { (Level::Fine, "met") };
    let (share, window) = (percent(Some(attained)), slo.window_seconds);
    let p99 = match recent.samples {
        0 => String::new(),
        _ => format!("; P99 of the last minute {}", duration(recent.p99_ns)),
    };
    let promised = percent(Some(promised));
    let text = format!(
        "{what}: {verdict}, {share} within {limit} over the last {window} s ({promised} promised){p99}."
    );
    Some(Reason::new(level, "objective", text))
}

/// The reason of a decision against taking layers: they would be waited for.
const DECLINED_STALL: &str = "declined_stall";

fn layer_lines(state: &State) -> Vec<String> {
    let remap = &state.remap;
    if remap.alpha == 0 {
        return declined_text(state).into_iter().collect();
    }
    let mut text = format!(
        "{} of {} layers gave their memory to KV (at most {}); {} layers are copied through {} slot{} for every step",
        remap.alpha,
        state.layers.len(),
        remap.cap_layers,
        remap.moving_layers.len(),
        remap.beta,
        if remap.beta == 1 { "" } else { "s" },
    );
    if let (Some(copy), Some(compute)) = (state.figures.t_transfer_ns, state.figures.t_compute_ns) {
        text += &format!(": a layer takes {} to copy and {} to compute", duration(copy), duration(compute));
    }
    vec![text + "."]
}

/// Why none is away although KV is short.
fn declined_text(state: &State) -> Option<String> {
    let figures = &state.figures;
    // Lent ones have another story.
    if state.activity.lent_layers > 0 {
        return None;
    }
    let times = figures.moves_total.iter().find(|event| event.reason == DECLINED_STALL)?.count;
    let (copy, compute) = (duration(figures.t_transfer_ns?), duration(figures.t_compute_ns?));
    let word = if times == 1 { "time" } else { "times" };
    Some(format!(
        "Although KV was short, no layer and no KV was moved {times} {word} since the start, because steps \
         would have waited for copies. A layer now takes {copy} to copy and {compute} to compute."
    ))
}

fn peer_lines(state: &State) -> Vec<String> {
    let Some(own) = &state.peers else { return Vec::new() };
    let mut lines = Vec::new();
    if own.lent_bytes > 0 {
        lines.push(format!("Lent: {} to {}.", bytes(own.lent_bytes), loan_partners(own, Direction::Lent)));
    }
    if own.borrowed_bytes > 0 {
        lines.push(format!(
            "Borrowed: {} from {}.",
            bytes(own.borrowed_bytes),
            loan_partners(own, Direction::Borrowed)
        ));
    }
    let (share, floor) = (bytes(own.share_bytes), bytes(own.floor_bytes));
    lines.push(format!("Its share of the GPU is {share}; it never lends {floor} of it while it is awake."));
    lines.extend(share_text(own));
    lines
}

/// What of its share is on its way. A sidecar from before there was such a thing says 0.
fn share_text(own: &SharingState) -> Option<String> {
    let (wanted, share) = (own.wanted_share_bytes, own.share_bytes);
    let missing = wanted.saturating_sub(share);
    if missing > 0 {
        let (wanted, missing) = (bytes(wanted), bytes(missing));
        return Some(format!("Its share will grow to {wanted} (+{missing}) as its peers release memory."));
    }
    let over = share.saturating_sub(wanted);
    let (wanted_text, over_text) = (bytes(wanted), bytes(over));
    (wanted > 0 && over > 0).then(|| {
        format!("Its share will shrink to {wanted_text} (-{over_text}) as it releases memory for its peers.")
    })
}

fn loan_partners(own: &SharingState, direction: Direction) -> String {
    let mut names: Vec<&str> = own
        .grants
        .iter()
        .filter(|grant| grant.direction == direction)
        .map(|grant| grant.name.as_str())
        .collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

fn request_lines(state: &State, shortage: Option<Shortage>) -> Vec<String> {
    let (queue, kv) = (&state.queue, &state.kv);
    let mut lines = Vec::new();
    if queue.waiting > 0 || (queue.running > 0 && has_missed_objective(&state.slo)) {
        let (waiting, running) = (queue.waiting, queue.running);
        let full = percent(Some(kv.utilisation_permille));
        let wait = if waiting == 1 { "request waits" } else { "requests wait" };
        lines.push(format!("{waiting} {wait}, {running} running; {full} of the KV cache is used."));
    }
    lines.extend(kv_shortage_text(state, shortage));
    lines.extend(host_tier_text(state));
    lines
}

fn kv_shortage_text(state: &State, shortage: Option<Shortage>) -> Option<String> {
    let figures = &state.figures;
    let (window, count, tokens) = shortage.map_or_else(
        || ("since the start".into(), figures.preemptions_total, figures.recomputed_tokens_total),
        |one| (format!("in the last {}", window(one.window_ms)), one.preemptions, one.recomputed_tokens),
    );
    let times = if count == 1 { "time" } else { "times" };
    let again = match tokens {
        0 => String::new(),
        1 => ": 1 token was computed again".to_owned(),
        _ => format!(": {tokens} tokens were computed again"),
    };
    (count > 0).then(|| format!("KV ran short {count} {times} {window}{again}."))
}

/// What is in the host tier, and what it cost.
fn host_tier_text(state: &State) -> Option<String> {
    let (kv, figures) = (&state.kv, &state.figures);
    let size = |blocks: u64| bytes(blocks.saturating_mul(kv.layer_block_bytes));
    let used = figures.pauses_total + figures.kv_stall_ns_total + kv.host_layer_blocks_used > 0;
    (used && kv.host_layer_blocks_limit > 0).then(|| {
        format!(
            "KV in host memory: {} of {}; since the start {} requests were paused with their KV, and steps \
             waited {} for KV.",
            size(kv.host_layer_blocks_used),
            size(kv.host_layer_blocks_limit),
            figures.pauses_total,
            duration(figures.kv_stall_ns_total),
        )
    })
}

fn engine_lines(state: &State) -> Vec<String> {
    let lost = state.engine.restarts;
    let times = if lost == 1 { "time" } else { "times" };
    (lost > 0).then(|| format!("The engine was lost {lost} {times} since the start.")).into_iter().collect()
}

fn move_lines(state: &State, now_unix_ms: u64) -> Vec<String> {
    let last: Vec<_> = moved_memory(state).rev().take(SHOWN_MOVES).collect();
    if last.is_empty() {
        return Vec::new();
    }
    let lines = last.into_iter().rev().map(|moved| {
        let ago = age(now_unix_ms.saturating_sub(moved.at_unix_ms));
        let parts = [move_text(moved), moved_bytes(moved)].into_iter().filter(|part| !part.is_empty());
        format!("    {ago} ago: {} {}", moved.reason, parts.collect::<Vec<_>>().join(", "))
    });
    std::iter::once("  Last moves of memory:".to_owned()).chain(lines).collect()
}

#[cfg(test)]
mod tests;
