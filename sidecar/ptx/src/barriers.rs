//! The 16 barriers of a block.

use crate::check::clocks::Knowledge;
use crate::fault::FaultKind;

/// What a barrier does, in `Instruction::detail`; 0 is `sync`.
pub(crate) const ARRIVE: u32 = 1;
pub(crate) const COUNT: u32 = 2;
pub(crate) const AND: u32 = 3;
pub(crate) const OR: u32 = 4;
/// Added to a reduction whose predicate is negated.
pub(crate) const NOT: u32 = 8;

/// A warp at a barrier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub warp: usize,
    /// The place of the barrier.
    pub pc: u32,
    /// What it does, as the decoder has noted.
    pub detail: u32,
    /// Lanes that have arrived.
    pub lanes: u32,
    /// Lanes whose predicate is true, for reductions.
    pub predicate: u32,
}

/// The threads that wait at one barrier.
#[derive(Default)]
pub(crate) struct Barrier {
    pub arrivals: Vec<Arrival>,
    /// Threads that must arrive; `None` for all of the block.
    pub count: Option<u32>,
    /// What those who have arrived know, in checked mode.
    pub knowledge: Knowledge,
}

/// All barriers of a block.
#[derive(Default)]
pub(crate) struct Barriers {
    all: [Barrier; 16],
}

impl Barriers {
    /// A warp arrives at barrier `number`; `count` is what the instruction says, `threads` the size of the block.
    ///
    /// # Errors
    /// A number or count that PTX does not allow. Warps that count differently cannot both be right.
    pub fn arrive(
        &mut self,
        number: u32,
        count: Option<u32>,
        threads: u32,
        arrival: Arrival,
    ) -> Result<&mut Barrier, FaultKind> {
        check_barrier(number, count.unwrap_or(32), threads)?;
        let barrier = &mut self.all[number as usize];
        if !barrier.arrivals.is_empty() && barrier.count != count {
            return Err(FaultKind::BadBarrier { barrier: number, count: count.unwrap_or(threads) });
        }
        barrier.count = count;
        barrier.arrivals.push(arrival);
        Ok(barrier)
    }

    /// Takes the barriers that are complete; `live` is the number of threads that have not ended, in whole warps.
    pub fn complete(&mut self, live: u32) -> Vec<Barrier> {
        let complete = |barrier: &&mut Barrier| {
            !barrier.arrivals.is_empty()
                && barrier.arrivals.len() as u32 * 32 >= barrier.count.unwrap_or(live)
        };
        self.all.iter_mut().filter(complete).map(std::mem::take).collect()
    }

    /// A barrier that warps wait at: its number, threads that have arrived and that must, and the first arrival.
    pub fn incomplete(&self, live: u32) -> (u32, u32, u32, Option<Arrival>) {
        let waiting = self.all.iter().enumerate().find(|(_, barrier)| !barrier.arrivals.is_empty());
        waiting.map_or((0, 0, 0, None), |(number, barrier)| {
            let arrived = barrier.arrivals.len() as u32 * 32;
            (number as u32, arrived, barrier.count.unwrap_or(live), barrier.arrivals.first().copied())
        })
    }
}

impl Barrier {
    /// What a reduction of all arrivals gives, if this is one.
    pub fn reduction(&self, detail: u32) -> Option<u32> {
        let votes = self.arrivals.iter().map(|arrival| {
            let negated = if arrival.detail & NOT != 0 { u32::MAX } else { 0 };
            ((arrival.predicate ^ negated) & arrival.lanes, arrival.lanes)
        });
        match detail & !NOT {
            COUNT => Some(votes.map(|(yes, _)| yes.count_ones()).sum()),
            AND => Some(u32::from(votes.fold(true, |all, (yes, lanes)| all & (yes == lanes)))),
            OR => Some(u32::from(votes.fold(false, |any, (yes, _)| any | (yes != 0)))),
            _ => None,
        }
    }
}

/// A barrier that PTX does not allow.
fn check_barrier(barrier: u32, count: u32, threads: u32) -> Result<(), FaultKind> {
    if barrier >= 16 || count == 0 || !count.is_multiple_of(32) || count > threads.next_multiple_of(32) {
        return Err(FaultKind::BadBarrier { barrier, count });
    }
    Ok(())
}
