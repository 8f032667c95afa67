//! A parsed module and its kernels.

use std::sync::Arc;

use crate::image::Image;
use crate::instruction::Instruction;
use crate::lanes::Slot;
use crate::scope::Constant;
use crate::traffic::SourceLine;

/// The kernels of one PTX text.
#[derive(Debug)]
pub struct Module {
    pub(crate) version: String,
    pub(crate) target: String,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) files: Vec<(u32, String)>,
}

/// A parameter of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param {
    /// Its name in the PTX text.
    pub name: String,
    /// Where it begins in the bytes of all parameters.
    pub offset: usize,
    /// How many bytes it has.
    pub bytes: usize,
    /// Its alignment in bytes.
    pub align: usize,
}

/// A kernel, ready to run.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) param_bytes: usize,
    pub(crate) static_shared_bytes: u32,
    pub(crate) uses_dynamic_shared: bool,
    pub(crate) max_threads: Option<u32>,
    pub(crate) local_bytes: u64,
    pub(crate) slots: u32,
    pub(crate) predicates: u32,
    pub(crate) constants: Vec<(Constant, Slot)>,
    pub(crate) code: Vec<Instruction>,
    /// Where each instruction comes from.
    pub(crate) origins: Vec<Origin>,
    /// Targets of `brx.idx`.
    pub(crate) tables: Vec<Vec<u32>>,
    pub(crate) image: Arc<Image>,
}

/// Where an instruction comes from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// Line of the PTX text.
    pub line: u32,
    pub text: String,
    pub source: SourceLine,
}

impl Module {
    /// The kernel with this name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// All kernels in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.iter()
    }

    /// The version of PTX, such as `8.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The target, such as `sm_80`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The name of source file `number`.
    pub fn file(&self, number: u32) -> Option<&str> {
        self.files.iter().find(|(found, _)| *found == number).map(|(_, name)| name.as_str())
    }
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters in order.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Bytes of all parameters with the gaps between them.
    pub fn param_bytes(&self) -> usize {
        self.param_bytes
    }

    /// Bytes of static shared memory.
    pub fn static_shared_bytes(&self) -> u32 {
        self.static_shared_bytes
    }

    /// The largest block by `.maxntid` or `.reqntid`.
    pub fn max_threads(&self) -> Option<u32> {
        self.max_threads
    }

    /// Whether it names dynamic shared memory.
    pub fn uses_dynamic_shared(&self) -> bool {
        self.uses_dynamic_shared
    }

    /// Where dynamic shared memory begins: behind the static one, aligned for every access.
    pub(crate) fn dynamic_shared_start(&self) -> u32 {
        self.static_shared_bytes.next_multiple_of(16)
    }
}
