//! The device's position in its machine: the processors near it, and its link.

use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sluice_common::text::ranges;

use crate::Error;
use crate::bench::Bench;
use crate::results::Findings;

/// Pins this thread to the allowed processors near the device, so that its host memory is near the device as well. Adds
/// notes about the result and the link.
pub fn pin_to_device_node(bench: &Bench, findings: &mut Findings<'_>) -> Result<(), Error> {
    let pci = bench.device.pci()?.to_lowercase();
    let folder = Path::new("/sys/bus/pci/devices").join(&pci);
    let read = |name: &str| Some(std::fs::read_to_string(folder.join(name)).ok()?.trim().to_owned());
    let near = read("local_cpulist").map(|list| (pin(&processors(&list)), list));
    findings.notes.push(match near {
        Some((Ok(true), list)) => format!("measured on the processors near the device, {list}"),
        Some((Ok(false), list)) => {
            format!("not measured near the device: its processors, {list}, are not allowed for this process")
        }
        Some((Err(error), list)) => format!("not measured near the device ({list}): {error}"),
        None => "the processors near the device are not known".into(),
    });
    let node =
        read("numa_node").filter(|node| !node.starts_with('-')).map(|node| format!("NUMA node {node}"));
    let link = |when: &str| {
        let (speed, width) = (format!("{when}_link_speed"), format!("{when}_link_width"));
        Some(format!("{when} link {} x{}", read(&speed)?, read(&width)?))
    };
    let details: Vec<String> = [node, link("current"), link("max")].into_iter().flatten().collect();
    findings.notes.extend((!details.is_empty()).then(|| format!("the device: {}", details.join(", "))));
    Ok(())
}

/// Pins this thread to the allowed ones of these processors. Returns `false` if none is allowed.
fn pin(wanted: &[usize]) -> Result<bool, Error> {
    let allowed = sched_getaffinity(None).map_err(Error::kernel("sched_getaffinity"))?;
    let mut set = CpuSet::new();
    let usable = wanted.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU && allowed.is_set(**cpu));
    usable.for_each(|cpu| set.set(*cpu));
    if set.count() == 0 {
        return Ok(false);
    }
    sched_setaffinity(None, &set).map_err(Error::kernel("sched_setaffinity")).map(|()| true)
}

/// Parses a list such as `0-3,8`.
fn processors(list: &str) -> Vec<usize> {
    ranges(list).flatten().flatten().map(|processor| processor as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read_as_the_kernel_writes_them() {
        assert_eq!(processors("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(processors("7"), [7]);
        assert_eq!(processors(""), [0; 0]);
    }

    #[test]
    fn thread_stays_on_allowed_processors() {
        std::thread::spawn(|| {
            let allowed = sched_getaffinity(None).expect("the kernel says");
            let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("there is one");
            assert!(pin(&[first]).expect("it may be used"));
            assert_eq!(sched_getaffinity(None).expect("the kernel says").count(), 1);
            assert!(!pin(&[]).expect("nothing is asked"));
        })
        .join()
        .expect("the thread ends");
    }
}
