//! One tenant in full: its memory by owner, its layers, its figures, its last moves.

use ratatui::style::Color;
use ratatui::text::{Line, Span};
use sluice_wire::State;
use sluice_wire::state::{Move, Residency};

use super::super::Sighting;
use super::super::figures::{age, bytes, milliseconds, percent, percentiles};
use super::super::map::owners;
use super::View;

/// Width of the labels on the left.
const LABEL: usize = 9;
/// Most rows of layers.
const LAYER_ROWS: usize = 4;

/// All but the moves.
pub fn detail(view: &View, sighting: &Sighting, width: usize) -> Vec<Line<'static>> {
    let state = match &sighting.state {
        Ok(state) => state,
        Err(problem) => {
            return vec![labelled("problem", vec![format!("{}: {problem}", sighting.title).into()])];
        }
    };
    let mut lines = vec![tenant(view, &sighting.title, state)];
    if let Some(failure) = &state.engine.failure {
        let text = Span::styled(failure.clone(), view.style(Color::Red));
        lines.push(labelled("failure", vec![text]));
    }
    lines.push(memory(view, state));
    lines.extend(layers(view, state, width));
    lines.push(labelled("kv", vec![kv(state).into()]));
    lines.push(labelled("latency", vec![latency(state).into()]));
    lines.push(labelled("work", vec![work(state).into()]));
    lines.push(labelled("link", vec![link(state).into()]));
    lines
}

fn labelled(label: &str, spans: Vec<Span<'static>>) -> Line<'static> {
    let mut line = Line::from(format!("{label:<LABEL$}"));
    line.extend(spans);
    line
}

fn tenant(view: &View, title: &str, state: &State) -> Line<'static> {
    let since = age(view.now_unix_ms.saturating_sub(state.phase_since_unix_ms));
    let engine = state.engine.pid.map_or("no engine".into(), |pid| format!("engine pid {pid}"));
    let lost = state.engine.restarts;
    let text = format!("   {:?} for {since}   policy {}   {engine}, {lost} lost", state.phase, state.policy);
    Line::from(vec![View::bold(title), text.into()])
}

fn memory(view: &View, state: &State) -> Line<'static> {
    let present = owners(state).into_iter().filter(|(_, held)| *held > 0);
    let each = present
        .flat_map(|(owner, held)| [view.owner(owner, owner.letter()), format!(" {}  ", bytes(held)).into()]);
    labelled("memory", each.collect())
}

/// R resident, the slot's number for a layer that moves, `.` while it loads. Front first.
fn layers(view: &View, state: &State, width: usize) -> Vec<Line<'static>> {
    let strip: Vec<_> = state.layers.iter().map(|layer| cell(view, *layer)).collect();
    let rows = strip.chunks(width.saturating_sub(LABEL).max(1)).take(LAYER_ROWS).enumerate();
    rows.map(|(i, row)| labelled(if i == 0 { "layers" } else { "" }, row.to_vec())).collect()
}

fn cell(view: &View, layer: Residency) -> Span<'static> {
    match layer {
        Residency::Loading => Span::styled(".", view.style(Color::DarkGray)),
        Residency::Resident => Span::styled("R", view.style(Color::Blue)),
        Residency::Moving { slot } => Span::styled(slot.to_string(), view.style(Color::Cyan)),
    }
}

fn kv(state: &State) -> String {
    let kv = &state.kv;
    format!(
        "{} used  {} cached  {} free  of {} blocks of {}   fragmented {}",
        kv.blocks_used,
        kv.blocks_cached,
        kv.blocks_free,
        kv.blocks_total,
        bytes(kv.block_bytes),
        percent(Some(kv.fragmentation_permille)),
    )
}

fn latency(state: &State) -> String {
    let (figures, slo) = (&state.figures, &state.slo);
    format!(
        "p50/p99 ms: TBT engine {}, out {} ({} met)  TTFT {} ({} met)",
        percentiles(&figures.engine_tbt),
        percentiles(&figures.delivered_tbt),
        percent(slo.tbt_attained_permille),
        percentiles(&figures.ttft),
        percent(slo.ttft_attained_permille),
    )
}

fn work(state: &State) -> String {
    let figures = &state.figures;
    format!(
        "{} preempted  {} recomputed  {} steps  deposit {} in {} streams",
        figures.preemptions_total,
        figures.recomputed_tokens_total,
        figures.steps_total,
        state.streams.deposit_tokens,
        state.streams.open,
    )
}

fn link(state: &State) -> String {
    let figures = &state.figures;
    let ms = |ns: Option<u64>| ns.map_or("-".into(), milliseconds);
    let bandwidth = figures.link_bytes_per_second.map_or("-".into(), |rate| format!("{}/s", bytes(rate)));
    let r = figures.r_permille.map_or("-".into(), |r| format!("{:.1}", r as f64 / 1e3));
    format!(
        "{bandwidth}  {} copied  a layer takes {} ms to copy, {} ms to compute, r {r}",
        bytes(figures.copied_bytes_total),
        ms(figures.t_transfer_ns),
        ms(figures.t_compute_ns),
    )
}

/// The last moves, newest first, in at most `height` lines with the heading.
pub fn moves(view: &View, sighting: &Sighting, height: usize) -> Vec<Line<'static>> {
    let Some(state) = sighting.state.as_ref().ok().filter(|_| height > 1) else { return Vec::new() };
    let mut lines = vec![Line::from(View::bold("moves"))];
    if state.moves.is_empty() {
        lines.push(Line::from("  none yet"));
    }
    lines.extend(state.moves.iter().rev().take(height - 1).map(|event| moved(view, event)));
    lines
}

fn moved(view: &View, event: &Move) -> Line<'static> {
    let ago = age(view.now_unix_ms.saturating_sub(event.at_unix_ms));
    let layers: Vec<_> = event.layers.iter().map(ToString::to_string).collect();
    let layers = if layers.is_empty() { String::new() } else { format!("  layers {}", layers.join(",")) };
    Line::from(vec![
        format!("  {ago:>5} ago  ").into(),
        Span::styled(format!("{:<14}", event.reason), view.style(Color::Yellow)),
        format!(" {:>7}{layers}  {}", bytes(event.bytes), event.detail).into(),
    ])
}
