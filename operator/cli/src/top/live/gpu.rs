//! Shows a GPU: the owners of its memory, the holder of the time slice, and recent moves.

use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use sluice_page::text::formatting::bytes;
use sluice_page::text::hangs;
use sluice_page::view::{TenantView, states};

use super::model::{GpuEntry, Row, TopModel};
use super::text_layout::{join_fitting, sparkline, time_buckets, truncate, truncate_line, width};
use super::theme::Theme;
use crate::top::memory_map::apportion;

/// Columns of the moved bytes.
const MOVED_COLUMNS: usize = 16;
const FREE_CELL: &str = "·";

/// Returns a heading, the problems of the GPU, and a bar of owners, in lines of at most `most` columns.
pub fn lines(board: &TopModel, gpu: &GpuEntry, theme: Theme, most: usize) -> Vec<Line<'static>> {
    let mut lines = vec![heading(board, gpu, theme, most)];
    let reasons = gpu.view.reasons.iter();
    lines.extend(
        reasons
            .map(|reason| truncate_line(Line::styled(reason.text.clone(), theme.level(reason.level)), most)),
    );
    lines.push(bar(board, gpu, theme, most));
    lines
}

fn heading(board: &TopModel, gpu: &GpuEntry, theme: Theme, most: usize) -> Line<'static> {
    let name = if gpu.view.name.is_empty() { "not known" } else { &gpu.view.name };
    let node = gpu.view.node.as_ref().map(|node| vec![Span::raw(format!("on {node}"))]);
    let size =
        vec![Span::raw(format!("{} of {}", bytes(gpu.view.used_bytes()), bytes(gpu.view.capacity_bytes)))];
    let named = vec![Span::raw("GPU "), Span::styled(name.to_owned(), Theme::bold())];
    let all = [Some(named), Some(size), moved_bytes(board, gpu, theme), gpu_slice(gpu), node];
    join_fitting(all.into_iter().flatten(), 3, most)
}

/// Returns the bytes that changed their owner.
fn moved_bytes(board: &TopModel, gpu: &GpuEntry, theme: Theme) -> Option<Vec<Span<'static>>> {
    let time = board.time_range();
    let moves = || gpu.history().moves().map(|one| (one.at_unix_ms, Some(one.bytes)));
    let all: u64 = moves().filter(|(at, _)| *at >= time.0).filter_map(|(_, bytes)| bytes).sum();
    let values = time_buckets(moves(), time, MOVED_COLUMNS, u64::saturating_add);
    (all > 0).then(|| {
        let mut phrase = vec![Span::raw("moved ")];
        phrase.extend(sparkline(&values, None, theme.muted(), theme.muted()));
        phrase.push(Span::raw(format!(" {}", bytes(all))));
        phrase
    })
}

/// Returns the holder of the time slice and the number of waiters; a late holder is shown among the reasons.
fn gpu_slice(gpu: &GpuEntry) -> Option<Vec<Span<'static>>> {
    let slices = || states(&gpu.reports).filter_map(hangs::time_slice);
    let waiting = slices().map(|slice| slice.waiting).max()?;
    let holder = slices().find_map(|slice| slice.holder.as_deref()).unwrap_or("free");
    // A GPU and its tenants have one namespace.
    let holder = holder.split_once('/').map_or(holder, |(_, name)| name);
    let waiting = if waiting > 0 { format!(", {waiting} waiting") } else { String::new() };
    Some(vec![Span::raw(format!("slice {holder}{waiting}"))])
}

/// Returns the memory of all tenants, one after the other: weights, KV, other, free.
fn bar(board: &TopModel, gpu: &GpuEntry, theme: Theme, most: usize) -> Line<'static> {
    let tenants = &gpu.view.tenants;
    let held = |tenant: &TenantView| {
        let [global, layers, slots, kv, rest @ .., _free] = tenant.owners;
        [global + layers + slots, kv, rest.iter().sum()]
    };
    let mut sizes: Vec<u64> = tenants.iter().flat_map(held).collect();
    sizes.push(gpu.view.capacity_bytes.saturating_sub(sizes.iter().sum()));
    // The terminal may be too narrow for one cell each.
    let cells = apportion(&sizes, most);
    let name = board.display_name();
    let mut line = Line::default();
    for (tenant, cells) in tenants.iter().zip(cells.chunks(3)) {
        let blocks: String =
            ["█", "▓", "▒"].iter().zip(cells).map(|(block, count)| block.repeat(*count)).collect();
        let style = theme.tenant(tenant.colour);
        let label = truncate(&name(&Row { gpu, tenant }), cells.iter().sum());
        let rest: String = blocks.chars().skip(width(&label)).collect();
        line.push_span(Span::styled(label, style.add_modifier(Modifier::REVERSED)));
        line.push_span(Span::styled(rest, style));
    }
    line.push_span(Span::styled(FREE_CELL.repeat(cells.last().copied().unwrap_or(0)), theme.muted()));
    truncate_line(line, most)
}
