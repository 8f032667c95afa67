//! Arrivals and lengths of requests, drawn or from a file.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use sluice_common::random::Rng;

/// When requests arrive.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// All at once.
    Burst,
    /// Gamma-distributed gaps: requests per second and coefficient of variation (1 = Poisson).
    Gamma {
        /// Requests per second.
        rate: f64,
        /// Coefficient of variation of the gaps.
        cv: f64,
    },
    /// A fixed gap, seconds.
    Every(f64),
    /// The arrivals of a trace, sped up by this factor.
    Trace(PathBuf, f64),
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |t: &str| {
            let n = t.parse::<f64>().ok().filter(|n| *n > 0.0 && n.is_finite());
            n.ok_or_else(|| format!("`{t}` is not a positive number"))
        };
        match text.split(':').collect::<Vec<_>>()[..] {
            ["burst"] => Ok(Arrivals::Burst),
            ["poisson", rate] => Ok(Arrivals::Gamma { rate: number(rate)?, cv: 1.0 }),
            ["gamma", rate, cv] => Ok(Arrivals::Gamma { rate: number(rate)?, cv: number(cv)? }),
            ["every", gap] => Ok(Arrivals::Every(number(gap)?)),
            ["trace", file] => Ok(Arrivals::Trace(file.into(), 1.0)),
            ["trace", file, speedup] => Ok(Arrivals::Trace(file.into(), number(speedup)?)),
            _ => {
                Err("expected burst, poisson:RATE, gamma:RATE:CV, every:SECONDS or trace:FILE[:SPEEDUP]"
                    .into())
            }
        }
    }
}

/// Message for a text that has neither form.
const LENGTHS_SYNTAX: &str =
    "expected PROMPT:OUTPUT (such as 64:64 or 16-64:32-128) or a CSV file, and no such file exists";

/// Lengths of prompts and outputs.
#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    /// Uniform in both ranges, inclusive.
    Uniform((u32, u32), (u32, u32)),
    /// Rows of a CSV file, in order.
    File(PathBuf),
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if Path::new(text).exists() {
            return Ok(Lengths::File(text.into()));
        }
        let (prompt, output) = text.split_once(':').ok_or(LENGTHS_SYNTAX)?;
        Ok(Lengths::Uniform(parse_range(prompt)?, parse_range(output)?))
    }
}

fn parse_range(text: &str) -> Result<(u32, u32), String> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let count =
        |t: &str| t.parse::<u32>().ok().filter(|n| *n > 0).ok_or_else(|| format!("`{t}` is not a count"));
    let (low, high) = (count(low)?, count(high)?);
    if low > high { Err(format!("{low} is above {high}")) } else { Ok((low, high)) }
}

/// Returns when each request arrives, in seconds.
///
/// # Errors
/// The file cannot be read or lacks the column.
pub fn sample_arrivals(arrivals: &Arrivals, count: usize, rng: &mut Rng) -> anyhow::Result<Vec<f64>> {
    let mut at = 0.0;
    let mut gaps = |gap: &mut dyn FnMut(&mut Rng) -> f64| {
        let next = |_| {
            let now = at;
            at += gap(rng);
            now
        };
        (0..count).map(next).collect::<Vec<_>>()
    };
    Ok(match arrivals {
        Arrivals::Burst => vec![0.0; count],
        Arrivals::Every(gap) => gaps(&mut |_| *gap),
        Arrivals::Gamma { rate, cv } => {
            let shape = 1.0 / (cv * cv);
            gaps(&mut |rng| gamma(rng, shape) / (shape * rate))
        }
        Arrivals::Trace(path, speedup) => {
            let times = CsvTable::read(path)?.times()?;
            let first = times.first().copied().unwrap_or_default();
            times.into_iter().take(count).map(|t| (t - first).max(0.0) / speedup).collect()
        }
    })
}

/// Returns the tokens of each prompt and of its answer.
///
/// # Errors
/// The file cannot be read or lacks the columns.
pub fn sample_lengths(lengths: &Lengths, count: usize, rng: &mut Rng) -> anyhow::Result<Vec<(u32, u32)>> {
    match lengths {
        Lengths::Uniform(prompt, output) => {
            let mut within = |(low, high): (u32, u32)| rng.between(low.into(), high.into()) as u32;
            Ok((0..count).map(|_| (within(*prompt), within(*output))).collect())
        }
        Lengths::File(path) => {
            let rows = CsvTable::read(path)?.lengths()?;
            Ok(rows.into_iter().cycle().take(count).collect())
        }
    }
}

/// A CSV file with a header and no quoting, the format of published request traces.
struct CsvTable {
    path: PathBuf,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl CsvTable {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let split = |line: &str| line.split(',').map(|f| f.trim().to_owned()).collect::<Vec<_>>();
        let mut lines = text.lines().filter(|l| !l.trim().is_empty()).map(split);
        let header = lines.next().unwrap_or_default();
        let rows: Vec<_> = lines.collect();
        if rows.is_empty() {
            bail!("{}: no rows", path.display());
        }
        Ok(CsvTable { path: path.to_owned(), header, rows })
    }

    fn column(&self, names: &[&str]) -> anyhow::Result<usize> {
        let found = self.header.iter().position(|h| names.iter().any(|n| h.eq_ignore_ascii_case(n)));
        found.with_context(|| format!("{}: no column {}", self.path.display(), names.join(" or ")))
    }

    fn parse<T>(&self, names: &[&str], parse: impl Fn(&str) -> Option<T>) -> anyhow::Result<Vec<T>> {
        let column = self.column(names)?;
        let cell = |(i, row): (usize, &Vec<String>)| {
            let text = row.get(column).map_or("", String::as_str);
            parse(text)
                .with_context(|| format!("{}:{}: `{text}` is not a {}", self.path.display(), i + 2, names[0]))
        };
        self.rows.iter().enumerate().map(cell).collect()
    }

    fn lengths(&self) -> anyhow::Result<Vec<(u32, u32)>> {
        let count = |t: &str| t.parse::<u32>().ok();
        let prompts = self.parse(&["context_tokens", "ContextTokens", "num_prefill_tokens"], count)?;
        let outputs = self.parse(&["generated_tokens", "GeneratedTokens", "num_decode_tokens"], count)?;
        Ok(prompts.into_iter().zip(outputs).collect())
    }

    /// Returns the arrival times in seconds since an arbitrary origin, ascending.
    fn times(&self) -> anyhow::Result<Vec<f64>> {
        let mut times = self.parse(&["arrival_s", "TIMESTAMP", "arrived_at"], |t| {
            t.parse().ok().or_else(|| parse_timestamp(t))
        })?;
        times.sort_by(f64::total_cmp);
        Ok(times)
    }
}

/// Parses `YYYY-MM-DD HH:MM:SS.fraction` into seconds. Days count from the first of the month; no trace crosses a month
/// twice.
fn parse_timestamp(text: &str) -> Option<f64> {
    let (date, time) = text.split_once(' ')?;
    let day: f64 = date.rsplit('-').next()?.parse().ok()?;
    let parts: Vec<f64> = time.split(':').map(|p| p.parse().ok()).collect::<Option<_>>()?;
    let [hours, minutes, seconds] = parts[..] else { return None };
    Some(((day * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds)
}

/// Returns a number in (0, 1].
fn unit_f64(rng: &mut Rng) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

fn normal(rng: &mut Rng) -> f64 {
    (-2.0 * unit_f64(rng).ln()).sqrt() * (std::f64::consts::TAU * unit_f64(rng)).cos()
}

/// Draws from the gamma distribution with scale 1 (Marsaglia and Tsang, ACM TOMS 26, 2000). Below shape 1 it uses
/// their boost.
fn gamma(rng: &mut Rng, shape: f64) -> f64 {
    if shape < 1.0 {
        return gamma(rng, shape + 1.0) * unit_f64(rng).powf(1.0 / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && unit_f64(rng).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gamma_gaps_have_the_asked_rate_and_spread() {
        for cv in [0.5, 1.0, 4.0] {
            let times =
                sample_arrivals(&Arrivals::Gamma { rate: 10.0, cv }, 40_000, &mut Rng::new(7)).unwrap();
            let gaps: Vec<_> = times.windows(2).map(|w| w[1] - w[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean - 0.1).abs() < 0.01, "mean {mean} at cv {cv}");
            assert!(
                (variance.sqrt() / mean / cv - 1.0).abs() < 0.15,
                "cv {} for {cv}",
                variance.sqrt() / mean
            );
        }
    }

    #[test]
    fn lengths_are_two_ranges_or_an_existing_file() {
        assert_eq!("16-64:32".parse(), Ok(Lengths::Uniform((16, 64), (32, 32))));
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(path.parse(), Ok(Lengths::File(path.into())));
        let refused = "16".parse::<Lengths>().unwrap_err();
        assert!(refused.contains("PROMPT:OUTPUT") && refused.contains("CSV file"), "{refused}");
    }

    #[test]
    fn trace_file_sets_gaps_and_lengths() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.5,48,10\n2023-11-16 18:17:05.0,31,8\n";
        std::fs::write(file.path(), rows).unwrap();
        let trace = Arrivals::Trace(file.path().into(), 3.0);
        assert_eq!(sample_arrivals(&trace, 9, &mut Rng::new(1)).unwrap(), [0.0, 0.5]);
        assert_eq!(
            sample_lengths(&Lengths::File(file.path().into()), 3, &mut Rng::new(1)).unwrap(),
            [(48, 10), (31, 8), (48, 10)]
        );
    }

    #[test]
    fn bad_files_are_named_with_line_and_column() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "context_tokens,generated_tokens\n4,x\n").unwrap();
        let message = format!("{:#}", CsvTable::read(file.path()).unwrap().lengths().unwrap_err());
        assert!(message.ends_with(":2: `x` is not a generated_tokens"), "{message}");
    }
}
