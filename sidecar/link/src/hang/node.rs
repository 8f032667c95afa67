//! Stall times of a slow node, read from the kernel: run-queue waits, throttling of this control group, PSI.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// The watched process, by its id in `/proc`.
#[derive(Clone, Copy, Debug)]
pub struct WatchedProcess {
    pid: Option<u32>,
}

impl WatchedProcess {
    /// Finds the process of a pidfd. A process that has exited or is in another pid namespace has no id here.
    pub fn new(pidfd: BorrowedFd<'_>) -> WatchedProcess {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()));
        WatchedProcess { pid: info.ok().as_deref().and_then(pid_in) }
    }

    /// Whether `/proc` has the process under this id.
    pub fn has_pid(&self, pid: u32) -> bool {
        self.pid == Some(pid)
    }

    /// Returns how often its main thread was put on a CPU: constant while it sleeps or is stopped. `None` = unknown.
    pub fn run_count(&self) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.pid?)).ok()?;
        text.split_whitespace().nth(2)?.parse().ok()
    }

    /// Returns how long each of its threads was runnable and waited for a CPU.
    fn cpu_waits(&self) -> Option<BTreeMap<u32, Duration>> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid?)).ok()?;
        let waits = threads.flatten().filter_map(|thread| {
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            let ns = text.split_whitespace().nth(1)?.parse().ok()?;
            Some((thread.file_name().to_str()?.parse().ok()?, Duration::from_nanos(ns)))
        });
        Some(waits.collect::<BTreeMap<_, _>>()).filter(|waits| !waits.is_empty())
    }
}

fn pid_in(fdinfo: &str) -> Option<u32> {
    let line = fdinfo.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    line.trim().parse().ok().filter(|pid| *pid > 0)
}

/// Monotonic totals at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStallTimes {
    /// CPU wait of each thread of the process. If the kernel does not report it: CPU pressure of the node ("some"), as
    /// thread 0.
    pub cpu_waits: BTreeMap<u32, Duration>,
    /// Time in which this process's own control group had used up its CPU quota.
    pub throttled: Duration,
    /// Time in which some process waited for memory.
    pub memory: Duration,
    /// Time in which all processes waited for I/O.
    pub io: Duration,
}

impl NodeStallTimes {
    /// Reads the current totals. A total that the kernel does not report is 0.
    pub fn read(process: &WatchedProcess) -> NodeStallTimes {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let pressure = |what: &str, line| stall_total(&read(&format!("/proc/pressure/{what}")), line);
        NodeStallTimes {
            cpu_waits: process.cpu_waits().unwrap_or_else(|| BTreeMap::from([(0, pressure("cpu", "some"))])),
            throttled: throttled(&read("/sys/fs/cgroup/cpu.stat")),
            memory: pressure("memory", "some"),
            io: pressure("io", "full"),
        }
    }

    /// Returns the stall time since `before`. It can exceed the elapsed time because causes add up.
    pub fn stalled_since(&self, before: &NodeStallTimes) -> Duration {
        let waited = |(thread, now): (&u32, &Duration)| {
            // A new thread's total covers only the time since its start.
            now.saturating_sub(before.cpu_waits.get(thread).copied().unwrap_or_default())
        };
        let cpu = self.cpu_waits.iter().map(waited).max().unwrap_or_default();
        let throttled = self.throttled.saturating_sub(before.throttled);
        let memory = self.memory.saturating_sub(before.memory);
        cpu.max(throttled) + memory + self.io.saturating_sub(before.io)
    }
}

/// Returns `total` of a line of a pressure file, which is in microseconds.
fn stall_total(text: &str, line: &str) -> Duration {
    let fields =
        text.lines().find(|found| found.starts_with(line)).into_iter().flat_map(str::split_whitespace);
    microseconds(fields.filter_map(|field| field.strip_prefix("total=")).next())
}

fn throttled(cpu_stat: &str) -> Duration {
    microseconds(cpu_stat.lines().find_map(|line| line.strip_prefix("throttled_usec ")))
}

fn microseconds(digits: Option<&str>) -> Duration {
    digits.and_then(|digits| digits.trim().parse().ok()).map_or(Duration::ZERO, Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open};

    use super::*;

    #[test]
    fn kernel_stat_files_are_parsed() {
        let cpu = "some avg10=0.12 avg60=0.05 avg300=0.01 total=123456\nfull avg10=0.00 total=7\n";
        assert_eq!(stall_total(cpu, "some"), Duration::from_micros(123_456));
        assert_eq!(stall_total(cpu, "full"), Duration::from_micros(7));
        assert_eq!(stall_total("", "some"), Duration::ZERO, "a kernel without PSI");
        let stat = "usage_usec 9\nnr_throttled 3\nthrottled_usec 4500\n";
        assert_eq!(throttled(stat), Duration::from_micros(4500));
        assert_eq!(pid_in("pos:\t0\nflags:\t02\nPid:\t4711\nNSpid:\t4711\n"), Some(4711));
        assert_eq!(pid_in("Pid:\t-1\n"), None, "dead");
        assert_eq!(pid_in("Pid:\t0\n"), None, "of another namespace");
    }

    #[test]
    fn stall_causes_add_up_and_throttling_is_cpu_wait() {
        let ms = Duration::from_millis;
        let cpu_waits = BTreeMap::from([(1, ms(1000)), (2, ms(30))]);
        let times = NodeStallTimes { cpu_waits, throttled: ms(50), memory: ms(5), io: ms(7) };
        let others =
            NodeStallTimes { cpu_waits: BTreeMap::from([(1, ms(1000))]), ..NodeStallTimes::default() };
        assert_eq!(times.stalled_since(&others), ms(62), "the thread that waited at that time counts");
        assert_eq!(NodeStallTimes::default().stalled_since(&times), Duration::ZERO);
    }

    #[test]
    fn stopped_process_makes_no_cpu_progress() {
        let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let Some(before) = WatchedProcess::new(own.as_fd()).run_count() else {
            println!("skipped: this kernel has no schedstat");
            return;
        };
        std::thread::sleep(Duration::from_millis(1));
        assert!(WatchedProcess::new(own.as_fd()).run_count().is_some_and(|runs| runs >= before));
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let watched = WatchedProcess::new(pidfd.as_fd());
        assert!(watched.has_pid(child.id()));
        kill_process(pid, Signal::STOP).unwrap();
        while !fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
        let runs = watched.run_count();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(watched.run_count(), runs, "stopped");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
