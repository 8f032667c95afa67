//! Faults that a test injects into calls by name.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a function does instead of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fails with this code.
    Code(u32),
    /// Succeeds without doing anything.
    Drop,
}

/// The injected faults of a process.
#[derive(Debug, Default)]
pub struct InjectedFaults(Vec<InjectedFault>);

#[derive(Debug)]
struct InjectedFault {
    call: String,
    fault: Fault,
    /// The call that has the fault, counted from 1; `None`: every call.
    nth: Option<u64>,
    /// Calls so far.
    calls: AtomicU64,
}

impl InjectedFaults {
    /// Reads pairs of a call and `CODE`, `drop`, `CODE@N` or `drop@N`.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let injected = pairs.into_iter().map(|(call, what)| {
            let (fault, nth) =
                what.split_once('@').map_or((what.as_str(), None), |(fault, nth)| (fault, Some(nth)));
            let number =
                |text: &str| text.parse().unwrap_or_else(|_| panic!("{text} of {call} is not a number"));
            let nth = nth.map(number);
            let fault = if fault == "drop" { Fault::Drop } else { Fault::Code(number(fault) as u32) };
            InjectedFault { fault, nth, call, calls: AtomicU64::new(0) }
        });
        Self(injected.collect())
    }

    /// Counts a call. Returns its fault, if it has one.
    pub fn next(&self, call: &str) -> Option<Fault> {
        let mut fault = None;
        for injected in self.0.iter().filter(|injected| injected.call == call) {
            let number = injected.calls.fetch_add(1, Ordering::Relaxed) + 1;
            if injected.nth.is_none_or(|nth| nth == number) {
                fault = fault.or(Some(injected.fault));
            }
        }
        fault
    }
}

#[cfg(test)]
mod tests {
    use super::{Fault, InjectedFaults};

    #[test]
    fn a_fault_with_a_number_is_that_of_one_call() {
        let pairs = [("cuMemCreate", "2@3"), ("cuMemCreate", "drop@4"), ("cuMemMap", "801")];
        let faults = InjectedFaults::new(pairs.map(|(call, what)| (call.to_owned(), what.to_owned())));
        let met: Vec<_> = (0..5).map(|_| faults.next("cuMemCreate")).collect();
        assert_eq!(met, [None, None, Some(Fault::Code(2)), Some(Fault::Drop), None]);
        assert_eq!([(); 2].map(|()| faults.next("cuMemMap")), [Some(Fault::Code(801)); 2]);
        assert_eq!(faults.next("cuMemUnmap"), None);
    }
}
