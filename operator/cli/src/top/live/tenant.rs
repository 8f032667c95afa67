//! The page of one tenant: its state, the reasons, its charts and its memory.

use ratatui::style::Style;
use ratatui::text::{Line, Span};
use sluice_page::history::Metric;
use sluice_page::text::formatting::{age, bytes, duration, percent, window};
use sluice_page::text::reason::Level;
use sluice_page::view::Objective;

use super::app::AppState;
use super::model::{Row, TopModel};
use super::text_layout::{
    chart_row, full_scale, join_fitting, pad_left, pad_right, time_buckets, truncate_line, width, wrapped,
};
use super::theme::Theme;
use crate::top::SidecarPoll;
use crate::top::view::{RenderContext, figures};

/// Height of a chart, lines, and columns to its left.
const CHART_ROWS: usize = 4;
const AXIS_COLUMNS: usize = 9;
/// Least width for two charts side by side, columns.
const TWO_CHARTS_MIN_COLUMNS: usize = 100;
/// Most moves that are listed.
const MAX_MOVES: usize = 10;

/// Returns the whole page in lines of at most `most` columns; `None` = there is no tenant.
pub fn lines(app: &AppState, board: &TopModel, theme: Theme, most: usize) -> Option<Vec<Line<'static>>> {
    let rows = board.rows(app.sort, app.reverse);
    let row = rows.get(app.index(&rows))?;
    let page = TenantPage { board, row, theme, most };
    let mut lines = page.heading();
    lines.extend(page.reasons());
    lines.push(Line::default());
    lines.extend(page.charts());
    lines.extend(page.layers());
    lines.extend(page.loans());
    lines.extend(page.moves());
    lines.extend(page.figures());
    Some(lines.into_iter().map(|line| truncate_line(line, most)).collect())
}

struct TenantPage<'a> {
    board: &'a TopModel,
    row: &'a Row<'a>,
    theme: Theme,
    most: usize,
}

/// A chart of one metric.
struct Chart {
    title: &'static str,
    figure: Metric,
    now: String,
    /// Formats its value.
    text: fn(u64) -> String,
    /// Values above it are bad.
    limit: Option<u64>,
}

impl TenantPage<'_> {
    fn heading(&self) -> Vec<Line<'static>> {
        let (tenant, gpu) = (self.row.tenant, &self.row.gpu.view);
        let mark = Span::styled("■ ", self.theme.tenant(tenant.colour));
        let title = vec![mark, Span::styled(tenant.title.clone(), Theme::bold())];
        let plain = |text: String| vec![Span::raw(text)];
        let mut first = vec![title, plain(format!("on {}", gpu.name))];
        first.extend((tenant.answers).then(|| plain(tenant.phase.to_owned())));
        let Some(state) = self.row.state() else { return vec![join_fitting(first, 3, self.most)] };
        let second = [
            plain(format!("model {}", state.tenant.model)),
            plain(format!("policy {}", state.policy)),
            plain(format!("{} running, {} waiting", tenant.running, tenant.waiting)),
        ];
        let mut lines = vec![join_fitting(first, 3, self.most), join_fitting(second, 3, self.most)];
        lines.extend(tenant.objectives.iter().map(|one| self.objective(one)));
        lines
    }

    fn objective(&self, one: &Objective) -> Line<'static> {
        let (sign, style) =
            if one.missed { ("✗ missed:", self.theme.bad()) } else { ("✓ met:", self.theme.good()) };
        let share = percent(Some(one.attained_permille));
        let promised = percent(Some(one.promised_permille));
        let (name, limit) = (one.name, &one.within);
        let last = window(u64::from(one.window_seconds) * 1000);
        let text = format!(" {share} of {name}s within {limit} in {last}, {promised} promised");
        Line::from(vec![Span::styled(sign, style), Span::raw(text)])
    }

    /// Returns all reasons except the objectives, which are in the heading.
    fn reasons(&self) -> Vec<Line<'static>> {
        let mut shown: Vec<_> =
            self.row.tenant.reasons.iter().filter(|one| one.kind != "objective").collect();
        shown.sort_by_key(|one| std::cmp::Reverse(one.level));
        let lines = shown.into_iter().flat_map(|one| {
            let style = self.theme.level(one.level);
            let text = if one.level == Level::Fine { one.text.clone() } else { format!("! {}", one.text) };
            wrapped(&text, 0, self.most, style)
        });
        lines.collect()
    }

    fn charts(&self) -> Vec<Line<'static>> {
        let tenant = self.row.tenant;
        let time = |ns: Option<u64>| ns.map_or("-".to_owned(), duration);
        let limit =
            |name| tenant.objectives.iter().find(|one| one.name == name).map(|one| one.limit_ns / 100_000);
        let tenths = |value: u64| duration(value * 100_000);
        let kv = tenant.kv_used_permille.map_or("-".to_owned(), |one| {
            format!("{} of {}", percent(Some(one)), bytes(tenant.kv_total_bytes))
        });
        let tokens = tenant.tokens_per_s.map_or("-".to_owned(), |rate| format!("{rate:.0}"));
        let charts = [
            Chart {
                title: "tokens/s",
                figure: Metric::Tokens,
                now: tokens,
                text: |value| value.to_string(),
                limit: None,
            },
            Chart {
                title: "KV used",
                figure: Metric::KvUsed,
                now: kv,
                text: |value| percent(u32::try_from(value).ok()),
                limit: None,
            },
            Chart {
                title: "TTFT, P99",
                figure: Metric::Ttft,
                now: time(tenant.ttft_ns),
                text: tenths,
                limit: limit("first token"),
            },
            Chart {
                title: "TBT, P99",
                figure: Metric::Tbt,
                now: time(tenant.tbt_ns),
                text: tenths,
                limit: limit("later token"),
            },
        ];
        if self.most < TWO_CHARTS_MIN_COLUMNS {
            return charts.iter().flat_map(|chart| self.chart(chart, self.most)).collect();
        }
        let wide = (self.most - 3) / 2;
        let beside = |pair: &[Chart]| {
            let [a, b] = [&pair[0], &pair[1]].map(|chart| self.chart(chart, wide));
            a.into_iter()
                .zip(b)
                .map(|(mut line, next)| {
                    line.push_span(" ".repeat((wide + 3).saturating_sub(line.width())));
                    line.extend(next.spans);
                    line
                })
                .collect::<Vec<_>>()
        };
        charts.chunks(2).flat_map(beside).collect()
    }

    /// Returns a heading, bars with the highest value and 0 on the left, and the time below.
    fn chart(&self, chart: &Chart, wide: usize) -> Vec<Line<'static>> {
        let bars = wide.saturating_sub(AXIS_COLUMNS + 1);
        let time = self.board.time_range();
        let series = self.row.gpu.history().series(&self.row.tenant.title, chart.figure);
        let values = time_buckets(series, time, bars, u64::max);
        let most = full_scale(&values, chart.limit);
        let limit =
            chart.limit.map_or(String::new(), |limit| format!(", in time within {}", (chart.text)(limit)));
        let mut lines = vec![truncate_line(
            Line::from(vec![
                Span::styled(chart.title, Theme::bold()),
                Span::raw(format!("  {} now{limit}", chart.now)),
            ]),
            wide,
        )];
        let style = self.theme.tenant(self.row.tenant.colour);
        for row in (0..CHART_ROWS).rev() {
            let label = match row {
                0 => "0".to_owned(),
                row if row == CHART_ROWS - 1 => (chart.text)(most),
                _ => String::new(),
            };
            let mut line = Line::from(vec![Span::raw(pad_left(&label, AXIS_COLUMNS)), Span::raw("│")]);
            line.extend(chart_row(&values, most, chart.limit, (row, CHART_ROWS), style, self.theme.bad()));
            lines.push(truncate_line(line, wide));
        }
        let (start, end) = (format!("{} ago", age(time.1 - time.0)), "now");
        let gap = bars.saturating_sub(width(&start) + width(end));
        let below = format!("{}└{start}{}{end}", " ".repeat(AXIS_COLUMNS), " ".repeat(gap));
        lines.push(truncate_line(Line::styled(below, self.theme.muted()), wide));
        lines
    }

    /// Returns the state of each layer, front first.
    fn layers(&self) -> Vec<Line<'static>> {
        let letters = &self.row.tenant.layers;
        if letters.is_empty() {
            return Vec::new();
        }
        let words =
            [('r', "resident", '█'), ('m', "moving", '▄'), ('l', "loading", '░'), ('a', "absent", '·')];
        let count = |letter| letters.chars().filter(|one| *one == letter).count();
        let some = words.iter().filter(|(letter, ..)| count(*letter) > 0);
        let counts: Vec<_> =
            some.map(|(letter, word, block)| format!("{} {word} {block}", count(*letter))).collect();
        let block = |letter| words.iter().find(|(one, ..)| *one == letter).map_or('?', |(.., block)| *block);
        let strip: Vec<char> = letters.chars().map(block).collect();
        let mut lines = vec![self.title("layers", counts.join(", "))];
        let rows = strip.chunks(self.most.max(1));
        lines.extend(rows.map(|row| {
            Line::styled(row.iter().collect::<String>(), self.theme.tenant(self.row.tenant.colour))
        }));
        lines
    }

    fn loans(&self) -> Vec<Line<'static>> {
        let own = &self.row.tenant.title;
        let loans = &self.row.gpu.view.loans;
        let text = loans.iter().filter_map(|loan| match (&loan.from == own, &loan.to == own) {
            (true, _) => Some(format!("  lends {} to {}", bytes(loan.bytes), loan.to)),
            (_, true) => Some(format!("  borrows {} from {}", bytes(loan.bytes), loan.from)),
            _ => None,
        });
        let mut lines: Vec<_> = text.map(Line::from).collect();
        let none = if lines.is_empty() { "none" } else { "" };
        lines.insert(0, self.title("loans", none.to_owned()));
        lines
    }

    fn moves(&self) -> Vec<Line<'static>> {
        let own = self.row.gpu.history().moves().filter(|one| *one.title == *self.row.tenant.title);
        let mut own: Vec<_> = own.collect();
        // The numbers follow the order of readings.
        own.sort_by_key(|one| std::cmp::Reverse((one.at_unix_ms, one.number)));
        let line = |one: &sluice_page::history::LoggedMove| {
            let ago = age(self.board.now_unix_ms.saturating_sub(one.at_unix_ms));
            let times = if one.count > 1 { format!(" ×{}", one.count) } else { String::new() };
            let size = if one.bytes > 0 { bytes(one.bytes) } else { String::new() };
            let reason = pad_right(&format!("{}{times}", one.reason), 20);
            Line::from(format!("  {:>5} ago  {reason} {:>9}  {}", ago, size, one.detail))
        };
        let mut lines: Vec<_> = own.into_iter().take(MAX_MOVES).map(line).collect();
        let none = if lines.is_empty() { "none in the last 15 minutes" } else { "" };
        lines.insert(0, self.title("moves", none.to_owned()));
        lines
    }

    /// Returns the figures that `--once` prints.
    fn figures(&self) -> Vec<Line<'static>> {
        let Some(state) = self.row.state() else { return Vec::new() };
        let sighting =
            SidecarPoll { title: self.row.tenant.title.clone(), state: Ok(state.clone()), token_rate: None };
        let view = RenderContext {
            polls: std::slice::from_ref(&sighting),
            colour: self.theme.colour,
            now_unix_ms: self.board.now_unix_ms,
            empty_text: "",
        };
        let mut lines = vec![Line::styled("figures", Theme::bold())];
        lines.extend(figures(&view, state, self.most));
        lines
    }

    fn title(&self, name: &'static str, rest: String) -> Line<'static> {
        Line::from(vec![Span::styled(name, Theme::bold()), Span::styled(format!("  {rest}"), Style::new())])
    }
}
