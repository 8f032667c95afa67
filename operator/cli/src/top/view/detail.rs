//! Renders one tenant in full: its memory by owner, layers, figures and last moves.

use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use sluice_wire::State;
use sluice_wire::state::{Move, Residency, TokenCounts};

use super::super::SidecarPoll;
use super::super::memory_map::owners;
use super::wrap::{Fragment, fitting, plain_fragment, wrap_fragments};
use super::{RenderContext, gpu};
use sluice_page::text::formatting::{
    age, bytes, duration, move_text, moved_bytes, moved_memory, percent, percentiles,
};
use sluice_page::text::{hangs, missed_tokens};

/// Width of the labels on the left.
const LABEL_COLUMNS: usize = 9;
/// Most rows of layers.
const MAX_LAYER_ROWS: usize = 4;

/// Renders all but the moves.
pub fn detail(view: &RenderContext, sighting: &SidecarPoll, width: usize) -> Vec<Line<'static>> {
    let state = match &sighting.state {
        Ok(state) => state,
        Err(problem) => {
            let words = format!("{}: {problem}", sighting.title);
            return wrap_fragments(&label("problem"), words.split(' ').map(plain_fragment), 1, width);
        }
    };
    let mut lines = tenant(view, &sighting.title, state, width);
    if let Some(failure) = &state.engine.failure {
        let red = |word: &str| vec![Span::styled(word.to_owned(), view.style(Color::Red))];
        lines.extend(wrap_fragments(&label("failure"), failure.split(' ').map(red), 1, width));
    }
    lines.extend(hang(view, state, width));
    lines.extend(rows(view, state, latency(state), width));
    lines
}

/// Renders memory by owner, layers, counters and percentiles, below the objectives, which include the shares of
/// tokens
/// in time.
pub fn figures(view: &RenderContext, state: &State, width: usize) -> Vec<Line<'static>> {
    rows(view, state, percentile_texts(state, "", ""), width)
}

fn rows(view: &RenderContext, state: &State, latency: Vec<String>, width: usize) -> Vec<Line<'static>> {
    let mut lines = wrap_fragments(&label("memory"), memory(view, state), 2, width);
    lines.extend(peer_lines(state, width));
    lines.extend(layers(view, state, width));
    for (name, phrases) in
        [("kv", kv(state)), ("latency", latency), ("work", work(state)), ("link", link(state))]
    {
        lines.extend(wrap_fragments(&label(name), phrases.into_iter().map(plain_fragment), 2, width));
    }
    lines
}

/// Renders hangs of the past and of the present, the latter in red.
fn hang(view: &RenderContext, state: &State, width: usize) -> Vec<Line<'static>> {
    let now = view.now_unix_ms;
    let colour = if hangs::is_engine_hung(state) { Some(Color::Red) } else { None };
    let engine = hangs::engine_hang_text(state, now).map(|said| (said, colour));
    let late = hangs::other_holder(state).filter(|(_, overdue_ms)| *overdue_ms > 0);
    let late = late.map(|(holder, overdue_ms)| {
        (format!("{holder} holds the time slice and is {overdue_ms} ms past its deadline"), Some(Color::Red))
    });
    let past = [
        hangs::sidecar_hang_text(state, now),
        hangs::takeover_text(state, now),
        hangs::skip_text(state, now),
        hangs::overtaken_text(state),
    ];
    let past = past.map(|said| Some((said?, None)));
    let all = [engine, late].into_iter().chain(past).flatten();
    let lines = all.flat_map(|(said, colour)| {
        let word = |word: &str| {
            vec![Span::styled(
                word.to_owned(),
                colour.map_or_else(Style::default, |colour| view.style(colour)),
            )]
        };
        wrap_fragments(&label("hang"), said.split(' ').map(word), 1, width)
    });
    lines.collect()
}

fn label(name: &str) -> String {
    format!("{name:<LABEL_COLUMNS$}")
}

fn tenant(view: &RenderContext, title: &str, state: &State, width: usize) -> Vec<Line<'static>> {
    let since = age(view.now_unix_ms.saturating_sub(state.phase_since_unix_ms));
    let phase = match missed_tokens::is_manually_suspended(state) {
        true => "Asleep by hand".to_owned(),
        false => format!("{:?}", state.phase),
    };
    let engine = state.engine.pid.map_or("no engine".into(), |pid| format!("engine pid {pid}"));
    let phrases = [
        vec![RenderContext::bold(title)],
        plain_fragment(format!("{phase} for {since}")),
        plain_fragment(format!("policy {}", state.policy)),
        plain_fragment(format!("{engine}, {} lost", state.engine.restarts)),
    ];
    wrap_fragments("", phrases, 3, width)
}

fn memory<'a>(view: &'a RenderContext, state: &State) -> impl Iterator<Item = Fragment> + 'a {
    let present = owners(state).into_iter().filter(|(_, held)| *held > 0);
    present.map(|(owner, held)| vec![view.owner(owner, owner.letter()), format!(" {}", bytes(held)).into()])
}

/// Returns its memory limits and its time slices, if it has peers.
fn peer_lines(state: &State, width: usize) -> Vec<Line<'static>> {
    let Some(own) = &state.peers else { return Vec::new() };
    let rows = [("budget", gpu::budget_fragments(own)), ("slice", gpu::slice_fragments(own))];
    let rows = rows.into_iter().filter(|(_, phrases)| !phrases.is_empty());
    rows.flat_map(|(name, phrases)| {
        wrap_fragments(&label(name), phrases.into_iter().map(plain_fragment), 2, width)
    })
    .collect()
}

/// Renders the layers, front first: R = resident, the slot's number = moving, `.` = loading.
fn layers(view: &RenderContext, state: &State, width: usize) -> Vec<Line<'static>> {
    let strip: Vec<_> = state.layers.iter().map(|layer| cell(view, *layer)).collect();
    let rows = strip.chunks(width.saturating_sub(LABEL_COLUMNS).max(1)).take(MAX_LAYER_ROWS).enumerate();
    let line = |(i, row): (usize, &[Span<'static>])| {
        let mut line = Line::from(label(if i == 0 { "layers" } else { "" }));
        line.extend(row.to_vec());
        line
    };
    rows.map(line).collect()
}

fn cell(view: &RenderContext, layer: Residency) -> Span<'static> {
    match layer {
        Residency::Loading => Span::styled(".", view.style(Color::DarkGray)),
        Residency::Resident => Span::styled("R", view.style(Color::Blue)),
        Residency::Moving { slot } => Span::styled(slot.to_string(), view.style(Color::Cyan)),
    }
}

fn kv(state: &State) -> Vec<String> {
    let kv = &state.kv;
    let mut phrases = vec![
        format!("{} used", kv.layer_blocks_used),
        format!("{} cached", kv.layer_blocks_cached),
        format!("{} free", kv.layer_blocks_free),
        format!("of {} blocks of {}", kv.layer_blocks_total, bytes(kv.layer_block_bytes)),
    ];
    if kv.host_layer_blocks_limit > 0 {
        phrases.push(format!("host {} of {}", kv.host_layer_blocks_used, kv.host_layer_blocks_limit));
    }
    // The few blocks of an idle tenant outside its prefix cache may all count as scattered.
    if kv.layer_blocks_used > 0 {
        phrases.push(format!("fragmented {}", percent(Some(kv.fragmentation_permille))));
    }
    phrases
}

/// Formats percentiles, followed by `first` and `later`, the texts about first and later tokens.
fn percentile_texts(state: &State, first: &str, later: &str) -> Vec<String> {
    let figures = &state.figures;
    let (engine, out) = (percentiles(&figures.engine_tbt), percentiles(&figures.delivered_tbt));
    vec![
        format!("p50/p99 ms: TBT engine {engine}, out {out}{later}"),
        format!("TTFT {}{first}", percentiles(&figures.ttft)),
    ]
}

/// Formats the share of tokens in time, and the number of tokens that never arrived.
fn attainment(attained_permille: Option<u32>, counts: &TokenCounts) -> String {
    let never = if counts.given_up > 0 { format!(", {} given up", counts.given_up) } else { String::new() };
    format!(" ({} met{never})", percent(attained_permille))
}

fn latency(state: &State) -> Vec<String> {
    let slo = &state.slo;
    let first = attainment(slo.ttft_attained_permille, &slo.ttft_window);
    let later = attainment(slo.tbt_attained_permille, &slo.tbt_window);
    let mut phrases = percentile_texts(state, &first, &later);
    let overdue = slo.ttft_overdue.saturating_add(slo.tbt_overdue);
    if overdue > 0 {
        phrases.push(format!("{overdue} OVERDUE"));
    }
    phrases
}

fn work(state: &State) -> Vec<String> {
    let (figures, streams) = (&state.figures, &state.streams);
    let mut phrases = vec![
        format!("{} preempted", figures.preemptions_total),
        format!("{} recomputed", figures.recomputed_tokens_total),
        format!("{} steps", figures.steps_total),
        format!("deposit {} in {} streams", streams.deposit_tokens, streams.open),
    ];
    if figures.pauses_total > 0 {
        phrases.insert(1, format!("{} paused", figures.pauses_total));
    }
    if figures.kv_stall_ns_total > 0 {
        phrases.push(format!("waited {} for KV", duration(figures.kv_stall_ns_total)));
    }
    phrases
}

fn link(state: &State) -> Vec<String> {
    let figures = &state.figures;
    let time = |ns: Option<u64>| ns.map_or("- ms".into(), duration);
    let (copy, compute) = (time(figures.t_transfer_ns), time(figures.t_compute_ns));
    let r = figures.r_permille.map_or("-".into(), |r| format!("{:.1}", r as f64 / 1e3));
    vec![
        figures.link_bytes_per_second.map_or("-".into(), |rate| format!("{}/s", bytes(rate))),
        format!("{} copied", bytes(figures.copied_bytes_total)),
        format!("a layer takes {copy} to copy, {compute} to compute, r {r}"),
    ]
}

/// Renders the last moves, newest first.
pub fn moves(view: &RenderContext, sighting: &SidecarPoll, width: usize) -> Vec<Line<'static>> {
    let Ok(state) = &sighting.state else { return Vec::new() };
    let mut lines = vec![Line::from(RenderContext::bold("moves"))];
    lines.extend(moved_memory(state).rev().map(|event| move_line(view, event, width)));
    if lines.len() == 1 {
        lines.push(Line::from("  none yet"));
    }
    lines
}

/// Counts layers, then omits the detail, if the whole line does not fit.
fn move_line(view: &RenderContext, event: &Move, width: usize) -> Line<'static> {
    let ago = format!("  {:>5} ago  ", age(view.now_unix_ms.saturating_sub(event.at_unix_ms)));
    let reason = format!("{:<14}", event.reason);
    let size = format!(" {:>8}", moved_bytes(event));
    let each: Vec<_> = event.layers.iter().map(ToString::to_string).collect();
    let (each, count) = match each.len() {
        0 => (String::new(), String::new()),
        1 => (format!("  layers {}", each[0]), "  1 layer".to_owned()),
        many => (format!("  layers {}", each.join(",")), format!("  {many} layers")),
    };
    let detail = move_text(event);
    let full = [
        format!("{size}{each}  {detail}"),
        format!("{size}{count}  {detail}"),
        format!("{size}{count}"),
        size,
    ];
    let rest = fitting(width.saturating_sub(ago.chars().count() + reason.chars().count()), full);
    Line::from(vec![ago.into(), Span::styled(reason, view.style(Color::Yellow)), rest.into()])
}
