//! A device for tests: memory and launches of the committed PTX, by the interpreter or by a driver.

pub mod gpu;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytemuck::Pod;
use sluice_kernels::cuda::{Address, LaunchPlan, Module, Operation};
use sluice_ptx::{Arena, Extent, GlobalMemory, Launch, Mode, Options, Traffic};

use gpu::{Gpu, on_gpu};

/// Memory of a test: allocations, and pieces at addresses of the test's choice.
#[derive(Default)]
struct TestMemory {
    arena: Arena,
    /// First address and bytes of each piece.
    pieces: Vec<(Address, Box<[AtomicU64]>)>,
    /// Slices (some ten thousand instructions of a warp) that launches have taken.
    slices: AtomicU64,
    /// How many they may take.
    most_slices: Option<u64>,
    /// A word that another writes, and before which slice.
    published: Option<(u64, Address, u64)>,
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

    fn slice(&self, run: &mut dyn FnMut()) {
        let slice = self.slices.fetch_add(1, Relaxed);
        if let Some((_, address, word)) = self.published.filter(|(at, ..)| *at == slice) {
            self.arena.write(address, &[word]);
        }
        run();
    }

    fn cancelled(&self) -> bool {
        self.most_slices.is_some_and(|most| self.slices.load(Relaxed) > most)
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

/// A kernel that is not what is committed.
pub struct Mutated<'k> {
    /// Its name.
    pub kernel: &'static str,
    /// A module that has it.
    pub module: &'k sluice_ptx::Module,
    /// Changes its launches.
    pub edit: &'k dyn Fn(&mut LaunchPlan),
}

/// Memory and the way of running.
pub struct Device<'k> {
    body: Body,
    mutated: Option<Mutated<'k>>,
    launched: RefCell<BTreeMap<&'static str, Traffic>>,
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

impl<'k> Device<'k> {
    /// A device that runs fast, in one thread and without checks.
    pub fn fast() -> Self {
        Self::new(Body::new(), Mode::Fast)
    }

    /// A device that checks bounds, alignment, races, waits and uninitialised reads. A GPU checks nothing.
    pub fn checked() -> Self {
        Self::new(Body::new(), Mode::Checked)
    }

    /// A device of the interpreter, also where the others are a GPU.
    pub fn interpreter(mode: Mode) -> Self {
        Self::new(Body::Interpreter(RefCell::default()), mode)
    }

    /// A device that counts what kernels move.
    pub fn profiling() -> Self {
        let mut device = Self::interpreter(Mode::Fast);
        device.options.profile = true;
        device
    }

    /// A device on which one kernel is another, and whose launches take at most `slices` slices.
    pub fn with_mutant(mode: Mode, mutated: Mutated<'k>, slices: u64) -> Self {
        let memory = TestMemory { most_slices: Some(slices), ..TestMemory::default() };
        let body = Body::Interpreter(RefCell::new(memory));
        Device { mutated: Some(mutated), ..Self::new(body, mode) }
    }

    fn new(body: Body, mode: Mode) -> Self {
        let options = Options { mode, ..Options::default() };
        Device { body, mutated: None, launched: RefCell::default(), options }
    }

    /// The kernels that the interpreter has run.
    pub fn launched(&self) -> BTreeSet<&'static str> {
        self.launched.borrow().keys().copied().collect()
    }

    /// What each kernel has moved, on a device that counts it.
    pub fn traffic(&self) -> BTreeMap<&'static str, Traffic> {
        self.launched.borrow().clone()
    }

    /// The slices that launches have taken.
    pub fn slices(&self) -> u64 {
        match &self.body {
            Body::Interpreter(memory) => memory.borrow().slices.load(Relaxed),
            Body::Gpu(_) => 0,
        }
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

    /// Writes a word during the next launch, once that has taken `slices` slices: as the sidecar does during a step.
    /// Returns `false` on a GPU, where no slice is seen.
    pub fn publish_after(&self, slices: u64, address: Address, word: u64) -> bool {
        let Body::Interpreter(memory) = &self.body else { return false };
        let at = self.slices() + slices;
        memory.borrow_mut().published = Some((at, address, word));
        true
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
            Body::Interpreter(memory) => self.interpret(plan, &memory.borrow()),
            Body::Gpu(gpu) => gpu.run(plan),
        }
    }

    /// Runs an operation, which must succeed. A GPU alone has products of cuBLASLt.
    pub fn operate(&self, operation: &Operation) {
        match (operation, &self.body) {
            (Operation::Launch(plan), _) => self.run(plan),
            (Operation::Product(plan), Body::Gpu(gpu)) => {
                gpu.operate(operation).unwrap_or_else(|error| panic!("{plan:?}: {error}"));
            }
            (Operation::Product(_), Body::Interpreter(_)) => panic!("the interpreter has no cuBLASLt"),
        }
    }

    /// Runs an operation that a GPU or its libraries refuse, and returns the message.
    pub fn refused(&self, operation: &Operation) -> String {
        let Body::Gpu(gpu) = &self.body else { panic!("the interpreter refuses nothing") };
        gpu.operate(operation).expect_err("the operation is refused").to_string()
    }

    fn interpret(&self, plan: &LaunchPlan, memory: &TestMemory) {
        let Some(mutated) = self.mutated.as_ref().filter(|mutated| mutated.kernel == plan.kernel) else {
            return self.launch(&modules()[&plan.module], plan, memory);
        };
        let mut plan = plan.clone();
        (mutated.edit)(&mut plan);
        self.launch(mutated.module, &plan, memory);
    }

    fn launch(&self, module: &sluice_ptx::Module, plan: &LaunchPlan, memory: &TestMemory) {
        let kernel = module.kernel(plan.kernel).expect("the module has the kernel");
        let launch = Launch {
            grid: plan.grid,
            block: plan.block,
            dynamic_shared_bytes: plan.shared_bytes,
            params: &plan.params,
        };
        match sluice_ptx::launch(kernel, &launch, memory, &self.options) {
            Ok(stats) => self.launched.borrow_mut().entry(plan.kernel).or_default().add(&stats.traffic()),
            Err(fault) => panic!("{}: {fault}", plan.kernel),
        }
    }
}

impl Body {
    fn new() -> Body {
        if on_gpu() { Body::Gpu(Gpu::open()) } else { Body::Interpreter(RefCell::default()) }
    }
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
