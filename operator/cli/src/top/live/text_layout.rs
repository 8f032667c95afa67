//! Text of a given width: truncation, padding, wrapping, and charts of blocks.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::terminal;

const ELLIPSIS: &str = "…";
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns the columns of a text.
pub fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Truncates the text to `most` columns, with an ellipsis. Control characters become
/// spaces.
pub fn truncate(text: &str, most: usize) -> String {
    let text = text.replace(char::is_control, " ");
    if width(&text) <= most {
        return text;
    }
    let Some(free_columns) = most.checked_sub(1) else { return String::new() };
    let mut kept = String::new();
    let span = Span::raw(text);
    for grapheme in span.styled_graphemes(Style::new()) {
        if width(&kept) + width(grapheme.symbol) > free_columns {
            break;
        }
        kept += grapheme.symbol;
    }
    kept + ELLIPSIS
}

/// Fits the text into exactly `wide` columns, aligned left.
pub fn pad_right(text: &str, wide: usize) -> String {
    let text = truncate(text, wide);
    let rest = wide.saturating_sub(width(&text));
    text + &" ".repeat(rest)
}

/// Fits the text into exactly `wide` columns, aligned right.
pub fn pad_left(text: &str, wide: usize) -> String {
    let text = truncate(text, wide);
    " ".repeat(wide.saturating_sub(width(&text))) + &text
}

/// Truncates a line to `most` columns.
pub fn truncate_line(line: Line<'static>, most: usize) -> Line<'static> {
    if line.width() <= most {
        return line;
    }
    let (mut spans, mut used) = (Vec::new(), 0);
    for span in line.spans {
        let wide = span.width();
        if used + wide < most {
            used += wide;
            spans.push(span);
            continue;
        }
        // More text follows, so that even a span that fits ends with the ellipsis.
        spans.push(Span::styled(truncate(&format!("{}{ELLIPSIS}", span.content), most - used), span.style));
        break;
    }
    Line { spans, ..line }
}

/// Joins the phrases that fit into one line, `gap` columns apart, in order. A phrase that does not fit is
/// skipped; the first one is always included.
pub fn join_fitting(
    phrases: impl IntoIterator<Item = Vec<Span<'static>>>,
    gap: usize,
    most: usize,
) -> Line<'static> {
    let mut line = Line::default();
    for phrase in phrases {
        let wide: usize = phrase.iter().map(Span::width).sum();
        let first = line.spans.is_empty();
        if !first && line.width() + gap + wide > most {
            continue;
        }
        if !first {
            line.push_span(" ".repeat(gap));
        }
        line.extend(phrase);
    }
    truncate_line(line, most)
}

/// Wraps words into lines of at most `most` columns in `style`, each indented by `indent` columns.
pub fn wrapped(text: &str, indent: usize, most: usize, style: Style) -> Vec<Line<'static>> {
    let (before, words) = (" ".repeat(indent), text.split_whitespace().collect::<Vec<_>>().join(" "));
    let lines = terminal::wrap(&words, most.saturating_sub(indent));
    lines
        .split('\n')
        .map(|line| truncate_line(Line::styled(format!("{before}{line}"), style), most))
        .collect()
}

/// Values of equal parts of the time from `from` to `to` (milliseconds), `count` of them: `join` of those in a
/// part, `None` where there is none.
pub fn time_buckets(
    values: impl Iterator<Item = (u64, Option<u64>)>,
    (from, to): (u64, u64),
    count: usize,
    join: fn(u64, u64) -> u64,
) -> Vec<Option<u64>> {
    let mut parts = vec![None; count];
    let span = to.saturating_sub(from).max(1);
    for (at, value) in values {
        let Some(past) = at.checked_sub(from).filter(|past| *past <= span) else { continue };
        let part = ((past as u128 * count as u128 / u128::from(span)) as usize).min(count.saturating_sub(1));
        if let (Some(slot), Some(value)) = (parts.get_mut(part), value) {
            *slot = Some(slot.map_or(value, |own| join(own, value)));
        }
    }
    parts
}

/// Returns row `row` of `rows` (0 = the lowest) of a bar of height `value / most`. No value gives an empty cell, 0 the
/// lowest block.
pub fn bar(value: Option<u64>, most: u64, row: usize, rows: usize) -> char {
    let Some(value) = value else { return ' ' };
    let steps = BLOCKS.len() * rows;
    let high = (u128::from(value) * steps as u128).div_ceil(u128::from(most.max(1))) as usize;
    let above = high.clamp(1, steps).saturating_sub(row * BLOCKS.len());
    if above == 0 { ' ' } else { BLOCKS[above.min(BLOCKS.len()) - 1] }
}

/// Draws values as bars of one row, those above `limit` in the style `beyond`.
pub fn sparkline(
    values: &[Option<u64>],
    limit: Option<u64>,
    style: Style,
    beyond: Style,
) -> Vec<Span<'static>> {
    chart_row(values, full_scale(values, limit), limit, (0, 1), style, beyond)
}

/// Returns the value of a full bar.
pub fn full_scale(values: &[Option<u64>], limit: Option<u64>) -> u64 {
    values.iter().flatten().copied().max().unwrap_or(0).max(limit.unwrap_or(0)).max(1)
}

/// Draws one row of bars: `(row, rows)` as for [`bar`].
pub fn chart_row(
    values: &[Option<u64>],
    most: u64,
    limit: Option<u64>,
    (row, rows): (usize, usize),
    style: Style,
    beyond: Style,
) -> Vec<Span<'static>> {
    let is_beyond = |value: &Option<u64>| limit.is_some_and(|limit| value.is_some_and(|value| value > limit));
    let runs = values.chunk_by(|a, b| is_beyond(a) == is_beyond(b));
    let span = |run: &[Option<u64>]| {
        let bars: String = run.iter().map(|value| bar(*value, most, row, rows)).collect();
        Span::styled(bars, if is_beyond(&run[0]) { beyond } else { style })
    };
    runs.map(span).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_by_the_columns_that_it_takes() {
        assert_eq!(truncate("tenant", 6), "tenant");
        assert_eq!(truncate("tenant", 5), "tena…");
        assert_eq!(truncate("模型一号", 6), "模型…", "two columns a character");
        assert_eq!(truncate("模型一号", 5), "模型…");
        assert_eq!([truncate("tenant", 1), truncate("tenant", 0)], ["…", ""]);
        assert_eq!(truncate("a\u{1b}[31mb", 9), "a [31mb");
        assert_eq!([pad_right("ab", 4), pad_left("ab", 4)], ["ab  ", "  ab"]);
    }

    #[test]
    fn a_line_is_cut_across_its_spans() {
        let line = || Line::from(vec![Span::raw("abc"), Span::raw("def")]);
        let cuts = [6, 5, 4, 3, 1, 0].map(|most| truncate_line(line(), most).to_string());
        assert_eq!(cuts, ["abcdef", "abcd…", "abc…", "ab…", "…", ""]);
    }

    #[test]
    fn values_are_joined_by_parts_of_time() {
        let values =
            [(100, Some(1)), (149, Some(3)), (150, None), (199, Some(5)), (99, Some(9)), (201, Some(9))];
        let joined = |count, join| time_buckets(values.into_iter(), (100, 200), count, join);
        assert_eq!(joined(2, u64::max), [Some(3), Some(5)]);
        assert_eq!(joined(2, |a, b| a + b), [Some(4), Some(5)]);
        assert_eq!(joined(4, u64::max), [Some(1), Some(3), None, Some(5)]);
        assert_eq!(joined(0, u64::max), []);
    }

    #[test]
    fn bars_are_as_high_as_their_values_and_zero_is_not_nothing() {
        let shown = |values: &[Option<u64>]| -> String {
            sparkline(values, None, Style::new(), Style::new())
                .iter()
                .map(|span| span.content.to_string())
                .collect()
        };
        assert_eq!(shown(&[Some(0), Some(4), None, Some(8)]), "▁▄ █");
        let column = |value| [1, 0].map(|row| bar(Some(value), 16, row, 2));
        assert_eq!(
            [column(16), column(9), column(8), column(0)],
            [['█', '█'], ['▁', '█'], [' ', '█'], [' ', '▁']]
        );
    }

    #[test]
    fn only_values_beyond_the_limit_are_in_its_style() {
        let bad = Style::new().fg(ratatui::style::Color::Red);
        let spans = sparkline(&[Some(5), Some(11), Some(10)], Some(10), Style::new(), bad);
        let styles: Vec<_> =
            spans.iter().map(|span| (span.content.chars().count(), span.style == bad)).collect();
        assert_eq!(styles, [(1, false), (1, true), (1, false)]);
    }
}
