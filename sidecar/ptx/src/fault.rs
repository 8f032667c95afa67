//! What a kernel did wrong, and where.

use std::fmt;

/// A launch that was refused, or a kernel that was ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// Where it happened.
    pub place: Box<Place>,
}

/// The instruction and the thread of a fault.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// Name of the kernel.
    pub kernel: String,
    /// Line of the PTX text, from 1; 0 for a launch that was refused.
    pub line: u32,
    /// The PTX statement.
    pub text: String,
    /// Line of the source by the last `.loc`, or 0 without line information.
    pub source_line: u32,
    /// Number of the block.
    pub block: [u32; 3],
    /// The thread in its block; `None` where no single thread is at fault.
    pub thread: Option<[u32; 3]>,
}

/// A state space as faults name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// Device memory.
    Global,
    /// Memory of a block.
    Shared,
    /// Arguments of the launch.
    Param,
    /// Memory of one thread.
    Local,
    /// Constants and variables of the module.
    Module,
}

/// How a thread used memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A load, or the source of a copy.
    Read,
    /// A store, or the target of a copy.
    Write,
    /// An atomic operation.
    Atomic,
}

/// Kinds of faults. Threads are numbers in their block: x + y * ntid.x + z * ntid.x * ntid.y.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// Bytes that no memory of this space has.
    OutOfBounds {
        /// The space.
        space: Space,
        /// First byte; an offset for all spaces but global.
        address: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// An address that is not a multiple of the size of the access.
    Misaligned {
        /// The space.
        space: Space,
        /// First byte.
        address: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Bytes that were never written (checked mode).
    Uninitialised {
        /// The space.
        space: Space,
        /// First byte.
        address: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Two threads use the same bytes, one of them writes, and nothing orders them (checked mode).
    Race {
        /// The space.
        space: Space,
        /// First byte of the access that found the race.
        address: u64,
        /// What the access does.
        access: Access,
        /// What the other thread did before.
        other: Access,
        /// The other thread; `None` for several readers.
        other_thread: Option<u32>,
        /// The linear number of the block of the other thread.
        other_block: u64,
    },
    /// Bytes of a `cp.async` that its thread has not waited for (checked mode).
    PendingCopy {
        /// Offset in shared memory.
        address: u64,
        /// The thread whose copy it is.
        by_thread: u32,
    },
    /// A `cp.async` that shall take more bytes than it copies.
    CopySize {
        /// Bytes to take from the source.
        take: u64,
        /// Bytes to write.
        bytes: u64,
    },
    /// Lanes of a warp wait at different places, and none can go on.
    DivergentWarp {
        /// PTX line and lanes of each place.
        places: Vec<(u32, u32)>,
    },
    /// Warps of a block wait at different barriers of one number, or with different counts.
    DivergentBarrier {
        /// The number of the barrier.
        barrier: u32,
        /// PTX lines where warps wait.
        lines: Vec<u32>,
    },
    /// Warps wait at a barrier that other threads of the block never reach.
    BarrierNotReached {
        /// The number of the barrier.
        barrier: u32,
        /// Threads that have arrived.
        arrived: u32,
        /// Threads that must arrive.
        expected: u32,
    },
    /// A number or a count of a barrier that PTX does not allow.
    BadBarrier {
        /// The number of the barrier.
        barrier: u32,
        /// The count of threads.
        count: u32,
    },
    /// A lane executes a collective instruction whose mask does not name it.
    NotInOwnMask {
        /// The mask.
        mask: u32,
    },
    /// A shuffle reads a lane that takes no part.
    AbsentLane {
        /// The lane that is read.
        lane: u32,
    },
    /// The parameters of the launch have another size than those of the kernel.
    ParameterBytes {
        /// Bytes that the kernel has.
        expected: usize,
        /// Bytes that were given.
        given: usize,
    },
    /// A block without threads, with more than 1024, or with more than `.maxntid` allows.
    BlockSize {
        /// Threads of the block.
        threads: u64,
        /// The limit.
        limit: u64,
    },
    /// A grid without blocks, or with more than CUDA allows in a dimension.
    GridSize {
        /// Blocks in each dimension.
        grid: [u32; 3],
    },
    /// More static shared memory than 48 KiB, or more of both than 227 KiB.
    SharedBytes {
        /// Bytes asked for.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The index of a `brx.idx` is beyond its table.
    BranchIndex {
        /// The index.
        index: u32,
    },
    /// The kernel executed `trap`.
    Trap,
    /// The memory asked for the end of the launch.
    Cancelled,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBounds { space, address, bytes } => {
                write!(f, "{bytes} bytes of {space} at {address:#x} are out of bounds")
            }
            Self::Misaligned { space, address, bytes } => {
                write!(f, "{bytes} bytes of {space} at {address:#x} are misaligned")
            }
            Self::Uninitialised { space, address, bytes } => {
                write!(f, "{bytes} bytes of {space} at {address:#x} were never written")
            }
            Self::Race { space, address, access, other, other_thread, other_block } => {
                write!(f, "race in {space} at {address:#x}: {access} here, {other} before by ")?;
                match other_thread {
                    Some(thread) => write!(f, "thread {thread} of block {other_block}"),
                    None => write!(f, "several threads"),
                }
            }
            Self::PendingCopy { address, by_thread } => {
                write!(
                    f,
                    "shared memory at {address:#x} is under a copy of thread {by_thread} without a wait"
                )
            }
            Self::CopySize { take, bytes } => write!(f, "a copy of {bytes} bytes that takes {take}"),
            Self::DivergentWarp { places } => {
                write!(f, "lanes of a warp wait for each other:")?;
                places.iter().try_for_each(|(line, lanes)| write!(f, " lanes {lanes:08x} at line {line}"))
            }
            Self::DivergentBarrier { barrier, lines } => {
                write!(f, "warps wait at different places for barrier {barrier}: PTX lines {lines:?}")
            }
            Self::BarrierNotReached { barrier, arrived, expected } => {
                write!(f, "{arrived} threads wait at barrier {barrier} for {expected} that never come")
            }
            Self::BadBarrier { barrier, count } => write!(f, "barrier {barrier} with a count of {count}"),
            Self::NotInOwnMask { mask } => write!(f, "the mask {mask:#010x} does not name the lane itself"),
            Self::AbsentLane { lane } => write!(f, "a shuffle reads lane {lane}, which takes no part"),
            Self::ParameterBytes { expected, given } => {
                write!(f, "{given} bytes of parameters, and the kernel has {expected}")
            }
            Self::BlockSize { threads, limit } => {
                write!(f, "a block of {threads} threads; the limit is {limit}")
            }
            Self::GridSize { grid } => write!(f, "a grid of {grid:?} blocks"),
            Self::SharedBytes { bytes, limit } => {
                write!(f, "{bytes} bytes of shared memory; the limit is {limit}")
            }
            Self::BranchIndex { index } => write!(f, "branch {index} is beyond its table"),
            Self::Trap => write!(f, "trap"),
            Self::Cancelled => write!(f, "cancelled"),
        }
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Global => "global memory",
            Self::Shared => "shared memory",
            Self::Param => "the parameters",
            Self::Local => "local memory",
            Self::Module => "the module's variables",
        })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "written",
            Self::Atomic => "changed by an atomic operation",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { kernel, line, text, source_line, block, thread } = &*self.place;
        write!(f, "{kernel}: {}", self.kind)?;
        if *line > 0 {
            write!(f, " (PTX line {line}: {text}; source line {source_line}; block {block:?}")?;
            if let Some(thread) = thread {
                write!(f, ", thread {thread:?}")?;
            }
            write!(f, ")")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
