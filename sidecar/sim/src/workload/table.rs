//! Trace files: comma-separated columns, identified by the heading.

use super::lengths::Lengths;

/// Column names of published traces.
const TIMES: [&str; 4] = ["TIMESTAMP", "arrival_s", "Timestamp", "arrived_at"];
const PROMPTS: [&str; 4] = ["ContextTokens", "context_tokens", "Request tokens", "num_prefill_tokens"];
const OUTPUTS: [&str; 4] = ["GeneratedTokens", "generated_tokens", "Response tokens", "num_decode_tokens"];
const MODELS: [&str; 2] = ["model", "Model"];

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRow {
    /// Arrival time, nanoseconds after any fixed time; `None` in files with lengths only.
    pub at_ns: Option<u64>,
    /// Lengths of the request.
    pub lengths: Lengths,
    /// Rank of its model by request count; `None` if the file names no models.
    pub model: Option<usize>,
}

/// The part of a trace to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceSplit {
    /// All rows.
    All,
    /// All rows except the last third, which is held back.
    Shown,
    /// The last third.
    HeldBack,
}

/// The rows that were read from a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Rows, by time if they have one.
    pub rows: Vec<TraceRow>,
}

/// An error in a trace file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {problem}")]
pub struct TableError {
    /// Path as given.
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// Description of the problem.
    pub problem: String,
}

/// Column indices.
struct Columns {
    time: Option<usize>,
    prompt: usize,
    output: usize,
    model: Option<usize>,
}

impl Columns {
    fn of(heading: &str) -> Result<Columns, String> {
        let names: Vec<_> = heading.trim_end().split(',').collect();
        let find = |known: &[&str]| names.iter().position(|name| known.contains(name));
        let needed = |known: &[&str], what: &str| {
            find(known).ok_or(format!("`{}` has no column of {what} ({})", names.join(","), known.join(", ")))
        };
        Ok(Columns {
            time: find(&TIMES),
            prompt: needed(&PROMPTS, "prompt lengths")?,
            output: needed(&OUTPUTS, "answer lengths")?,
            model: find(&MODELS),
        })
    }
}

impl Table {
    /// Reads a part of a file, split by time if rows have one, else by row.
    ///
    /// # Errors
    /// The first line that does not match the heading.
    pub fn parse(file: &str, text: &str, which: TraceSplit) -> Result<Table, TableError> {
        let located = |line: usize| move |problem| TableError { file: file.to_owned(), line, problem };
        let mut lines = text.lines().enumerate();
        let heading = lines.next().map(|(_, heading)| heading).unwrap_or_default();
        let columns = Columns::of(heading).map_err(located(1))?;
        let (mut rows, mut names) = (Vec::new(), Vec::new());
        for (at, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let (row, model) = parse_row(&columns, line.trim_end()).map_err(located(at + 1))?;
            rows.push(row);
            names.push(model);
        }
        if rows.is_empty() {
            return Err(located(1)("the file has no rows after the heading".to_owned()));
        }
        rank_models(&mut rows, &names);
        rows.sort_by_key(|row| row.at_ns);
        Ok(Table { rows: split_rows(rows, which) })
    }

    /// Returns requests per second from the first to the last row; a span of 0 counts as one second.
    pub fn mean_rate(&self) -> f64 {
        let at = |row: Option<&TraceRow>| row.and_then(|row| row.at_ns).unwrap_or(0);
        let span_ns = at(self.rows.last()) - at(self.rows.first());
        self.rows.len() as f64 / if span_ns == 0 { 1.0 } else { span_ns as f64 / 1e9 }
    }

    /// Whether all rows have arrival times.
    pub fn has_times(&self) -> bool {
        self.rows.iter().all(|row| row.at_ns.is_some())
    }
}

fn parse_row<'a>(columns: &Columns, line: &'a str) -> Result<(TraceRow, Option<&'a str>), String> {
    let cells: Vec<_> = line.split(',').collect();
    let cell = |at: usize| cells.get(at).copied().ok_or(format!("column {} is missing", at + 1));
    let tokens = |at: usize| -> Result<u32, String> {
        let text = cell(at)?;
        let tokens: u32 = text.parse().map_err(|_| format!("`{text}` is not a number of tokens"))?;
        Ok(tokens.max(1))
    };
    let lengths = Lengths { prompt: tokens(columns.prompt)?, output: tokens(columns.output)? };
    let at_ns = columns.time.map(|at| cell(at).and_then(time_ns)).transpose()?;
    let model = columns.model.map(cell).transpose()?;
    Ok((TraceRow { at_ns, lengths, model: None }, model))
}

/// Ranks the models: the one with the most requests is 0, ties are ordered by name.
fn rank_models(rows: &mut [TraceRow], names: &[Option<&str>]) {
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    names.iter().flatten().for_each(|name| *counts.entry(name).or_default() += 1);
    let mut ranked: Vec<_> = counts.into_iter().collect();
    ranked.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
    for (row, name) in rows.iter_mut().zip(names) {
        row.model = name.and_then(|name| ranked.iter().position(|(ranked, _)| *ranked == name));
    }
}

/// Parses seconds, or a date and time.
fn time_ns(text: &str) -> Result<u64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds >= 0.0);
    match seconds {
        Some(seconds) => Ok((seconds * 1e9).round() as u64),
        None => date_ns(text).ok_or(format!("`{text}` is not a time: write seconds, or YYYY-MM-DD hh:mm:ss")),
    }
}

fn date_ns(text: &str) -> Option<u64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let time = time.trim_end_matches('Z').split('+').next()?;
    let mut date = date.split('-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':');
    let (hour, minute) = (time.next()?.parse::<u64>().ok()?, time.next()?.parse::<u64>().ok()?);
    let second: f64 = time.next()?.parse().ok()?;
    let possible = (1970..2200).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let possible = possible && hour < 24 && minute < 60 && (0.0..61.0).contains(&second);
    let minutes = ((days(year, month, day).saturating_sub(days(1970, 1, 1))) * 24 + hour) * 60 + minute;
    possible.then(|| minutes * 60_000_000_000 + (second * 1e9).round() as u64)
}

/// Returns the days since 1 March of year 0 (Hinnant, "chrono-compatible low-level date algorithms").
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + of_year
}

/// Returns these rows of a file.
pub fn split_rows(rows: Vec<TraceRow>, which: TraceSplit) -> Vec<TraceRow> {
    if which == TraceSplit::All {
        return rows;
    }
    let held_back = which == TraceSplit::HeldBack;
    let timed = rows.iter().all(|row| row.at_ns.is_some());
    let (first, last) = (rows.first().and_then(|row| row.at_ns), rows.last().and_then(|row| row.at_ns));
    let (len, span_ns) = (rows.len(), last.unwrap_or(0) - first.unwrap_or(0));
    let is_late = |index: usize, row: &TraceRow| {
        if timed {
            (row.at_ns.unwrap_or(0) - first.unwrap_or(0)) * 3 >= span_ns * 2
        } else {
            index * 3 >= len * 2
        }
    };
    let rows = rows.into_iter().enumerate();
    rows.filter(|(index, row)| is_late(*index, row) == held_back).map(|(_, row)| row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
        2023-11-30 23:59:59.5000000,4808,10\n\
        2023-12-01 00:00:01.2500000,3180,8\n\
        2023-12-01 00:00:02.5,3180,0\n";

    #[test]
    fn dates_are_counted_across_months_and_leap_years() {
        assert_eq!(days(1970, 1, 2) - days(1970, 1, 1), 1);
        assert_eq!(days(2024, 3, 1) - days(2024, 2, 28), 2);
        assert_eq!(days(2023, 3, 1) - days(2023, 2, 28), 1);
        assert_eq!(days(2001, 1, 1) - days(2000, 1, 1), 366);
    }

    #[test]
    fn a_trace_is_read_by_its_heading_and_its_last_third_is_held_back_by_time() {
        let table = Table::parse("azure.csv", AZURE, TraceSplit::Shown).unwrap();
        let at: Vec<_> = table.rows.iter().map(|row| row.at_ns.unwrap()).collect();
        assert_eq!(at[1] - at[0], 1_750_000_000);
        assert_eq!(table.rows.len(), 2, "the third second of three");
        assert_eq!(table.rows[0].lengths, Lengths { prompt: 4808, output: 10 });
        let held = Table::parse("azure.csv", AZURE, TraceSplit::HeldBack).unwrap();
        assert_eq!(held.rows.len(), 1);
        assert_eq!(held.rows[0].lengths.output, 1, "each request has an output token");
    }

    #[test]
    fn lengths_are_held_back_by_row() {
        let text = "context_tokens,generated_tokens\n1,2\n3,4\n5,6\n";
        let prompts = |held| -> Vec<u32> {
            let table = Table::parse("l.csv", text, held).unwrap();
            assert!(!table.has_times());
            table.rows.iter().map(|row| row.lengths.prompt).collect()
        };
        assert_eq!((prompts(TraceSplit::Shown), prompts(TraceSplit::HeldBack)), (vec![1, 3], vec![5]));
        assert_eq!(prompts(TraceSplit::All), [1, 3, 5]);
    }

    #[test]
    fn models_are_ranked_by_their_requests() {
        let text = "arrival_s,model,context_tokens,generated_tokens\n0.0,b,1,1\n0.5,a,1,1\n0.7,c,1,1\n0.8,a,1,1\n9,a,1,1\n";
        let table = Table::parse("prism.csv", text, TraceSplit::Shown).unwrap();
        let models: Vec<_> = table.rows.iter().map(|row| row.model.unwrap()).collect();
        assert_eq!(models, [1, 0, 2, 0]);
        assert_eq!(table.rows[1].at_ns, Some(500_000_000));
    }

    #[test]
    fn burst_gpt_is_read_too() {
        let text =
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,x\n";
        let table = Table::parse("burst.csv", text, TraceSplit::HeldBack).unwrap_or_default();
        assert_eq!(table.rows[0].lengths, Lengths { prompt: 472, output: 18 });
    }

    #[test]
    fn an_error_names_file_and_line() {
        let error_of = |text: &str| Table::parse("d/t.csv", text, TraceSplit::Shown).unwrap_err().to_string();
        let lines = "context_tokens,generated_tokens\n1,2\n3,x\n";
        assert_eq!(error_of(lines), "d/t.csv:3: `x` is not a number of tokens");
        assert_eq!(error_of("context_tokens,generated_tokens\n1\n"), "d/t.csv:2: column 2 is missing");
        assert!(error_of("a,b\n").starts_with("d/t.csv:1: `a,b` has no column of prompt lengths"));
        assert!(
            error_of("context_tokens,generated_tokens\n").ends_with("the file has no rows after the heading")
        );
        let time = AZURE.replace("23:59:59", "25:59:59");
        assert!(error_of(&time).starts_with("d/t.csv:2: `2023-11-30 25:59:59.5000000` is not a time"));
    }
}
