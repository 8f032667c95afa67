//! Measurement 2: what it costs to create, map, unmap and export memory, and to grow.

use sluice_probe::Error;
use sluice_probe::bench::Bench;
use sluice_probe::checks::{Check, handles};
use sluice_probe::report::Answer;
use sluice_probe::results::Findings;

/// Measurement 2.
pub const CHECK: Check = Check {
    id: 2,
    name: "memory",
    text: "Chunks created, exported, mapped and unmapped; growing by 100 x 2 MiB; chunks of a peer; contexts",
    ask,
    ..handles::CHECK
};

/// The probe's check, whose answer is a limit here.
fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    (handles::CHECK.ask)(bench, findings).map(|_| Answer::Yes)
}
