//! The table of tenants: one row each, with its problems below.

use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use sluice_common::text::counted;
use sluice_page::history::Metric;
use sluice_page::text::formatting::{bytes, duration, percent};
use sluice_page::text::reason::Level;
use sluice_page::view::{Objective, TenantView};

use super::app::AppState;
use super::gpu;
use super::model::{Row, Sort, TopModel};
use super::text_layout::{
    join_fitting, pad_left, pad_right, sparkline, time_buckets, truncate, truncate_line, width, wrapped,
};
use super::theme::Theme;

/// Least and most columns of a sparkline.
const SPARKLINE_COLUMNS: (usize, usize) = (5, 24);
/// Columns of the selection marker and the tenant's colour.
const MARKER_COLUMNS: usize = 3;
/// Most lines of problems of the selected tenant.
const MAX_REASON_LINES: usize = 3;

/// A column after the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    State,
    Slo,
    Tokens,
    TokensHistory,
    Ttft,
    TtftHistory,
    Tbt,
    TbtHistory,
    Kv,
    KvSize,
    Layers,
    Requests,
}

/// Columns from left to right, each with its rank: on a narrow terminal those with the highest rank are dropped first.
const COLUMNS: [(Column, usize); 12] = [
    (Column::State, 0),
    (Column::Slo, 1),
    (Column::Tokens, 2),
    (Column::TokensHistory, 8),
    (Column::Ttft, 4),
    (Column::TtftHistory, 10),
    (Column::Tbt, 3),
    (Column::TbtHistory, 9),
    (Column::Kv, 5),
    (Column::KvSize, 11),
    (Column::Layers, 6),
    (Column::Requests, 7),
];

impl Column {
    const fn title(self) -> &'static str {
        match self {
            Column::State => "STATE",
            Column::Slo => "SLO",
            Column::Tokens => "TOK/S",
            Column::Ttft => "TTFT",
            Column::Tbt => "TBT",
            Column::Kv => "KV",
            Column::KvSize => "KV OF",
            Column::Layers => "LAYERS",
            Column::Requests => "R+W",
            Column::TokensHistory | Column::TtftHistory | Column::TbtHistory => "",
        }
    }

    const fn sort(self) -> Option<Sort> {
        match self {
            Column::Slo => Some(Sort::Slo),
            Column::Tokens => Some(Sort::Tokens),
            Column::Ttft => Some(Sort::Ttft),
            Column::Tbt => Some(Sort::Tbt),
            Column::Kv => Some(Sort::Kv),
            Column::Layers => Some(Sort::Layers),
            _ => None,
        }
    }

    const fn trend(self) -> Option<Metric> {
        match self {
            Column::TokensHistory => Some(Metric::Tokens),
            Column::TtftHistory => Some(Metric::Ttft),
            Column::TbtHistory => Some(Metric::Tbt),
            _ => None,
        }
    }

    const fn is_left_aligned(self) -> bool {
        matches!(self, Column::State | Column::Slo)
    }

    /// Returns its width. Its texts are never wider.
    fn width(self, rows: &[Row<'_>]) -> usize {
        let longest = |text: fn(&TenantView) -> String, least| {
            rows.iter().map(|row| width(&text(row.tenant))).max().unwrap_or(0).max(least)
        };
        match self {
            Column::State => longest(state, 7),
            Column::Slo => 9,
            Column::Tokens => 6,
            Column::Kv => 5,
            Column::Ttft | Column::Tbt => 7,
            Column::KvSize => 8,
            Column::Layers => longest(layers, 7).min(12),
            Column::Requests => longest(requests, 3).min(7),
            Column::TokensHistory | Column::TtftHistory | Column::TbtHistory => SPARKLINE_COLUMNS.0,
        }
    }
}

fn state(tenant: &TenantView) -> String {
    if tenant.answers { tenant.phase.to_owned() } else { "no answer".to_owned() }
}

fn requests(tenant: &TenantView) -> String {
    if tenant.answers { format!("{}+{}", tenant.running, tenant.waiting) } else { "-".to_owned() }
}

/// Formats the number of layers per state: `12r 4a`.
fn layers(tenant: &TenantView) -> String {
    let count = |letter| tenant.layers.chars().filter(|layer| *layer == letter).count();
    let some = ['r', 'm', 'l', 'a']
        .into_iter()
        .map(|letter| (count(letter), letter))
        .filter(|(count, _)| *count > 0);
    let text: Vec<_> = some.map(|(count, letter)| format!("{count}{letter}")).collect();
    if text.is_empty() { "-".to_owned() } else { text.join(" ") }
}

/// The visible columns with their widths, and the width of the name.
struct Layout {
    name: usize,
    columns: Vec<(Column, usize)>,
}

impl Layout {
    fn of(rows: &[Row<'_>], names: &[String], most: usize) -> Layout {
        let longest = names.iter().map(|name| width(name)).max().unwrap_or(0).max(6);
        let least = match most {
            0..60 => longest.min(8),
            60..100 => longest.min(14),
            _ => longest.min(24),
        };
        let mut ranked = COLUMNS.map(|(column, rank)| (rank, column, column.width(rows)));
        ranked.sort_unstable_by_key(|(rank, ..)| *rank);
        let mut used = MARKER_COLUMNS + least;
        let fits = |(_, _, wide): &&(usize, Column, usize)| {
            used += 1 + *wide;
            used <= most
        };
        let there: Vec<_> =
            ranked.iter().take_while(fits).map(|(_, column, wide)| (*column, *wide)).collect();
        let taken: usize = there.iter().map(|(_, wide)| wide + 1).sum();
        let name = longest
            .min(most.saturating_sub(MARKER_COLUMNS + taken))
            .max(least.min(most.saturating_sub(MARKER_COLUMNS)));
        let rest = most.saturating_sub(MARKER_COLUMNS + name + taken);
        let pasts = there.iter().filter(|(column, _)| column.trend().is_some()).count();
        let more = rest.checked_div(pasts).unwrap_or(0).min(SPARKLINE_COLUMNS.1 - SPARKLINE_COLUMNS.0);
        let wide = |column: Column| {
            let wide = there.iter().find(|(one, _)| *one == column)?.1;
            Some((column, if column.trend().is_some() { wide + more } else { wide }))
        };
        Layout { name, columns: COLUMNS.iter().filter_map(|(column, _)| wide(*column)).collect() }
    }

    fn heading(&self, app: &AppState) -> Line<'static> {
        let arrow = if app.reverse { '▲' } else { '▼' };
        let mark = |title: &str, sort| {
            if sort == Some(app.sort) { format!("{title}{arrow}") } else { title.to_owned() }
        };
        let mut text = " ".repeat(MARKER_COLUMNS) + &pad_right(&mark("TENANT", Some(Sort::Name)), self.name);
        for (column, wide) in &self.columns {
            let title = mark(column.title(), column.sort());
            text += " ";
            text +=
                &if column.is_left_aligned() { pad_right(&title, *wide) } else { pad_left(&title, *wide) };
        }
        Line::styled(text, Theme::bold())
    }
}

/// One tenant's row and the lines below it.
struct RowBlock<'a> {
    board: &'a TopModel,
    theme: Theme,
    layout: &'a Layout,
    most: usize,
}

impl RowBlock<'_> {
    fn lines(&self, row: &Row<'_>, name: &str, is_selected: bool) -> Vec<Line<'static>> {
        let marker = if is_selected { "> " } else { "  " };
        let style = if is_selected { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() };
        let mut line = Line::from(vec![
            Span::raw(marker),
            Span::styled("■", self.theme.tenant(row.tenant.colour)),
            Span::raw(pad_right(name, self.layout.name)),
        ]);
        for (column, wide) in &self.layout.columns {
            line.push_span(" ");
            line.extend(self.cell(row, *column, *wide));
        }
        let mut lines = vec![truncate_line(line.patch_style(style), self.most)];
        lines.extend(self.reasons(row.tenant, is_selected));
        lines
    }

    fn cell(&self, row: &Row<'_>, column: Column, wide: usize) -> Vec<Span<'static>> {
        let tenant = row.tenant;
        let time = |ns: Option<u64>| ns.map_or("-".to_owned(), duration);
        let objective = |name| tenant.objectives.iter().find(|one| one.name == name);
        let beyond = |name, ns: Option<u64>| match (objective(name), ns) {
            (Some(one), Some(ns)) if ns > one.limit_ns => self.theme.bad(),
            _ => Style::new(),
        };
        let (text, style) = match column {
            Column::State if tenant.level == Level::Bad => {
                (state(tenant), self.theme.level(reason_level(tenant)))
            }
            Column::State => (state(tenant), self.theme.level(tenant.level)),
            Column::Slo => self.slo(tenant.worst_objective()),
            Column::Tokens => {
                (tenant.tokens_per_s.map_or("-".to_owned(), |rate| format!("{rate:.0}")), Style::new())
            }
            Column::Ttft => (time(tenant.ttft_ns), beyond("first token", tenant.ttft_ns)),
            Column::Tbt => (time(tenant.tbt_ns), beyond("later token", tenant.tbt_ns)),
            Column::Kv => (
                tenant.kv_used_permille.map_or("-".to_owned(), |one| format!("{} %", one / 10)),
                Style::new(),
            ),
            Column::KvSize => {
                (if tenant.answers { bytes(tenant.kv_total_bytes) } else { "-".to_owned() }, Style::new())
            }
            Column::Layers => (layers(tenant), Style::new()),
            Column::Requests => (requests(tenant), Style::new()),
            Column::TokensHistory => return self.trend(row, Metric::Tokens, None, wide),
            Column::TtftHistory => return self.trend(row, Metric::Ttft, objective("first token"), wide),
            Column::TbtHistory => return self.trend(row, Metric::Tbt, objective("later token"), wide),
        };
        let text = if column.is_left_aligned() { pad_right(&text, wide) } else { pad_left(&text, wide) };
        vec![Span::styled(text, style)]
    }

    fn slo(&self, objective: Option<&Objective>) -> (String, Style) {
        let Some(one) = objective else { return ("-".to_owned(), Style::new()) };
        let (sign, style) = if one.missed { ("✗", self.theme.bad()) } else { ("✓", self.theme.good()) };
        (format!("{sign} {}", percent(Some(one.attained_permille))), style)
    }

    fn trend(
        &self,
        row: &Row<'_>,
        figure: Metric,
        limit: Option<&Objective>,
        wide: usize,
    ) -> Vec<Span<'static>> {
        let series = row.gpu.history().series(&row.tenant.title, figure);
        let values = time_buckets(series, self.board.time_range(), wide, u64::max);
        // Sparklines are in tenths of a millisecond.
        let limit = limit.map(|one| one.limit_ns / 100_000);
        sparkline(&values, limit, self.theme.tenant(row.tenant.colour), self.theme.bad())
    }

    /// Returns the problems: all of them, wrapped, for the selected tenant, else the first one in one line.
    fn reasons(&self, tenant: &TenantView, is_selected: bool) -> Vec<Line<'static>> {
        let missed =
            || tenant.reasons.iter().filter(|one| one.level > Level::Fine && one.kind == "objective");
        let shown: Vec<_> = tenant.shown_reasons().chain(missed()).collect();
        let indent = MARKER_COLUMNS + 2;
        let style = |level| match level {
            // The cause of a missed objective.
            Level::Fine => self.theme.level(Level::Watch),
            level => self.theme.level(level),
        };
        let lines = shown.iter().flat_map(|one| wrapped(&one.text, indent, self.most, style(one.level)));
        if is_selected {
            return lines.take(MAX_REASON_LINES).collect();
        }
        let first = shown.first().map(|one| {
            let text = truncate(&one.text, self.most.saturating_sub(indent));
            truncate_line(Line::styled(" ".repeat(indent) + &text, style(one.level)), self.most)
        });
        first.into_iter().collect()
    }
}

/// A tenant's phase matters less than a missed objective, which has a column of its own.
fn reason_level(tenant: &TenantView) -> Level {
    tenant.shown_reasons().map(|one| one.level).max().unwrap_or_default()
}

/// Fits the list into `height` lines of `most` columns, with the selected tenant in view.
pub fn lines(
    app: &AppState,
    board: &TopModel,
    theme: Theme,
    (most, height): (usize, usize),
) -> Vec<Line<'static>> {
    let rows = board.rows(app.sort, app.reverse);
    if rows.is_empty() {
        return Vec::new();
    }
    let selected = app.index(&rows);
    let mut lines = gpus(board, rows.get(selected), theme, (most, (height / 3).max(2)));
    let name = board.display_name();
    let names: Vec<String> = rows.iter().map(name).collect();
    let layout = Layout::of(&rows, &names, most);
    let block = RowBlock { board, theme, layout: &layout, most };
    lines.push(truncate_line(layout.heading(app), most));
    let free_lines = height.saturating_sub(lines.len());
    let of = |at: usize| block.lines(&rows[at], &names[at], at == selected);
    let (start, mut used) = first_visible(selected, free_lines, of);
    for at in start..rows.len() {
        let own = of(at);
        // A row is shown if all of it fits; the selected one is always shown.
        if at > selected && used + own.len() > free_lines {
            break;
        }
        used += if at > selected { own.len() } else { 0 };
        lines.extend(own);
    }
    lines.truncate(height);
    lines
}

/// Returns the first visible row, such that the selected one is in view, and the lines from there to its end.
fn first_visible(
    selected: usize,
    free_lines: usize,
    of: impl Fn(usize) -> Vec<Line<'static>>,
) -> (usize, usize) {
    let mut used = 0;
    for at in (0..=selected).rev() {
        let own = of(at).len();
        if at < selected && used + own > free_lines {
            return (at + 1, used);
        }
        used += own;
    }
    (0, used)
}

/// Returns the GPUs that fit, that of the selected tenant first, and the number of the others.
fn gpus(
    board: &TopModel,
    selected: Option<&Row<'_>>,
    theme: Theme,
    (most, height): (usize, usize),
) -> Vec<Line<'static>> {
    let key = selected.map(|row| row.gpu.view.key.as_str());
    let mut all: Vec<_> = board.gpus().collect();
    let few: usize = all.iter().map(|gpu| 2 + gpu.view.reasons.len()).sum();
    if few > height {
        all.sort_by_key(|gpu| Some(gpu.view.key.as_str()) != key);
    }
    let (mut lines, mut shown) = (Vec::new(), 0);
    for gpu in &all {
        let own = gpu::lines(board, gpu, theme, most);
        if shown > 0 && lines.len() + own.len() + usize::from(shown + 1 < all.len()) > height {
            break;
        }
        lines.extend(own);
        shown += 1;
    }
    if shown < all.len() {
        let more = format!("and {}", counted(all.len() - shown, "more GPU"));
        lines.push(join_fitting([vec![Span::styled(more, theme.muted())]], 0, most));
    }
    lines
}
