//! Memory accesses by source line.

/// A line of a source file, by the `.loc` before an instruction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SourceLine {
    /// Number of the file ([`crate::Module::file`]); 0 without line information.
    pub file: u32,
    /// Its line, from 1; 0 without line information.
    pub line: u32,
}

/// Memory accesses of one source line. A request is one instruction of one warp.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Requests to global memory.
    pub global_requests: u64,
    /// Sectors of 32 bytes that they touch.
    pub sectors: u64,
    /// The fewest sectors that hold as many bytes.
    pub least_sectors: u64,
    /// Requests to shared memory.
    pub shared_requests: u64,
    /// Wavefronts that they take: one for each word of the bank that is asked for most.
    pub wavefronts: u64,
    /// The fewest wavefronts that move as many words: without bank conflicts.
    pub least_wavefronts: u64,
}

impl Traffic {
    /// Adds `other`.
    pub fn add(&mut self, other: &Traffic) {
        self.global_requests += other.global_requests;
        self.sectors += other.sectors;
        self.least_sectors += other.least_sectors;
        self.shared_requests += other.shared_requests;
        self.wavefronts += other.wavefronts;
        self.least_wavefronts += other.least_wavefronts;
    }
}
