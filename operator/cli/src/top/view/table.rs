//! Renders one row per tenant. Columns that do not fit are omitted; the details also contain their figures.

use ratatui::style::Color;
use ratatui::text::{Line, Span};
use sluice_wire::State;

use super::super::SidecarPoll;
use super::RenderContext;
use sluice_page::text::formatting::{percentiles, phase};
use sluice_page::text::hangs;

struct Column {
    title: &'static str,
    width: usize,
    cell: fn(&State, Option<f32>) -> String,
}

/// Columns in order of importance.
const COLUMNS: [Column; 10] = [
    Column { title: "RUN+WAIT", width: 8, cell: |s, _| format!("{}+{}", s.queue.running, s.queue.waiting) },
    Column { title: "TOK/S", width: 6, cell: |_, rate| rate.map_or("-".into(), |r| format!("{r:.0}")) },
    Column { title: "KV", width: 4, cell: |s, _| format!("{}%", s.kv.utilisation_permille / 10) },
    Column { title: "A/B/CAP", width: 8, cell: |s, _| remap(s) },
    Column { title: "TBT-ENG", width: 9, cell: |s, _| percentiles(&s.figures.engine_tbt) },
    Column { title: "TBT-OUT", width: 9, cell: |s, _| percentiles(&s.figures.delivered_tbt) },
    Column { title: "TTFT", width: 9, cell: |s, _| percentiles(&s.figures.ttft) },
    Column { title: "PREEMPT", width: 7, cell: |s, _| s.figures.preemptions_total.to_string() },
    Column { title: "RECOMP", width: 7, cell: |s, _| s.figures.recomputed_tokens_total.to_string() },
    Column { title: "LOST", width: 4, cell: |s, _| s.engine.restarts.to_string() },
];

/// Width of the phase, which is on the left, and least width of the tenant's name.
const PHASE_WIDTH: usize = 9;
const NAME_MIN: usize = 12;

fn remap(state: &State) -> String {
    let remap = &state.remap;
    format!("{}/{}/{}", remap.alpha, remap.beta, remap.cap_layers)
}

/// Renders the heading and the rows.
pub fn table(view: &RenderContext, width: usize) -> Vec<Line<'static>> {
    let longest = view.polls.iter().map(|s| s.title.chars().count()).max().unwrap_or(0);
    let (columns, name) = fit_columns(width, longest.max(NAME_MIN));
    let titles: String = columns.iter().map(|c| format!(" {:>1$}", c.title, c.width)).collect();
    let mut lines = vec![Line::from(RenderContext::bold(format!(
        "  {:<name$} {:<PHASE_WIDTH$}{titles}",
        "TENANT", "PHASE"
    )))];
    lines.extend(view.polls.iter().map(|sighting| row(view, sighting, columns, name)));
    lines
}

/// Returns the columns that fit with a name of `longest`, which is cut before a column of the first six is left
/// out.
fn fit_columns(width: usize, longest: usize) -> (&'static [Column], usize) {
    let beside = |count: usize| 3 + PHASE_WIDTH + COLUMNS[..count].iter().map(|c| c.width + 1).sum::<usize>();
    let whole = (6..=COLUMNS.len()).rev().find(|count| beside(*count) + longest <= width);
    let cut = || (0..=6).rev().find(|count| beside(*count) + NAME_MIN <= width);
    let count = whole.or_else(cut).unwrap_or(0);
    (&COLUMNS[..count], longest.min(width.saturating_sub(beside(count))))
}

fn row(view: &RenderContext, sighting: &SidecarPoll, columns: &[Column], name: usize) -> Line<'static> {
    let title = shortened(&sighting.title, name);
    let mut line = Line::from(format!("  {title:<name$} "));
    line.extend(figures(view, sighting, columns));
    line
}

/// Truncates a title with an ellipsis; the details have it whole.
fn shortened(title: &str, width: usize) -> String {
    if title.chars().count() <= width {
        return title.to_owned();
    }
    title.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

fn figures(view: &RenderContext, sighting: &SidecarPoll, columns: &[Column]) -> Vec<Span<'static>> {
    match &sighting.state {
        Ok(state) => {
            let cells =
                columns.iter().map(|c| format!(" {:>1$}", (c.cell)(state, sighting.token_rate), c.width));
            let (phase, colour) = match hangs::is_engine_hung(state) {
                true => ("hung", Color::Red),
                false => (phase(state), Color::Cyan),
            };
            let phase = format!("{phase:<PHASE_WIDTH$}");
            vec![Span::styled(phase, view.style(colour)), cells.collect::<String>().into()]
        }
        Err(problem) => vec![Span::styled(format!("no answer: {problem}"), view.style(Color::Red))],
    }
}
