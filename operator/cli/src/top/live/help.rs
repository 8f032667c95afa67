//! The help: every key, and the meaning of the columns.

use ratatui::text::{Line, Span};

use super::keys::BINDINGS;
use super::text_layout::{pad_right, truncate_line, width, wrapped};
use super::theme::Theme;

const GLOSSARY: [(&str, &str); 9] = [
    ("SLO", "the share of tokens in time, of the objective that is missed most: ✓ met, ✗ missed"),
    ("TOK/S", "tokens per second"),
    (
        "TTFT, TBT",
        "time to the first token and between tokens, 99th percentiles of the last minute; red beyond the objective",
    ),
    ("KV", "the share of the KV cache that requests use"),
    ("LAYERS", "r resident, m moving through a slot, l loading, a absent: lent or hibernated"),
    ("R+W", "requests that run and that wait"),
    ("moved", "bytes that changed their owner"),
    ("█ ▓ ▒ ·", "weights, KV, other, free, in the colour of the tenant"),
    ("below a row", "the reason, as in sluice explain"),
];

/// Lines of at most `most` columns.
pub fn lines(most: usize) -> Vec<Line<'static>> {
    let keys = BINDINGS.iter().map(|binding| (binding.label(), binding.help));
    let mut all = vec![Line::styled("Keys", Theme::bold())];
    all.extend(entries(keys.collect(), most));
    all.push(Line::default());
    all.push(Line::styled("What it shows", Theme::bold()));
    all.extend(entries(GLOSSARY.map(|(name, text)| (name.to_owned(), text)).into(), most));
    all.into_iter().map(|line| truncate_line(line, most)).collect()
}

fn entries(entries: Vec<(String, &str)>, most: usize) -> Vec<Line<'static>> {
    let names = entries.iter().map(|(name, _)| width(name)).max().unwrap_or(0) + 2;
    let entry = |(name, text): (String, &str)| {
        let mut lines = wrapped(text, names, most, ratatui::style::Style::new());
        if let Some(first) = lines.first_mut() {
            let text = first.to_string().trim_start().to_owned();
            *first = Line::from(vec![Span::styled(pad_right(&name, names), Theme::bold()), Span::raw(text)]);
        }
        lines
    };
    entries.into_iter().flat_map(entry).collect()
}
