//! Shows how the tenants use the GPU, as one line of the terminal, and prints a line per round.

use std::io::{IsTerminal, Write};

use sluice_page::text::formatting;
use sluice_wire::State;
use sluice_wire::state::{Direction, OwnerBytes};

use super::run_stats::Figures;
use crate::terminal;
use crate::up::output::print_line;

/// Cells of the memory bar of the whole GPU, where the line is wide enough.
const BAR_CELLS: u64 = 60;
const MIN_BAR_CELLS: u64 = 20;
/// Columns for names, requests and loans.
const TEXT_COLUMNS: usize = 65;
/// What the letters mean.
pub const LEGEND: &str =
    "W weights  S slots  K KV  A activations  . free; then requests running+waiting, and borrowed memory";

/// Standard output. On a terminal it also shows the current tenants, in a line that is rewritten.
pub struct LiveOutput {
    memory_bytes: u64,
}

impl LiveOutput {
    /// Creates the output for a GPU of `memory_bytes`.
    pub fn new(memory_bytes: u64) -> LiveOutput {
        if terminal_columns().is_some() {
            print_line(format_args!("  {LEGEND}"));
        }
        LiveOutput { memory_bytes }
    }

    /// Shows the tenants, if there is a terminal.
    pub fn show(&mut self, states: &[State]) {
        if let Some(columns) = terminal_columns() {
            rewrite_line(&fit_line(self.memory_bytes, states, columns));
        }
    }

    /// Prints the figures of a round.
    pub fn print_round(&mut self, number: usize, figures: &Figures) {
        let Figures { tokens_per_s, ttft_p99_ms, tbt_p99_ms } = figures;
        self.clear();
        print_line(format_args!(
            "  round {number:>2}: {tokens_per_s:>5.0} tokens/s, first token after {ttft_p99_ms:>5.0} ms, {tbt_p99_ms:>4.0} ms between tokens (P99)"
        ));
    }

    /// Erases the line of the tenants.
    pub fn clear(&mut self) {
        if terminal_columns().is_some() {
            rewrite_line("");
        }
    }
}

/// A run that a signal ends leaves no line of tenants to the messages that follow.
impl Drop for LiveOutput {
    fn drop(&mut self) {
        self.clear();
    }
}

fn rewrite_line(line: &str) {
    // A failed write is ignored. The rest of a longer previous line is erased.
    let mut stdout = std::io::stdout();
    let _ = write!(stdout, "\r{line}\x1b[K").and_then(|()| stdout.flush());
}

/// Returns the width of the terminal; `None` = stdout is no terminal.
fn terminal_columns() -> Option<usize> {
    std::io::stdout().is_terminal().then(|| terminal::columns().unwrap_or(terminal::DEFAULT_COLUMNS))
}

/// Fits the line into `columns`. A line that wraps cannot be rewritten, nor can one that
/// fills the row: a terminal may
/// then move to the next row.
fn fit_line(memory_bytes: u64, states: &[State], columns: usize) -> String {
    let cells = (columns.saturating_sub(TEXT_COLUMNS) as u64).clamp(MIN_BAR_CELLS, BAR_CELLS);
    let parts = states
        .iter()
        .map(|state| format!("  {} {}", state.tenant.name, memory_bar(memory_bytes, state, cells)));
    let line: String = parts.chain(states.iter().filter_map(request_summary)).collect();
    line.chars().take(columns.saturating_sub(1)).collect()
}

/// Returns a tenant's part of the GPU as cells. Each owner with any memory gets at least one cell.
fn memory_bar(memory_bytes: u64, state: &State, most_cells: u64) -> String {
    let OwnerBytes {
        weights_global_bytes,
        weights_layers_bytes,
        slots_bytes,
        kv_bytes,
        activation_bytes,
        staging_bytes,
        earmarked_bytes,
        free_bytes,
    } = state.memory.owners;
    let owners = [
        ('W', weights_global_bytes + weights_layers_bytes),
        ('S', slots_bytes),
        ('K', kv_bytes),
        ('A', activation_bytes + staging_bytes),
        ('.', free_bytes + earmarked_bytes),
    ];
    let cells = |bytes: u64| match bytes {
        0 => 0,
        _ => (bytes * most_cells / memory_bytes.max(1)).clamp(1, most_cells),
    };
    owners.iter().map(|(letter, bytes)| letter.to_string().repeat(cells(*bytes) as usize)).collect()
}

/// Describes the requests of a tenant, if any, and its loans.
fn request_summary(state: &State) -> Option<String> {
    let (running, waiting) = (state.queue.running, state.queue.waiting);
    let mut lenders: Vec<(&str, u64)> = Vec::new();
    for grant in state.peers.iter().flat_map(|all| &all.grants) {
        match lenders.iter_mut().find(|(lender, _)| *lender == grant.name) {
            _ if grant.direction != Direction::Borrowed => {}
            Some((_, sum)) => *sum += grant.bytes,
            None => lenders.push((&grant.name, grant.bytes)),
        }
    }
    if running + waiting == 0 && lenders.is_empty() {
        return None;
    }
    let borrowed: String = lenders
        .iter()
        .map(|(lender, bytes)| format!(", {} of {lender}", formatting::bytes(*bytes)))
        .collect();
    Some(format!("  {} {running}+{waiting}{borrowed}", state.tenant.name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `a` has borrowed from `b` and has a queue. The GPU has 60 bytes.
    fn states() -> [State; 2] {
        let grant = |name: &str, bytes: u64, direction: &str| {
            json!({"namespace": "n", "name": name, "direction": direction, "nonce": 1, "bytes": bytes,
                "expires_in_ms": 1})
        };
        let taken = |bytes: u64| grant("b", bytes, "Borrowed");
        let given = grant("a", 3 << 20, "Lent");
        let state = |name: &str, kv: u64, waiting: u64, grants: serde_json::Value| {
            let state = json!({"version": 2, "tenant": {"name": name}, "queue": {"running": 0, "waiting": waiting},
                "memory": {"owners": {"weights_layers_bytes": 20, "kv_bytes": kv, "free_bytes": 1}},
                "peers": {"grants": grants}});
            State::from_json(state.to_string().as_bytes()).unwrap()
        };
        [state("a", 10, 2, json!([taken(1 << 20), taken(1 << 19)])), state("b", 0, 0, json!([given]))]
    }

    #[test]
    fn line_shows_memory_requests_and_lenders() {
        let (weights, kv) = ("W".repeat(20), "K".repeat(10));
        let expected = format!("  a {weights}{kv}.  b {weights}.  a 0+2, 1.5 MiB of b");
        assert_eq!(fit_line(60, &states(), TEXT_COLUMNS + 60), expected);
        let third = "W".repeat(6);
        assert_eq!(fit_line(60, &states(), 80), format!("  a {third}KKK.  b {third}.  a 0+2, 1.5 MiB of b"));
    }

    #[test]
    fn line_fits_one_row_of_narrow_terminal() {
        for columns in 1..130 {
            let line = fit_line(60, &states(), columns);
            assert!(line.chars().count() < columns, "{columns}: {line}");
        }
    }
}
