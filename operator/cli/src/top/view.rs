//! Sightings as lines of text: pure, the same for the live screen and for `--once`.

mod detail;
mod flow;
mod gpu;
mod table;

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use sluice_wire::State;

use self::flow::{fitting, flow};
use self::gpu::Gpu;
use super::Sighting;
use super::map::{Map, Owner, owners};
use sluice_page::words::figures::bytes;

/// What to show.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// All sidecars.
    pub sightings: &'a [Sighting],
    /// The one whose details the screen shows; beyond the last = none.
    pub selected: usize,
    /// Whether to use colours.
    pub colour: bool,
    /// The time, milliseconds since the Unix epoch.
    pub now_unix_ms: u64,
    /// What to say when there is nobody.
    pub nobody: &'static str,
}

/// Most rows of one map.
const MAP_ROWS: usize = 6;
/// Fewest lines left for moves on the screen, with their heading.
const MOVES_MIN: usize = 3;

/// Everything, as high as it gets.
pub fn text(view: &View, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![header(view, "")];
    if view.sightings.is_empty() {
        return lines;
    }
    let gpus = Gpu::all(view);
    lines.extend(gpus.iter().flat_map(|gpu| of_gpu(view, gpu, |_| true, width, MAP_ROWS)));
    lines.extend(legend(view, width));
    lines.extend(table::table(view, width, 0..view.sightings.len()));
    for sighting in view.sightings {
        lines.push(Line::default());
        lines.extend(detail::detail(view, sighting, width));
        lines.extend(detail::moves(view, sighting, width, usize::MAX));
    }
    lines
}

/// As much as fits: the maps and rows around the selected tenant, its details, and its moves below.
pub fn screen(view: &View, width: usize, height: usize) -> Vec<Line<'static>> {
    if view.sightings.is_empty() {
        return vec![header(view, "   q ends")];
    }
    let tenants = around(view.selected, view.sightings.len(), (height / 6).max(1));
    let selected = view.sightings.get(view.selected);
    let detail = selected.map_or(Vec::new(), |s| detail::detail(view, s, width));
    let legend = legend(view, width);
    // Header and the table's heading take a line each.
    let rest = height.saturating_sub(2 + legend.len() + tenants.len() + detail.len() + MOVES_MIN);
    let mut lines = vec![header(view, "   q ends, arrows select")];
    lines.extend(maps(view, width, rest));
    lines.extend(legend);
    lines.extend(table::table(view, width, tenants));
    lines.extend(detail);
    let left = height.saturating_sub(lines.len());
    lines.extend(selected.map_or(Vec::new(), |s| detail::moves(view, s, width, left)));
    lines
}

/// Maps in `height` lines: as many tenants as have room for a row of cells each, the selected one among them.
fn maps(view: &View, width: usize, height: usize) -> Vec<Line<'static>> {
    let gpus = Gpu::all(view);
    let titles: Vec<_> = gpus.iter().flat_map(|gpu| &gpu.tenants).map(|(title, _)| *title).collect();
    let title = view.sightings.get(view.selected).map(|s| s.title.as_str());
    let selected = titles.iter().position(|t| Some(*t) == title).unwrap_or(0);
    let lines = |most: usize, rows: usize| -> Vec<Line<'static>> {
        let shown = &titles[around(selected, titles.len(), most)];
        gpus.iter().flat_map(|gpu| of_gpu(view, gpu, |title| shown.contains(&title), width, rows)).collect()
    };
    let fits = |lines: &Vec<Line<'static>>| lines.len() <= height;
    let most = (2..=titles.len()).rev().find(|most| fits(&lines(*most, 1))).unwrap_or(1);
    let tallest = (2..=MAP_ROWS).rev().map(|rows| lines(most, rows)).find(fits);
    tallest.unwrap_or_else(|| lines(most, 1))
}

/// The maps of those tenants of a GPU that are `shown`, below what they have in common.
fn of_gpu(
    view: &View,
    gpu: &Gpu,
    shown: impl Fn(&str) -> bool,
    width: usize,
    rows: usize,
) -> Vec<Line<'static>> {
    let tenants: Vec<_> = gpu.tenants.iter().filter(|(title, _)| shown(title)).collect();
    let heading = if gpu.shared() && !tenants.is_empty() { gpu.heading(view, width) } else { Vec::new() };
    let maps = tenants.into_iter().flat_map(|(title, state)| map(view, gpu, title, state, width, rows));
    heading.into_iter().chain(maps).collect()
}

/// At most `most` of `len` items with `selected` in view.
fn around(selected: usize, len: usize, most: usize) -> std::ops::Range<usize> {
    let start = selected.saturating_sub(most / 2).min(len.saturating_sub(most));
    start..len.min(start + most)
}

impl<'a> View<'a> {
    fn answered(&self) -> impl Iterator<Item = (&'a str, &'a State)> {
        self.sightings.iter().filter_map(|s| Some((s.title.as_str(), s.state.as_ref().ok()?)))
    }

    fn style(&self, colour: Color) -> Style {
        if self.colour { Style::default().fg(colour) } else { Style::default() }
    }

    fn owner(&self, owner: Owner, text: impl Into<String>) -> Span<'static> {
        Span::styled(text.into(), self.style(owner.colour()))
    }

    fn bold(text: impl Into<String>) -> Span<'static> {
        Span::styled(text.into(), Style::default().add_modifier(Modifier::BOLD))
    }
}

fn header(view: &View, keys: &'static str) -> Line<'static> {
    let all = view.sightings.len();
    let silent = all - view.answered().count();
    let mut text = format!("   {all} tenant{}", if all == 1 { "" } else { "s" });
    if all == 0 {
        text = format!("   {}", view.nobody);
    }
    if silent > 0 {
        text += &format!(", {silent} without an answer");
    }
    Line::from(vec![View::bold("sluice top"), text.into(), keys.into()])
}

fn legend(view: &View, width: usize) -> Vec<Line<'static>> {
    let present =
        |owner: Owner| view.answered().any(|(_, s)| owners(s).iter().any(|o| o.0 == owner && o.1 > 0));
    let rare = [Owner::Overhead, Owner::Staging, Owner::Earmarked];
    let every = owners(&State::default()).map(|(owner, _)| owner);
    let shown = every.into_iter().filter(|owner| !rare.contains(owner) || present(*owner));
    let phrases =
        shown.map(|owner| vec![view.owner(owner, owner.letter()), format!(" {}", owner.name()).into()]);
    flow("", phrases, 2, width)
}

/// One tenant's memory: a heading and at most `rows` rows of cells.
fn map(view: &View, gpu: &Gpu, title: &str, state: &State, width: usize, rows: usize) -> Vec<Line<'static>> {
    let map = Map::of(state, width * rows);
    let chunk = bytes(state.memory.chunk_bytes);
    let cell = match map.chunks_per_cell {
        1 => format!("a cell is one chunk of {chunk}"),
        many => format!("a cell is {many} chunks of {chunk}"),
    };
    let balance = if state.memory.balances() { "" } else { "DOES NOT BALANCE   " };
    let mut lines = match gpu.shared() {
        true => gpu::tenant(title, state, balance, &cell, width),
        false => vec![alone(title, state, balance, &cell, width)],
    };
    lines.extend(map.cells.chunks(width.max(1)).map(|row| cells(view, row)));
    lines
}

/// The heading of a tenant that has a GPU to itself.
fn alone(title: &str, state: &State, balance: &str, cell: &str, width: usize) -> Line<'static> {
    let (gpu, capacity) = (format!("GPU {}", state.tenant.gpu), bytes(state.memory.capacity_bytes));
    let brief = format!("   {balance}{capacity}");
    let texts = [format!("   {title}{brief}, {cell}"), format!("   {title}{brief}"), brief];
    let text = fitting(width.saturating_sub(gpu.chars().count()), texts);
    Line::from(vec![View::bold(gpu), text.into()])
}

fn cells(view: &View, row: &[Owner]) -> Line<'static> {
    let runs = row.chunk_by(|a, b| a == b);
    let run = |run: &[Owner]| view.owner(run[0], run[0].letter().to_string().repeat(run.len()));
    Line::from(runs.map(run).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests;
