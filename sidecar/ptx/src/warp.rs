//! One warp: lanes that run together, come apart at branches, and join again.
//!
//! Lanes at one place are a *split*. Of several splits the one at the lowest place runs first, so that those ahead are
//! caught up with and joined. A split that spins for a whole slice lets the others run, as independent thread scheduling
//! promises. A collective instruction waits until all lanes that its mask names are there.

use crate::copies::Copies;
use crate::fault::FaultKind;
use crate::instruction::{Flow, Instruction};
use crate::lanes::{Lanes, NONE};
use crate::module::Kernel;
use crate::view::{BlockView, Surroundings, Watch};

/// Instructions after which a warp lets others run, at the next backward branch.
const SLICE: u64 = 20_000;

/// Lanes at one place.
#[derive(Clone, Copy, Debug)]
struct Split {
    pc: u32,
    mask: u32,
    /// Others must arrive or end before it can go on.
    waits: bool,
    /// It has had its turn.
    yielded: bool,
}

/// Why a warp stopped.
pub(crate) enum Stop {
    /// Others have their turn.
    Slice,
    /// All lanes have ended.
    Done,
    /// All lanes have reached a barrier of the block, at this place.
    Barrier(u32),
}

/// A fault of a warp, and where.
pub(crate) struct Failure {
    pub kind: FaultKind,
    pub pc: u32,
    pub lane: Option<usize>,
}

/// The registers and places of 32 threads.
pub(crate) struct Warp {
    pub registers: Vec<u32>,
    pub predicates: Vec<u32>,
    pub copies: Copies,
    splits: Vec<Split>,
    /// Lanes that have begun.
    pub started: u32,
    /// Lanes that have not ended.
    pub alive: u32,
    pub instructions: u64,
    pub thread_instructions: u64,
}

impl Warp {
    pub fn new(kernel: &Kernel) -> Self {
        Warp {
            registers: vec![0; kernel.slots as usize * crate::lanes::LANES],
            predicates: vec![0; kernel.predicates as usize],
            copies: Copies::default(),
            splits: Vec::new(),
            started: 0,
            alive: 0,
            instructions: 0,
            thread_instructions: 0,
        }
    }

    /// Puts the lanes of `mask` at the first instruction.
    pub fn start(&mut self, mask: u32) {
        (self.started, self.alive) = (mask, mask);
        self.copies.clear();
        self.splits.clear();
        self.splits.push(Split { pc: 0, mask, waits: false, yielded: false });
    }

    /// Runs until a slice is over, a barrier is reached, or all lanes have ended.
    pub fn run(
        &mut self,
        kernel: &Kernel,
        around: Surroundings,
        watch: Option<&mut Watch>,
    ) -> Result<Stop, Box<Failure>> {
        let view = BlockView::new(around, watch, &mut self.copies);
        // SAFETY: both vectors have the sizes that the kernel asks for, and nothing else uses them during the run.
        let mut lanes =
            unsafe { Lanes::new(self.registers.as_mut_ptr(), self.predicates.as_mut_ptr(), view) };
        let mut run = Run {
            kernel,
            splits: &mut self.splits,
            alive: &mut self.alive,
            instructions: 0,
            thread_instructions: 0,
        };
        let stop = run.go(&mut lanes);
        self.instructions += run.instructions;
        self.thread_instructions += run.thread_instructions;
        stop
    }
}

/// A warp during one slice.
struct Run<'w> {
    kernel: &'w Kernel,
    splits: &'w mut Vec<Split>,
    alive: &'w mut u32,
    instructions: u64,
    thread_instructions: u64,
}

/// What happens to a split that has stopped.
enum Turn {
    /// Another may be lower now.
    Again,
    /// It waits for others.
    Waits,
    /// The slice is over.
    Yields,
    /// It has no lanes any more.
    Gone,
    /// The whole warp is at a barrier.
    Barrier,
}

impl Run<'_> {
    fn go(&mut self, lanes: &mut Lanes) -> Result<Stop, Box<Failure>> {
        while !self.splits.is_empty() {
            let Some(mut split) = self.next() else { return Err(self.stuck()) };
            let turn = self.step(lanes, &mut split)?;
            match turn {
                Turn::Again => self.splits.push(split),
                Turn::Gone => {}
                Turn::Waits => self.splits.push(Split { waits: true, ..split }),
                Turn::Yields => {
                    self.splits.push(Split { yielded: true, ..split });
                    return Ok(Stop::Slice);
                }
                Turn::Barrier => {
                    self.splits.push(Split { pc: split.pc + 1, ..split });
                    return Ok(Stop::Barrier(split.pc));
                }
            }
        }
        Ok(Stop::Done)
    }

    /// Takes the split that runs next, joined with all others at its place.
    fn next(&mut self) -> Option<Split> {
        if self.splits.len() == 1 && !self.splits[0].waits {
            return self.splits.pop().map(|split| Split { yielded: false, ..split });
        }
        if self.splits.iter().all(|split| split.waits || split.yielded) {
            self.splits.iter_mut().for_each(|split| split.yielded = false);
        }
        let runnable = self.splits.iter().filter(|split| !split.waits && !split.yielded);
        let pc = runnable.map(|split| split.pc).min()?;
        let mut joined = Split { pc, mask: 0, waits: false, yielded: false };
        self.splits.retain(|split| {
            joined.mask |= if split.pc == pc { split.mask } else { 0 };
            split.pc != pc
        });
        Some(joined)
    }

    /// The lanes wait for each other.
    fn stuck(&self) -> Box<Failure> {
        let place = |split: &Split| (self.kernel.origins[split.pc as usize].line, split.mask);
        let mut places: Vec<_> = self.splits.iter().map(place).collect();
        places.sort_unstable();
        let pc = self.splits.iter().map(|split| split.pc).min().unwrap_or(0);
        Box::new(Failure { kind: FaultKind::DivergentWarp { places }, pc, lane: None })
    }

    /// Executes instructions of one split until it stops or could join another one.
    fn step(&mut self, lanes: &mut Lanes, split: &mut Split) -> Result<Turn, Box<Failure>> {
        let code = self.kernel.code.as_slice();
        // The next place where another split is.
        let limit =
            self.splits.iter().map(|other| other.pc).filter(|pc| *pc > split.pc).min().unwrap_or(u32::MAX);
        loop {
            let pc = split.pc;
            // SAFETY: branches lead to labels of the kernel, and its last instruction ends all lanes.
            let i: &Instruction = unsafe { code.get_unchecked(pc as usize) };
            let mut mask = split.mask;
            if i.guard != NONE {
                // SAFETY: the guard is a predicate of the kernel.
                let guard = unsafe { lanes.predicate(i.guard) };
                mask &= if i.negated { !guard } else { guard };
            }
            self.instructions += 1;
            self.thread_instructions += u64::from(mask.count_ones());
            match i.flow {
                Flow::Plain => {
                    if mask != 0 {
                        lanes.mask = mask;
                        // SAFETY: the instruction is one of the kernel whose registers the lanes have.
                        unsafe { (i.execute)(lanes, i) };
                    }
                    split.pc += 1;
                }
                Flow::Faulting => {
                    if mask != 0 {
                        execute(lanes, i, mask, pc)?;
                    }
                    split.pc += 1;
                }
                Flow::Branch if mask == 0 => split.pc += 1,
                Flow::Branch => {
                    let target = i.value as u32;
                    if mask != split.mask {
                        self.splits.push(Split { pc: split.pc + 1, mask: split.mask & !mask, ..*split });
                        (split.pc, split.mask) = (target, mask);
                        return Ok(self.after_branch(target <= pc));
                    }
                    split.pc = target;
                    if !self.splits.is_empty() || (target <= pc && self.instructions > SLICE) {
                        return Ok(self.after_branch(target <= pc));
                    }
                }
                _ => {
                    if let Some(turn) = self.control(lanes, i, split, mask)? {
                        return Ok(turn);
                    }
                }
            }
            if split.pc >= limit {
                return Ok(Turn::Again);
            }
        }
    }

    /// An instruction that needs other lanes, or ends some. `None` if the split goes on.
    fn control(
        &mut self,
        lanes: &mut Lanes,
        i: &Instruction,
        split: &mut Split,
        mask: u32,
    ) -> Result<Option<Turn>, Box<Failure>> {
        let pc = split.pc;
        match i.flow {
            _ if mask == 0 => split.pc += 1,
            Flow::Collective | Flow::Barrier if mask != split.mask => {
                // Lanes whose guard is false go on without the others.
                self.splits.push(Split { pc: pc + 1, mask: split.mask & !mask, ..*split });
                split.mask = mask;
                return Ok(Some(Turn::Again));
            }
            Flow::Collective if self.collective(lanes, i, mask, pc)? => split.pc += 1,
            Flow::Collective => return Ok(Some(Turn::Waits)),
            Flow::Barrier if self.splits.is_empty() => return Ok(Some(Turn::Barrier)),
            Flow::Barrier => return Ok(Some(Turn::Waits)),
            Flow::Exit => {
                *self.alive &= !mask;
                split.mask &= !mask;
                split.pc += 1;
                // What waited for these lanes waits no more.
                self.splits.iter_mut().for_each(|other| other.waits = false);
                if split.mask == 0 {
                    return Ok(Some(Turn::Gone));
                }
            }
            Flow::BranchTable => return self.branch_table(lanes, i, split, mask).map(Some),
            Flow::Trap => return Err(failure(FaultKind::Trap, pc, mask.trailing_zeros() as usize)),
            Flow::Plain | Flow::Faulting | Flow::Branch => unreachable!("`step` executes these"),
        }
        Ok(None)
    }

    /// Whether the slice is over, after a branch.
    fn after_branch(&self, backward: bool) -> Turn {
        if backward && self.instructions > SLICE { Turn::Yields } else { Turn::Again }
    }

    /// Executes a collective instruction if all lanes that it names are there.
    fn collective(
        &self,
        lanes: &mut Lanes,
        i: &Instruction,
        mask: u32,
        pc: u32,
    ) -> Result<bool, Box<Failure>> {
        let first = mask.trailing_zeros() as usize;
        // SAFETY: `e` is a register of the kernel.
        let named: u32 = unsafe { lanes.get_lane(i.e, first) };
        let outside = mask & !named;
        if outside != 0 {
            let lane = outside.trailing_zeros() as usize;
            return Err(failure(FaultKind::NotInOwnMask { mask: named }, pc, lane));
        }
        if named & *self.alive & !mask != 0 {
            return Ok(false);
        }
        lanes.alive = *self.alive;
        execute(lanes, i, mask, pc)?;
        Ok(true)
    }

    fn branch_table(
        &mut self,
        lanes: &Lanes,
        i: &Instruction,
        split: &mut Split,
        mask: u32,
    ) -> Result<Turn, Box<Failure>> {
        let table = &self.kernel.tables[i.value as usize];
        let rest = split.mask & !mask;
        if rest != 0 {
            self.splits.push(Split { pc: split.pc + 1, mask: rest, ..*split });
        }
        for lane in crate::lanes::Bits(mask) {
            // SAFETY: `a` is a register of the kernel.
            let index: u32 = unsafe { lanes.get_lane(i.a, lane) };
            let Some(target) = table.get(index as usize) else {
                return Err(failure(FaultKind::BranchIndex { index }, split.pc, lane));
            };
            // Lanes with one target join at the next turn.
            self.splits.push(Split { pc: *target, mask: 1 << lane, ..*split });
        }
        let backward = table.iter().any(|target| *target <= split.pc);
        if backward && self.instructions > SLICE {
            let split = self.splits.pop().expect("a lane has just branched");
            self.splits.push(Split { yielded: true, ..split });
        }
        Ok(Turn::Gone)
    }
}

fn execute(lanes: &mut Lanes, i: &Instruction, mask: u32, pc: u32) -> Result<(), Box<Failure>> {
    lanes.mask = mask;
    lanes.view.pc = pc as usize;
    // SAFETY: the instruction is one of the kernel whose registers the lanes have.
    unsafe { (i.execute)(lanes, i) };
    match lanes.fault.take() {
        None => Ok(()),
        Some(fault) => Err(failure(fault.0, pc, fault.1)),
    }
}

#[cold]
fn failure(kind: FaultKind, pc: u32, lane: usize) -> Box<Failure> {
    Box::new(Failure { kind, pc, lane: Some(lane) })
}
