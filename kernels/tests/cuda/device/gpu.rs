//! A GPU for tests: memory and launches by the driver.

use std::cell::RefCell;
use std::sync::OnceLock;

use sluice_kernels::cuda::{Address, LaunchPlan, Operation};
use sluice_kernels::engine::CudaKernels;
use sluice_memory::cuda::{Buffer, Context, Device, Driver, Error, Stream};

/// Set in processes whose kernels run on a GPU. The tests of memory read the same variable.
pub const GPU_VAR: &str = "SLUICE_TEST_GPU";

/// Whether kernels run on a GPU.
pub fn on_gpu() -> bool {
    std::env::var_os(GPU_VAR).is_some()
}

/// Device memory of a test, and a stream.
pub struct Gpu {
    stream: Stream,
    buffers: RefCell<Vec<Buffer>>,
}

impl Gpu {
    /// Uses the first GPU, with all kernels loaded.
    pub fn open() -> Gpu {
        let (context, _) = loaded();
        context.enter().unwrap();
        Gpu { stream: Stream::new(context).unwrap(), buffers: RefCell::default() }
    }

    /// Memory without contents.
    pub fn reserve(&self, bytes: usize) -> Address {
        let buffer = Buffer::new(self.stream.context(), bytes.max(1) as u64).unwrap();
        let address = buffer.at(0);
        self.buffers.borrow_mut().push(buffer);
        address
    }

    pub fn write(&self, address: Address, bytes: &[u8]) {
        // SAFETY: the bytes are borrowed until the copy is done.
        unsafe { self.stream.upload_bytes(address, bytes) }.unwrap();
        self.stream.finish().unwrap();
    }

    pub fn read(&self, address: Address, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        // SAFETY: the bytes are borrowed until the copy is done.
        unsafe { self.stream.download_bytes(&mut read, address) }.unwrap();
        self.stream.finish().unwrap();
        read
    }

    /// Runs a launch, which must succeed.
    pub fn run(&self, plan: &LaunchPlan) {
        let launched = loaded().1.launch(&self.stream, plan);
        launched
            .and_then(|()| self.stream.finish())
            .unwrap_or_else(|error| panic!("{}: {error}", plan.kernel));
    }

    /// Runs an operation.
    pub fn operate(&self, operation: &Operation) -> Result<(), Error> {
        loaded().1.run(&self.stream, operation)?;
        self.stream.finish()
    }
}

/// The context of this process, and all kernels, with cuBLASLt where there is one.
fn loaded() -> &'static (Context, CudaKernels) {
    static LOADED: OnceLock<(Context, CudaKernels)> = OnceLock::new();
    LOADED.get_or_init(|| {
        let context = Context::new(Device::open(Driver::open().unwrap(), 0).unwrap()).unwrap();
        let mut kernels = CudaKernels::load(&context).unwrap();
        let _ = kernels.load_cublaslt(&context);
        (context, kernels)
    })
}
