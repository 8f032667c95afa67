//! Who holds what of the GPU, as one line.

use std::io::{IsTerminal, Write};

use rustix::termios::tcgetwinsize;
use serde_json::Value;

/// Cells for the whole GPU, where the line has room for them and on the narrowest terminal.
const CELLS: u64 = 60;
const FEWEST_CELLS: u64 = 20;
/// Columns for names, requests and loans beside the cells.
const BESIDE: usize = 65;
/// Of a terminal that does not say how wide it is.
const USUAL_COLUMNS: usize = 80;
/// Letters of `sluice top`, and the owners behind each.
const OWNERS: [(char, &[&str]); 5] = [
    ('W', &["weights_global", "weights_layers"]),
    ('S', &["slots"]),
    ('K', &["kv"]),
    ('A', &["activation", "staging"]),
    ('.', &["free", "earmarked"]),
];

/// A line that is rewritten on a terminal, elsewhere appended when it has changed.
pub struct View {
    memory_bytes: u64,
    shown: String,
}

impl View {
    /// Of a GPU of so many bytes.
    pub fn new(memory_bytes: u64) -> View {
        println!(
            "  W weights  S slots  K KV  A activations  . free; then requests running+waiting, and who borrowed"
        );
        View { memory_bytes, shown: String::new() }
    }

    /// Shows the states of all tenants.
    pub fn show(&mut self, states: &[Value]) {
        let columns = columns();
        let line = fitted(self.memory_bytes, states, columns);
        if columns.is_some() {
            // The rest of a longer line goes.
            print!("\r{line}\x1b[K");
        } else if line != self.shown {
            println!("{line}");
        }
        self.shown = line;
        // A line that is shown late is no harm.
        let _ = std::io::stdout().flush();
    }
}

/// Width of the terminal; `None` = stdout is none. Asked each time: it may be made wider or narrower.
fn columns() -> Option<usize> {
    let stdout = std::io::stdout();
    let told = || tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col)).filter(|told| *told > 0);
    stdout.is_terminal().then(|| told().unwrap_or(USUAL_COLUMNS))
}

/// The line as `columns` have room for it. One that went on in a second row could not be rewritten, nor one that fills the
/// first: a terminal may go to the next row then.
fn fitted(memory_bytes: u64, states: &[Value], columns: Option<usize>) -> String {
    let Some(columns) = columns else { return line(memory_bytes, states, CELLS) };
    let cells = (columns.saturating_sub(BESIDE) as u64).clamp(FEWEST_CELLS, CELLS);
    line(memory_bytes, states, cells).chars().take(columns.saturating_sub(1)).collect()
}

fn line(memory_bytes: u64, states: &[Value], most_cells: u64) -> String {
    let tenants = states.iter().map(|state| {
        let name = state["tenant"]["name"].as_str().unwrap_or("?");
        format!("  {name} {}", bar(memory_bytes, state, most_cells))
    });
    tenants.chain(states.iter().filter_map(work)).collect()
}

/// A tenant's part of the GPU; what it has at all has a cell.
fn bar(memory_bytes: u64, state: &Value, most_cells: u64) -> String {
    let owners = &state["memory"]["owners"];
    let bytes = |names: &[&str]| {
        names.iter().filter_map(|name| owners[format!("{name}_bytes")].as_u64()).sum::<u64>()
    };
    let cells = |bytes: u64| match bytes {
        0 => 0,
        _ => (bytes * most_cells / memory_bytes.max(1)).clamp(1, most_cells),
    };
    OWNERS.iter().map(|(letter, names)| letter.to_string().repeat(cells(bytes(names)) as usize)).collect()
}

/// Requests of a tenant that has some, and what it has borrowed.
fn work(state: &Value) -> Option<String> {
    let (running, waiting) = (state["queue"]["running"].as_u64()?, state["queue"]["waiting"].as_u64()?);
    let mut lenders: Vec<(&str, u64)> = Vec::new();
    for grant in state["neighbourhood"]["grants"].as_array().into_iter().flatten() {
        let (name, bytes) = (grant["name"].as_str().unwrap_or("?"), grant["bytes"].as_u64().unwrap_or(0));
        match lenders.iter_mut().find(|(lender, _)| *lender == name) {
            _ if grant["direction"] != "Taken" => {}
            Some((_, sum)) => *sum += bytes,
            None => lenders.push((name, bytes)),
        }
    }
    if running + waiting == 0 && lenders.is_empty() {
        return None;
    }
    let mut text = format!("  {} {running}+{waiting}", state["tenant"]["name"].as_str().unwrap_or("?"));
    for (lender, bytes) in lenders {
        text += &format!(", {:.1} MiB of {lender}", bytes as f64 / (1 << 20) as f64);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `a` has borrowed from `b` and has a queue. The GPU has 60 bytes.
    fn states() -> [Value; 2] {
        let taken = |name: &str, bytes: u64| json!({"name": name, "bytes": bytes, "direction": "Taken"});
        let given = json!({"name": "a", "bytes": 3 << 20, "direction": "Given"});
        let state = |name: &str, kv: u64, waiting: u64, grants: Vec<Value>| {
            json!({"tenant": {"name": name}, "queue": {"running": 0, "waiting": waiting},
                "memory": {"owners": {"weights_layers_bytes": 20, "kv_bytes": kv, "free_bytes": 1}},
                "neighbourhood": {"grants": grants}})
        };
        let loans = vec![taken("b", 1 << 20), taken("b", 1 << 19)];
        [state("a", 10, 2, loans), state("b", 0, 0, vec![given])]
    }

    #[test]
    fn a_line_shows_parts_work_and_lenders() {
        let expected =
            format!("  a {}{}.  b {}.  a 0+2, 1.5 MiB of b", "W".repeat(20), "K".repeat(10), "W".repeat(20));
        assert_eq!(fitted(60, &states(), None), expected);
        assert_eq!(fitted(60, &states(), Some(BESIDE + 60)), expected);
    }

    #[test]
    fn a_line_stays_in_one_row_of_a_narrow_terminal() {
        let third = "W".repeat(6);
        assert_eq!(
            fitted(60, &states(), Some(80)),
            format!("  a {third}KKK.  b {third}.  a 0+2, 1.5 MiB of b")
        );
        for columns in 1..130 {
            let line = fitted(60, &states(), Some(columns));
            assert!(line.chars().count() < columns, "{columns}: {line}");
        }
    }
}
