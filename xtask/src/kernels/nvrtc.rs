//! The calls of NVRTC, NVIDIA's run-time compiler, that turn one source into PTX or into machine code.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::camino::Utf8Path;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Bytes = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type Architectures = unsafe extern "C" fn(*mut c_int) -> c_int;

/// A source and the headers that it may include by name.
pub struct Source {
    /// Name in messages and line information.
    pub name: String,
    /// The text.
    pub text: String,
    /// Name and text of each header.
    pub headers: Vec<(String, String)>,
}

/// What a compilation gave.
pub struct Compiled {
    /// PTX or machine code.
    pub code: Vec<u8>,
    /// What the compiler and the assembler said.
    pub log: String,
}

/// A loaded NVRTC.
pub struct Nvrtc {
    library: Library,
}

impl Nvrtc {
    /// Loads the libraries of `folder`: `libnvrtc.so.*`, and first `libnvrtc-builtins.so.*`, which NVRTC looks up
    /// by name.
    pub fn load(folder: &Utf8Path) -> Result<Self> {
        open(folder, "libnvrtc-builtins.so")?;
        Ok(Self { library: open(folder, "libnvrtc.so")? })
    }

    /// Major and minor version, such as (12, 0).
    pub fn version(&self) -> Result<(i32, i32)> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: `Version` is nvrtcVersion's type; both pointers are to live integers.
        let status = unsafe { self.function::<Version>("nvrtcVersion")?(&raw mut major, &raw mut minor) };
        ensure!(status == 0, "nvrtcVersion answered {status}");
        Ok((major, minor))
    }

    /// Whether this compiler makes machine code for compute capability `number` (100 for sm_100).
    pub fn knows(&self, number: i32) -> Result<bool> {
        let mut count = 0;
        // SAFETY: nvrtcGetNumSupportedArchs writes one integer.
        let status = unsafe { self.function::<Architectures>("nvrtcGetNumSupportedArchs")?(&raw mut count) };
        ensure!(status == 0, "nvrtcGetNumSupportedArchs answered {status}");
        let mut all = vec![0; usize::try_from(count)?];
        // SAFETY: nvrtcGetSupportedArchs writes as many integers as it has just said.
        let status = unsafe { self.function::<Architectures>("nvrtcGetSupportedArchs")?(all.as_mut_ptr()) };
        ensure!(status == 0, "nvrtcGetSupportedArchs answered {status}");
        Ok(all.contains(&number))
    }

    /// Compiles `source` for `architecture`: PTX for `compute_*`, machine code for `sm_*`.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile(&self, source: &Source, architecture: &str, options: &[&str]) -> Result<Compiled> {
        let program = self.create(source)?;
        let result = self.compile_program(program, architecture, options);
        let mut program = program;
        // SAFETY: the program was created above and is not used after this.
        unsafe { self.function::<Destroy>("nvrtcDestroyProgram")?(&raw mut program) };
        result
    }

    fn create(&self, source: &Source) -> Result<Program> {
        let (name, text) = (CString::new(&*source.name)?, CString::new(&*source.text)?);
        let names = strings(source.headers.iter().map(|(name, _)| name))?;
        let texts = strings(source.headers.iter().map(|(_, text)| text))?;
        let (names_list, texts_list) = (pointers(&names), pointers(&texts));
        let mut program = std::ptr::null_mut();
        let create = self.function::<Create>("nvrtcCreateProgram")?;
        // SAFETY: all strings and both lists outlive the call, which copies them; the lists have as many entries as the
        // call says.
        let status = unsafe {
            create(
                &raw mut program,
                text.as_ptr(),
                name.as_ptr(),
                c_int::try_from(names.len())?,
                texts_list.as_ptr(),
                names_list.as_ptr(),
            )
        };
        ensure!(status == 0, "nvrtcCreateProgram answered {status}");
        Ok(program)
    }

    fn compile_program(&self, program: Program, architecture: &str, options: &[&str]) -> Result<Compiled> {
        let architecture_option = format!("--gpu-architecture={architecture}");
        let options = strings([architecture_option.as_str()].iter().chain(options))?;
        let list = pointers(&options);
        // SAFETY: the program is alive; the options and their list outlive the call.
        let status = unsafe {
            let count = c_int::try_from(list.len())?;
            self.function::<Compile>("nvrtcCompileProgram")?(program, count, list.as_ptr())
        };
        let log = self.bytes(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?;
        let log = String::from_utf8_lossy(&log).trim().to_owned();
        if status != 0 {
            bail!("for {architecture}, NVRTC answered {status}: {log}");
        }
        let code = if architecture.starts_with("compute_") {
            self.bytes(program, "nvrtcGetPTXSize", "nvrtcGetPTX")?
        } else {
            self.bytes(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")?
        };
        Ok(Compiled { code, log })
    }

    /// One of the results of a program; the zero that ends a text is not part of it.
    fn bytes(&self, program: Program, size: &str, get: &str) -> Result<Vec<u8>> {
        let mut length = 0;
        // SAFETY: the program is alive and `Size` writes one usize.
        let status = unsafe { self.function::<Size>(size)?(program, &raw mut length) };
        ensure!(status == 0, "{size} answered {status}");
        let mut bytes = vec![0; length];
        // SAFETY: `Bytes` writes exactly as many bytes as `size` has just said.
        let status = unsafe { self.function::<Bytes>(get)?(program, bytes.as_mut_ptr().cast()) };
        ensure!(status == 0, "{get} answered {status}");
        match CStr::from_bytes_with_nul(&bytes) {
            Ok(text) => Ok(text.to_bytes().to_vec()),
            Err(_) => Ok(bytes),
        }
    }

    fn function<F: Copy>(&self, name: &str) -> Result<F> {
        // SAFETY: every caller names the type of the function that it names; the library is never unloaded before.
        let symbol = unsafe { self.library.get::<F>(name.as_bytes()) };
        Ok(*symbol.with_context(|| format!("this NVRTC has no {name}"))?)
    }
}

/// Strings for C.
fn strings<S: AsRef<str>>(all: impl IntoIterator<Item = S>) -> Result<Vec<CString>> {
    all.into_iter().map(|one| Ok(CString::new(one.as_ref())?)).collect()
}

/// Their addresses.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

/// Opens the file in `folder` whose name starts with `prefix`.
fn open(folder: &Utf8Path, prefix: &str) -> Result<Library> {
    let entries: Vec<_> = folder.read_dir_utf8().with_context(|| folder.to_string())?.flatten().collect();
    let file = entries.iter().find(|entry| entry.file_name().starts_with(prefix));
    let file = file.with_context(|| format!("no {prefix}* in {folder}"))?.path();
    // SAFETY: the initialisers of NVIDIA's two libraries have no preconditions.
    unsafe { Library::open(Some(file.as_std_path()), RTLD_NOW | RTLD_GLOBAL) }
        .with_context(|| format!("loading {file}"))
}
