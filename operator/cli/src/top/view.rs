//! Renders readings as text: the output of `--once`, and the figures of a tenant's page.

mod detail;
mod gpu;
mod render_context;
mod table;
mod wrap;

use ratatui::text::Line;
use sluice_wire::State;

pub use self::detail::figures;
use self::gpu::GpuTenants;
pub use self::render_context::RenderContext;
use self::wrap::{fitting, wrap_fragments};
use super::memory_map::{CellOwner, MemoryMap, owners};
use sluice_page::text::formatting::bytes;

/// Most rows of one map.
const MAX_MAP_ROWS: usize = 6;

/// Renders all tenants without a height limit.
pub fn text(view: &RenderContext, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![header(view)];
    if view.polls.is_empty() {
        return lines;
    }
    let gpus = GpuTenants::group_by_gpu(view);
    lines.extend(gpus.iter().flat_map(|gpu| gpu_maps(view, gpu, width)));
    lines.extend(legend(view, width));
    lines.extend(table::table(view, width));
    for sighting in view.polls {
        lines.push(Line::default());
        lines.extend(detail::detail(view, sighting, width));
        lines.extend(detail::moves(view, sighting, width));
    }
    lines
}

/// Renders the maps of the tenants of a GPU, below their common heading.
fn gpu_maps(view: &RenderContext, gpu: &GpuTenants, width: usize) -> Vec<Line<'static>> {
    let heading = if gpu.is_shared() { gpu.heading(view, width) } else { Vec::new() };
    let tenants = gpu.tenants.iter();
    let maps = tenants.flat_map(|(title, state)| map(view, gpu, title, state, width, MAX_MAP_ROWS));
    heading.into_iter().chain(maps).collect()
}

fn header(view: &RenderContext) -> Line<'static> {
    let all = view.polls.len();
    let silent = all - view.answered().count();
    let mut text = format!("   {all} tenant{}", if all == 1 { "" } else { "s" });
    if all == 0 {
        text = format!("   {}", view.empty_text);
    }
    if silent > 0 {
        text += &format!(", {silent} without an answer");
    }
    Line::from(vec![RenderContext::bold("sluice top"), text.into()])
}

fn legend(view: &RenderContext, width: usize) -> Vec<Line<'static>> {
    let present =
        |owner: CellOwner| view.answered().any(|(_, s)| owners(s).iter().any(|o| o.0 == owner && o.1 > 0));
    let rare = [CellOwner::Overhead, CellOwner::Staging, CellOwner::Earmarked];
    let every = owners(&State::default()).map(|(owner, _)| owner);
    let shown = every.into_iter().filter(|owner| !rare.contains(owner) || present(*owner));
    let phrases =
        shown.map(|owner| vec![view.owner(owner, owner.letter()), format!(" {}", owner.name()).into()]);
    wrap_fragments("", phrases, 2, width)
}

/// Renders one tenant's memory: a heading and at most `rows` rows of cells.
fn map(
    view: &RenderContext,
    gpu: &GpuTenants,
    title: &str,
    state: &State,
    width: usize,
    rows: usize,
) -> Vec<Line<'static>> {
    let map = MemoryMap::from_state(state, width * rows);
    let chunk = bytes(state.memory.chunk_bytes);
    let cell = match map.chunks_per_cell {
        1 => format!("a cell is one chunk of {chunk}"),
        many => format!("a cell is {many} chunks of {chunk}"),
    };
    let balance = if state.memory.balances() { "" } else { "DOES NOT BALANCE   " };
    let mut lines = match gpu.is_shared() {
        true => gpu::tenant(title, state, balance, &cell, width),
        false => vec![exclusive_heading(title, state, balance, &cell, width)],
    };
    lines.extend(map.cells.chunks(width.max(1)).map(|row| cells(view, row)));
    lines
}

/// Returns the heading of a tenant that has a GPU to itself.
fn exclusive_heading(title: &str, state: &State, balance: &str, cell: &str, width: usize) -> Line<'static> {
    let (gpu, capacity) = (format!("GPU {}", state.tenant.gpu), bytes(state.memory.capacity_bytes));
    let brief = format!("   {balance}{capacity}");
    let texts = [format!("   {title}{brief}, {cell}"), format!("   {title}{brief}"), brief];
    let text = fitting(width.saturating_sub(gpu.chars().count()), texts);
    Line::from(vec![RenderContext::bold(gpu), text.into()])
}

fn cells(view: &RenderContext, row: &[CellOwner]) -> Line<'static> {
    let runs = row.chunk_by(|a, b| a == b);
    let run = |run: &[CellOwner]| view.owner(run[0], run[0].letter().to_string().repeat(run.len()));
    Line::from(runs.map(run).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests;
