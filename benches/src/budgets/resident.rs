//! Resident memory of a sidecar except weights, KV and tokenizer, without an open stream.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::tenant::{Burst, start};
use super::verdict::BudgetCheck;
use crate::tenant::{BenchEnv, Tenant};

const LIMIT_MIB: f64 = 64.0;
/// Device memory, host's chunks: weights on the device, KV, activations.
const CHUNKS: &str = "/memfd:sluice-chunks";
/// The master copy may be larger than its slabs by a page each; no other mapping is taken for it.
const SLACK_KIB: u64 = 1024;

/// 24 layers of 3.1 MiB: large enough to be distinguished from the rest.
#[rustfmt::skip]
pub const MODEL: &[&str] = &[
    "--layers", "24", "--hidden", "384", "--heads", "6", "--kv-heads", "3", "--intermediate", "1024",
    "--vocab", "512", "--max-positions", "512",
];

/// Measures after one request was served, so that what serving touches for the first time is counted.
pub fn measure(world: &BenchEnv) -> Result<Vec<BudgetCheck>> {
    let tenant = start(world, "Oneiros")?;
    // Nothing has been copied yet but each slab once.
    let weights_kib =
        tenant.state()?["figures"]["copied_bytes_total"].as_u64().context("no copied bytes")? >> 10;
    eprintln!("serving one request, then reading the mappings of the sidecar");
    Burst { requests: 1, prompt_tokens: 32, tokens: 160 }.send(world, &tenant)?;
    wait_for_no_stream(&tenant)?;
    let file = format!("/proc/{}/smaps", tenant.pid()?);
    let resident = Resident::read(&std::fs::read_to_string(&file).context(file)?)?;
    Ok(vec![verdict(&resident, weights_kib)?])
}

fn wait_for_no_stream(tenant: &Tenant) -> Result<()> {
    let begun = Instant::now();
    while tenant.state()?["streams"]["open"] != 0 {
        ensure!(begun.elapsed() < Duration::from_secs(10), "a stream stays open");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn verdict(resident: &Resident, weights_kib: u64) -> Result<BudgetCheck> {
    let Resident { master_kib, rest_kib, .. } = *resident;
    ensure!(
        (weights_kib..=weights_kib + SLACK_KIB).contains(&master_kib),
        "read-only anonymous mappings have {master_kib} KiB, the master copy has {weights_kib} KiB: they are not the same"
    );
    let name = "resident memory of the sidecar, no stream";
    Ok(BudgetCheck::at_most(name, rest_kib as f64 / 1024.0, "MiB", LIMIT_MIB).with(detail(resident)))
}

fn detail(resident: &Resident) -> Value {
    json!({
        "rss_kib": resident.chunks_kib + resident.master_kib + resident.rest_kib,
        "subtracted_kib": {
            "device chunks (memfd sluice-chunks)": resident.chunks_kib,
            "master copy (read-only anonymous mappings)": resident.master_kib,
        },
        "left_kib": resident.rest_kib,
        "note": "the tokenizer, byte-level with 512 tokens, is below 1 MiB and not subtracted",
    })
}

/// Resident KiB of a sidecar by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Resident {
    /// Shared mappings of the chunks that stand for the device's memory.
    chunks_kib: u64,
    /// Private read-only memory without a file: the master copy of the weights, once it is frozen.
    master_kib: u64,
    /// All the rest: what the budget is about.
    rest_kib: u64,
}

impl Resident {
    /// Reads `/proc/PID/smaps`.
    fn read(smaps: &str) -> Result<Resident> {
        let mut sums = Resident::default();
        let mut mapping = None;
        for line in smaps.lines() {
            if let Some(rss) = line.strip_prefix("Rss:") {
                let kib: u64 = rss.trim().trim_end_matches(" kB").parse().context("Rss")?;
                *sums.of(mapping.context("an Rss of no mapping")?) += kib;
            } else if let Some(header) = Header::read(line) {
                mapping = Some(header);
            }
        }
        ensure!(mapping.is_some(), "no mapping: the sidecar has ended");
        Ok(sums)
    }

    fn of(&mut self, mapping: Header) -> &mut u64 {
        match mapping {
            Header { path, .. } if path.starts_with(CHUNKS) => &mut self.chunks_kib,
            Header { protection: "r--p", path: "" } => &mut self.master_kib,
            _ => &mut self.rest_kib,
        }
    }
}

/// First line of a mapping: addresses, protection, offset, device, inode, path.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Header<'a> {
    protection: &'a str,
    path: &'a str,
}

impl Header<'_> {
    fn read(line: &str) -> Option<Header<'_>> {
        let mut words = line.split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let hexadecimal = |text: &str| u64::from_str_radix(text, 16).is_ok();
        let protection = words.next().filter(|word| word.len() == 4)?;
        let path = words.nth(3).unwrap_or_default();
        (hexadecimal(from) && hexadecimal(to)).then_some(Header { protection, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
5593a8d24000-5593a8fc5000 r--p 00000000 fe:00 5376525                    /opt/sluice-sidecar
Size:               2692 kB
Rss:                1812 kB
VmFlags: rd mr mw me
7ff067000000-7ff077000000 rw-s 00000000 00:01 5                          /memfd:sluice-chunks (deleted)
Rss:              262144 kB
Pss:              131072 kB
7ff07739c000-7ff078000000 r--p 00000000 00:00 0
Rss:               76516 kB
7ff084000000-7ff0840a7000 rw-p 00000000 00:00 0
Rss:                1104 kB
7ff091944000-7ff091948000 r--p 00000000 00:00 0                          [vvar]
Rss:                   4 kB
7ff090daa000-7ff090e4d000 rw-s 00000000 00:01 4                          /memfd:sluice-tables (deleted)
Rss:                  80 kB
";

    #[test]
    fn chunks_and_master_copy_are_distinguished() {
        let expected = Resident { chunks_kib: 262_144, master_kib: 76_516, rest_kib: 1812 + 1104 + 4 + 80 };
        assert_eq!(Resident::read(SMAPS).unwrap(), expected);
        assert!(Resident::read("").is_err());
    }

    #[test]
    fn only_what_is_as_large_as_the_weights_is_taken_for_the_master_copy() {
        let resident = Resident { chunks_kib: 0, master_kib: 5000, rest_kib: 65 * 1024 };
        let verdict = |weights_kib| verdict(&resident, weights_kib);
        let found = verdict(4990).unwrap();
        assert!(!found.passed && found.value == Some(65.0), "{found:?}");
        assert!(verdict(5001).is_err(), "some of the master copy is elsewhere");
        assert!(verdict(5000 - SLACK_KIB - 1).is_err(), "something else is read-only, too");
    }
}
