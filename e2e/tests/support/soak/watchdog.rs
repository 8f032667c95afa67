//! Detects a tenant that has work and makes no progress, and reports the waits.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::SoakRun;
use super::finding::Finding;
use crate::support::processes;

/// Poll interval. Polls are counted, not time: after a stall of the machine the tenants need time.
const TICK: Duration = Duration::from_millis(100);
/// Polls without a token and without a step after which a tenant with open requests is stuck: 30 s.
const STUCK: u32 = 300;
/// Lines of a journal in the report.
const LINES: usize = 12;

/// Returns only when a tenant is stuck, with all available information.
pub async fn watch(stage: &SoakRun) -> Finding {
    let mut still = vec![(0, 0); stage.tenants.len()];
    loop {
        tokio::time::sleep(TICK).await;
        for (member, (beats, ticks)) in stage.tenants.iter().zip(&mut still) {
            let now = member.beats.load(Ordering::Relaxed);
            let idle = member.open.load(Ordering::Relaxed) == 0
                || member.sleep_requested.load(Ordering::Relaxed) > 0;
            // A process that is stopped by plan may hold resources of others.
            let looks = u32::from(stage.stopped.load(Ordering::Relaxed) == 0);
            *ticks = if idle || now != *beats { 0 } else { *ticks + looks };
            *beats = now;
            if *ticks >= STUCK {
                let text =
                    format!("{} has requests, and no step runs\n{}", member.name, report_stuck(stage).await);
                return Finding::Stuck(text);
            }
        }
    }
}

/// Waits until `done` holds, for a limited number of polls; returns whether it does.
pub async fn within(seconds: u32, mut done: impl AsyncFnMut() -> bool) -> bool {
    for _ in 0..seconds * 10 {
        if done().await {
            return true;
        }
        tokio::time::sleep(TICK).await;
    }
    done().await
}

/// Returns states, threads and the last lines of the journals.
pub async fn report_stuck(stage: &SoakRun) -> String {
    let mut text = String::new();
    for member in &stage.tenants {
        let state = tokio::time::timeout(Duration::from_secs(2), member.state()).await;
        text += &format!("{} {:?}\n", member.name, state.ok().flatten().map(|state| brief(&state)));
    }
    for pid in stage.run.processes() {
        text += &format!("{pid} {}\n", processes::name(pid));
        threads(pid).into_iter().for_each(|line| text += &format!("    {line}\n"));
    }
    for journal in journals(&stage.run.path("journals")) {
        let lines = std::fs::read(&journal).unwrap_or_default();
        let lines = String::from_utf8_lossy(&lines);
        let lines: Vec<_> = lines.lines().collect();
        text += &format!("{}:\n", journal.display());
        lines[lines.len().saturating_sub(LINES)..]
            .iter()
            .for_each(|line| text += &format!("    {line:.300}\n"));
    }
    text
}

/// Returns the part of a state about waiting.
pub fn brief(state: &sluice_wire::State) -> String {
    let (place, events) = (&state.peers, &state.figures.moves_total);
    format!(
        "{:?} {:?} engine {:?} steps {} remap {:?} kv {:?} memory {:?} {place:?} {:?} {events:?} moves {:?}",
        state.phase,
        state.queue,
        state.engine,
        state.figures.steps_total,
        state.remap,
        state.kv,
        state.memory,
        state.activity,
        &state.moves[state.moves.len().saturating_sub(3)..],
    )
}

fn threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let thread = |entry: std::io::Result<std::fs::DirEntry>| {
        let folder = entry.ok()?.path();
        let read = |name| std::fs::read_to_string(folder.join(name)).unwrap_or_default().trim().to_owned();
        let stat = read("stat");
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next()).unwrap_or("?");
        Some(format!("{} {state} {} {}", read("comm"), read("wchan"), read("syscall")))
    };
    tasks.filter_map(thread).collect()
}

/// Returns the journal files, including those of former instances.
pub fn journals(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
