//! Measures this machine, and the processor time that other programs use.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity};

/// Size of each of the two buffers of the measured copy, bytes: larger than caches.
const COPY_BYTES: usize = 64 << 20;
/// Duration of the copy measurement.
const COPY_DURATION: Duration = Duration::from_millis(800);

/// Measurements from before the first model was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineSpeed {
    /// Cores that this process may use.
    pub cores: u32,
    /// Copy rate of one thread, bytes per second: the best of several copies.
    pub copy_bytes_per_s: u64,
    /// Share of these cores that other programs used during the measurement, permille; `None` = unknown.
    pub other_cpu_permille: Option<u32>,
}

impl MachineSpeed {
    /// Measures for about a second. Blocks the thread.
    pub fn measure() -> MachineSpeed {
        let usage = CpuUsage::start();
        let copy_bytes_per_s = measure_copy_rate();
        MachineSpeed {
            cores: u32::try_from(usable_cores()).unwrap_or(u32::MAX),
            copy_bytes_per_s,
            other_cpu_permille: usage.other_cpu_permille(),
        }
    }
}

/// Returns the number of cores that this process may use, by its affinity and the quota of its control group.
fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Measures the copy rate of one thread, as the transfers of a sidecar copy. Disturbance only slows a copy, so the best
/// one
/// counts.
fn measure_copy_rate() -> u64 {
    let (from, mut to) = (vec![1_u8; COPY_BYTES], vec![2_u8; COPY_BYTES]);
    let (begun, mut best) = (Instant::now(), Duration::MAX);
    while best == Duration::MAX || begun.elapsed() < COPY_DURATION {
        let one = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        best = best.min(one.elapsed());
    }
    (COPY_BYTES as f64 / best.as_secs_f64().max(1e-9)) as u64
}

/// Processor time from its start on: that of this program with all its children, and that of all others.
#[derive(Debug)]
pub struct CpuUsage(Option<CpuTicks>);

/// Counters of the kernel, clock ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CpuTicks {
    /// Ticks of the cores that this process may use, idle or not.
    all: u64,
    /// Ticks in which these cores computed or a hypervisor withheld them.
    busy: u64,
    /// Ticks of each process of this program, by process id.
    own_by_pid: BTreeMap<u32, u64>,
}

impl CpuUsage {
    /// Starts counting.
    pub fn start() -> CpuUsage {
        CpuUsage(CpuTicks::now())
    }

    /// Returns the share of this process's cores that other programs used since the start, permille.
    /// `None` = unknown: the kernel does not report it, or a quota gives this process less than its cores.
    pub fn other_cpu_permille(&self) -> Option<u32> {
        self.0.as_ref()?.other_cpu_permille(&CpuTicks::now()?)
    }
}

impl CpuTicks {
    fn now() -> Option<CpuTicks> {
        let allowed = sched_getaffinity(None).ok()?;
        // With a quota of its control group, a process uses parts of many cores, and use of those by others is no loss
        // for it.
        if usable_cores() < allowed.count() as usize {
            return None;
        }
        let mine = |core| core < CpuSet::MAX_CPU && allowed.is_set(core);
        let (all, busy) = core_ticks(&std::fs::read_to_string("/proc/stat").ok()?, mine)?;
        let stats: Vec<_> =
            std::fs::read_dir("/proc").ok()?.filter_map(|entry| read_process(&entry.ok()?.path())).collect();
        Some(CpuTicks { all, busy, own_by_pid: descendant_ticks(&stats, std::process::id()) })
    }

    fn other_cpu_permille(&self, now: &CpuTicks) -> Option<u32> {
        let all = now.all.checked_sub(self.all).filter(|ticks| *ticks > 0)?;
        let busy = now.busy.saturating_sub(self.busy);
        // A process that started later counts from 0. A process that has ended is not counted, and few have.
        let own = now
            .own_by_pid
            .iter()
            .map(|(pid, ticks)| ticks - self.own_by_pid.get(pid).unwrap_or(&0).min(ticks))
            .sum();
        u32::try_from(busy.saturating_sub(own) * 1000 / all).ok()
    }
}

/// Sums all ticks and busy ticks of the cores that `mine` selects, by the lines `cpuN` of `/proc/stat`; `None` = there
/// are none
///.
fn core_ticks(stat: &str, mine: impl Fn(usize) -> bool) -> Option<(u64, u64)> {
    let line = |line: &str| {
        let (core, ticks) = line.strip_prefix("cpu")?.split_once(' ')?;
        let ticks: Vec<u64> = ticks.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user.
        let [user, nice, system, idle, iowait, irq, softirq, steal] = *ticks.first_chunk()?;
        let busy = user + nice + system + irq + softirq + steal;
        core.parse().is_ok_and(&mine).then_some((busy + idle + iowait, busy))
    };
    stat.lines().filter_map(line).reduce(|sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// One process: its id, the id of its parent, and its ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessTicks {
    pid: u32,
    parent: u32,
    ticks: u64,
}

fn read_process(folder: &std::path::Path) -> Option<ProcessTicks> {
    let pid = folder.file_name()?.to_str()?.parse().ok()?;
    // A process that ended since the folder was listed is skipped.
    parse(pid, &std::fs::read_to_string(folder.join("stat")).ok()?)
}

fn parse(pid: u32, stat: &str) -> Option<ProcessTicks> {
    // A name may contain spaces and brackets, so fields are counted after the last bracket, beginning with the state.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let children = number(13)? + number(14)?;
    Some(ProcessTicks {
        pid,
        parent: u32::try_from(number(1)?).ok()?,
        ticks: number(11)? + number(12)? + children,
    })
}

/// Returns the ticks of `root` and of all its descendants.
fn descendant_ticks(all: &[ProcessTicks], root: u32) -> BTreeMap<u32, u64> {
    let mut members = BTreeSet::from([root]);
    loop {
        let before = members.len();
        members.extend(
            all.iter().filter(|one| members.contains(&one.parent)).map(|one| one.pid).collect::<Vec<_>>(),
        );
        if members.len() == before {
            return all
                .iter()
                .filter(|one| members.contains(&one.pid))
                .map(|one| (one.pid, one.ticks))
                .collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_ticks_exclude_idle_of_usable_cores() {
        let stat = "cpu  99 9 9 99 9 9 9 9 9 0\ncpu0 10 1 5 80 4 2 3 5 7 0\ncpu1 0 0 0 7 0 0 0 0 0 0\ncpu12 1 0 0 1 0 0 0 0 0 0\nintr 1\n";
        assert_eq!(core_ticks(stat, |core| core == 0), Some((110, 26)));
        assert_eq!(core_ticks(stat, |core| core != 1), Some((112, 27)));
        assert_eq!(core_ticks(stat, |core| core == 2), None);
        assert_eq!(core_ticks("cpu0 10 1\n", |_| true), None);
    }

    #[test]
    fn descendants_include_whole_process_tree() {
        let stat = "9 (a) b) S 7 9 9 0 -1 0 0 0 0 0 30 4 2 1 20 0 1 0 5";
        assert_eq!(parse(9, stat), Some(ProcessTicks { pid: 9, parent: 7, ticks: 37 }));
        let one = |pid, parent, ticks| ProcessTicks { pid, parent, ticks };
        // A grandchild is listed before its parent.
        let all = [one(30, 20, 3), one(10, 1, 1), one(20, 10, 2), one(40, 1, 9)];
        assert_eq!(descendant_ticks(&all, 10), BTreeMap::from([(10, 1), (20, 2), (30, 3)]));
    }

    #[test]
    fn other_cpu_is_neither_idle_nor_own() {
        let begin = CpuTicks { all: 1000, busy: 500, own_by_pid: BTreeMap::from([(1, 100), (2, 50)]) };
        // 300 busy ticks of 1000, of which 100 belong to a process that existed at the start and 40 to a new one.
        let end = CpuTicks { all: 2000, busy: 800, own_by_pid: BTreeMap::from([(1, 200), (3, 40)]) };
        assert_eq!(begin.other_cpu_permille(&end), Some(160));
        assert_eq!(begin.other_cpu_permille(&begin), None, "no time has passed");
    }
}
