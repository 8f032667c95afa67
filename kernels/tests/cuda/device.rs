//! A device for tests: memory and launches of the committed PTX, by the interpreter or by a driver.

pub mod gpu;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use bytemuck::Pod;
use sluice_kernels::cuda::{Address, LaunchPlan, Module};
use sluice_ptx::{Arena, Extent, GlobalMemory, Launch, Mode, Options};

use gpu::{Gpu, on_gpu};

/// Memory of a test: allocations, and pieces at addresses of the test's choice.
#[derive(Default)]
struct TestMemory {
    arena: Arena,
    /// First address and bytes of each piece.
    pieces: Vec<(Address, Box<[AtomicU64]>)>,
}

impl TestMemory {
    fn piece(&self, address: Address) -> Option<Extent> {
        self.pieces.iter().find_map(|(first, words)| {
            let bytes = size_of_val(&**words) as u64;
            let host = words.as_ptr().cast_mut().cast();
            (*first <= address && address < first + bytes).then_some(Extent { first: *first, bytes, host })
        })
    }
}

// SAFETY: allocations and pieces live as long as the memory and do not move; no reference to them exists during a launch.
unsafe impl GlobalMemory for TestMemory {
    fn extent(&self, address: u64) -> Option<Extent> {
        self.arena.extent(address).or_else(|| self.piece(address))
    }

    fn uninitialised(&self, address: u64, bytes: u64) -> bool {
        self.piece(address).is_none() && self.arena.uninitialised(address, bytes)
    }

    fn mark_written(&self, address: u64, bytes: u64) {
        if self.piece(address).is_none() {
            self.arena.mark_written(address, bytes);
        }
    }
}

/// Memory and the way of running.
pub struct Device {
    body: Body,
    /// How the interpreter runs launches.
    pub options: Options,
}

/// What runs launches.
enum Body {
    /// The interpreter, with this memory.
    Interpreter(RefCell<TestMemory>),
    /// The GPU of a process that has [`gpu::GPU_VAR`] set.
    Gpu(Gpu),
}

impl Device {
    /// A device that runs fast, in one thread and without checks.
    pub fn fast() -> Self {
        Device { body: Body::new(), options: options(Mode::Fast) }
    }

    /// A device that checks bounds, alignment, races, waits and uninitialised reads. A GPU checks nothing.
    pub fn checked() -> Self {
        Device { body: Body::new(), options: options(Mode::Checked) }
    }

    /// Copies numbers to new memory of their own.
    pub fn upload<T: Pod>(&self, values: &[T]) -> Address {
        let bytes = bytemuck::cast_slice(values);
        match &self.body {
            Body::Interpreter(memory) => memory.borrow_mut().arena.alloc_with::<u8>(bytes),
            Body::Gpu(gpu) => {
                let address = gpu.reserve(bytes.len());
                gpu.write(address, bytes);
                address
            }
        }
    }

    /// Memory without contents for `count` numbers.
    pub fn reserve<T: Pod>(&self, count: usize) -> Address {
        let bytes = count * size_of::<T>();
        match &self.body {
            Body::Interpreter(memory) => memory.borrow_mut().arena.alloc(bytes as u64),
            Body::Gpu(gpu) => gpu.reserve(bytes),
        }
    }

    /// Adds memory at an address of the test's choice, far from all allocations.
    pub fn place(&self, address: Address, bytes: &[u8]) {
        let Body::Interpreter(memory) = &self.body else { panic!("a GPU chooses the addresses") };
        let words =
            bytes.chunks(8).map(|eight| AtomicU64::new(bytemuck::pod_read_unaligned(eight))).collect();
        memory.borrow_mut().pieces.push((address, words));
    }

    /// Writes bytes to memory that is there.
    pub fn write(&self, address: Address, bytes: &[u8]) {
        match &self.body {
            Body::Interpreter(memory) => memory.borrow().arena.write(address, bytes),
            Body::Gpu(gpu) => gpu.write(address, bytes),
        }
    }

    /// Copies numbers back.
    pub fn download<T: Pod>(&self, address: Address, count: usize) -> Vec<T> {
        let bytes = count * size_of::<T>();
        let bytes = match &self.body {
            Body::Interpreter(memory) => memory.borrow().arena.read::<u8>(address, bytes),
            Body::Gpu(gpu) => gpu.read(address, bytes),
        };
        bytes.chunks(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }

    /// Runs a launch, which must succeed.
    pub fn run(&self, plan: &LaunchPlan) {
        match &self.body {
            Body::Interpreter(memory) => interpret(plan, &memory.borrow(), &self.options),
            Body::Gpu(gpu) => gpu.run(plan),
        }
    }
}

impl Body {
    fn new() -> Body {
        if on_gpu() { Body::Gpu(Gpu::open()) } else { Body::Interpreter(RefCell::default()) }
    }
}

fn interpret(plan: &LaunchPlan, memory: &TestMemory, options: &Options) {
    let kernel = modules()[&plan.module].kernel(plan.kernel).expect("the module has the kernel");
    let launch = Launch {
        grid: plan.grid,
        block: plan.block,
        dynamic_shared_bytes: plan.shared_bytes,
        params: &plan.params,
    };
    if let Err(fault) = sluice_ptx::launch(kernel, &launch, memory, options) {
        panic!("{}: {fault}", plan.kernel);
    }
}

fn options(mode: Mode) -> Options {
    Options { mode, ..Options::default() }
}

/// All modules, parsed once.
pub fn modules() -> &'static HashMap<Module, sluice_ptx::Module> {
    static MODULES: OnceLock<HashMap<Module, sluice_ptx::Module>> = OnceLock::new();
    MODULES.get_or_init(|| {
        let parse = |module: Module| {
            (module, sluice_ptx::Module::parse(module.ptx()).unwrap_or_else(|e| panic!("{module:?}: {e}")))
        };
        Module::ALL.into_iter().map(parse).collect()
    })
}
