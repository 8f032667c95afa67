//! How long tests take: read from what their programs print, and shown at the end.

use std::fmt;
use std::io::{BufRead, Write as _};

use anyhow::Result;

/// Tests shown at the end.
const SHOWN: usize = 15;
/// Tests shorter than this are never shown, seconds.
const SHORTEST_S: f64 = 1.0;

/// Seconds of tests, with their names.
#[derive(Debug, Default)]
pub struct Times(Vec<(f64, String)>);

impl Times {
    /// Adds the times of another program.
    pub fn extend(&mut self, other: Times) {
        self.0.extend(other.0);
    }

    /// Copies what a program of tests prints to stdout, and notes the time of each test.
    pub fn copy(&mut self, title: &str, mut printed: impl BufRead) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let mut line = Vec::new();
        while printed.read_until(b'\n', &mut line)? > 0 {
            out.write_all(&line)?;
            if let Some((seconds, test)) = timed(&String::from_utf8_lossy(&line)) {
                self.0.push((seconds, format!("{title} {test}")));
            }
            line.clear();
        }
        Ok(())
    }
}

/// The time and the name in a line like `test a::b ... ok <1.234s>`.
fn timed(line: &str) -> Option<(f64, &str)> {
    let (test, rest) = line.trim_end().strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = rest.strip_suffix("s>")?.rsplit_once('<')?.1;
    Some((seconds.parse().ok()?, test))
}

impl fmt::Display for Times {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut longest: Vec<_> = self.0.iter().filter(|(seconds, _)| *seconds >= SHORTEST_S).collect();
        longest.sort_by(|a, b| b.0.total_cmp(&a.0));
        if longest.is_empty() {
            return Ok(());
        }
        writeln!(out, "== tests that took longest, seconds")?;
        longest.iter().take(SHOWN).try_for_each(|(seconds, test)| writeln!(out, "{seconds:8.1} {test}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Times, timed};

    #[test]
    fn times_are_read_from_lines_of_finished_tests() {
        assert_eq!(timed("test a::b ... ok <1.250s>\n"), Some((1.25, "a::b")));
        assert_eq!(
            timed("test a::b - should panic ... FAILED <0.001s>"),
            Some((0.001, "a::b - should panic"))
        );
        assert_eq!(timed("test a::b ... ignored"), None);
        assert_eq!(timed("running 3 tests"), None);
    }

    #[test]
    fn longest_tests_come_first_and_short_ones_are_left_out() {
        let mut times = Times::default();
        let printed = b"test a ... ok <2.000s>\ntest b ... ok <0.500s>\ntest c ... ok <3.000s>\n";
        times.copy("p main", &printed[..]).expect("it is copied");
        let lines = times.to_string();
        let lines: Vec<_> = lines.lines().skip(1).map(str::trim).collect();
        assert_eq!(lines, ["3.0 p main c", "2.0 p main a"]);
    }
}
