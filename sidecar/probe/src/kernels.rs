//! The kernels of `cuda/probe.cu`, with typed arguments. They access only device memory, or words of host memory that
//! are atomics.

use std::ffi::CString;

use sluice_memory::cuda::{
    Address, Argument, Buffer, Context, Error, Function, Grid, KernelLaunch, Module, Stream,
};

/// Output of `cargo xtask kernels` for `cuda/probe.cu`; the driver compiles it for its device.
const PTX: &str = include_str!("../cuda/probe.ptx");
/// Threads per block of the kernels that go through memory.
const THREADS: u32 = 256;
/// Blocks per multiprocessor, for as many threads as it can hold.
const BLOCKS: u32 = 8;
/// Rows and columns of a tile of `sluice_product`.
const TILE: u64 = 64;

/// The loaded kernels.
#[derive(Debug)]
pub struct Kernels {
    blocks: u32,
    spin: Function,
    read: Function,
    product: Function,
    write: Function,
    compare: Function,
    await_flag: Function,
    /// One float per thread of `read`.
    sums: Buffer,
}

/// Parameters of [`Kernels::await_flag`].
#[derive(Clone, Copy, Debug)]
pub struct FlagWait {
    /// Word that another process writes.
    pub flag: Address,
    /// Word on the device with the value that the flag must reach.
    pub counter: Address,
    /// Increment of the counter after the wait.
    pub bump: u64,
    /// Time limit in nanoseconds.
    pub limit_ns: u64,
    /// Word that is incremented at a timeout.
    pub timed_out: Address,
}

impl Kernels {
    /// Loads the kernels into `context`.
    pub fn load(context: &Context) -> Result<Kernels, Error> {
        let module = Module::load(context, &CString::new(PTX).expect("PTX is text"))?;
        let blocks = context.device().multiprocessors()? * BLOCKS;
        Ok(Kernels {
            blocks,
            spin: module.function("sluice_spin")?,
            read: module.function("sluice_read")?,
            product: module.function("sluice_product")?,
            write: module.function("sluice_write")?,
            compare: module.function("sluice_compare")?,
            await_flag: module.function("sluice_await")?,
            sums: Buffer::new(context, u64::from(blocks * THREADS) * 4)?,
        })
    }

    /// Keeps one thread of the device busy for `ns` nanoseconds.
    pub fn spin(&self, stream: &Stream, ns: u64) -> Result<(), Error> {
        run(stream, &self.spin, Grid::line(1, 1), &[Argument::U64(ns)])
    }

    /// Reads `bytes` bytes (a multiple of 16) once.
    pub fn read(&self, stream: &Stream, from: Address, bytes: u64) -> Result<(), Error> {
        let arguments =
            [Argument::Address(from), Argument::U64(bytes / 16), Argument::Address(self.sums.at(0))];
        run(stream, &self.read, self.wide(), &arguments)
    }

    /// Computes c = a . b for square matrices of `n` x `n` floats.
    ///
    /// # Panics
    /// If `n` is not a multiple of 64.
    pub fn product(&self, stream: &Stream, matrices: [Address; 3], n: u64) -> Result<(), Error> {
        assert!(n.is_multiple_of(TILE), "a matrix consists of whole tiles");
        let tiles = u32::try_from(n / TILE).expect("a matrix fits a device");
        let [a, b, c] = matrices.map(Argument::Address);
        let grid = Grid { blocks: [tiles, tiles, 1], threads: [16, 16, 1] };
        run(stream, &self.product, grid, &[a, b, c, Argument::U64(n)])
    }

    /// Writes `value`, `value + 1`, ... into `words` words of 64 bits.
    pub fn write(&self, stream: &Stream, to: Address, words: u64, value: u64) -> Result<(), Error> {
        let arguments = [Argument::Address(to), Argument::U64(words), Argument::U64(value)];
        run(stream, &self.write, self.wide(), &arguments)
    }

    /// Adds to the word at `wrong` the number of words, out of `words`, that differ from the pattern of
    /// [`Kernels::write`].
    pub fn compare(
        &self,
        stream: &Stream,
        from: Address,
        (words, value): (u64, u64),
        wrong: Address,
    ) -> Result<(), Error> {
        let [from, wrong] = [from, wrong].map(Argument::Address);
        run(stream, &self.compare, self.wide(), &[from, Argument::U64(words), Argument::U64(value), wrong])
    }

    /// Waits on the device until a flag reaches the counter.
    pub fn await_flag(&self, stream: &Stream, order: FlagWait) -> Result<(), Error> {
        stream.launch(&self.await_node(order))
    }

    /// Returns the launch of [`Kernels::await_flag`] for a graph.
    pub fn await_node(&self, order: FlagWait) -> KernelLaunch<'_> {
        let FlagWait { flag, counter, bump, limit_ns, timed_out: gave_up } = order;
        let [flag, counter, gave_up] = [flag, counter, gave_up].map(Argument::Address);
        let arguments = vec![flag, counter, Argument::U64(bump), Argument::U64(limit_ns), gave_up];
        launch(&self.await_flag, Grid::line(1, 1), arguments)
    }

    /// Writes `value` to one word with one thread: the minimal kernel.
    pub fn mark(&self, stream: &Stream, word: Address, value: u64) -> Result<(), Error> {
        stream.launch(&self.mark_node(word, value))
    }

    /// Returns the launch of [`Kernels::mark`] for a graph.
    pub fn mark_node(&self, word: Address, value: u64) -> KernelLaunch<'_> {
        let arguments = vec![Argument::Address(word), Argument::U64(1), Argument::U64(value)];
        launch(&self.write, Grid::line(1, 1), arguments)
    }

    fn wide(&self) -> Grid {
        Grid::line(self.blocks, THREADS)
    }
}

fn run(stream: &Stream, function: &Function, grid: Grid, arguments: &[Argument]) -> Result<(), Error> {
    stream.launch(&launch(function, grid, arguments.to_vec()))
}

fn launch(function: &Function, grid: Grid, arguments: Vec<Argument>) -> KernelLaunch<'_> {
    // SAFETY: each caller above passes the arguments of its kernel in `cuda/probe.cu`; the kernels write only device
    // memory, or words of `PinnedMemory`, which are atomics.
    unsafe { KernelLaunch::new(function, grid, arguments) }
}
