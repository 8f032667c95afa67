//! The calls of NVRTC, NVIDIA's run-time compiler, that turn one source into PTX.

use std::ffi::{CString, c_char, c_int};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::camino::Utf8Path;

use super::library::{Handle, Library, pointers, strings};

type Create = unsafe extern "C" fn(
    *mut Handle,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Handle) -> c_int;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;

/// A source and the headers that it may include by name.
pub struct Source {
    /// Name in messages and line information.
    pub name: String,
    /// The text.
    pub text: String,
    /// Name and text of each header.
    pub headers: Vec<(String, String)>,
}

/// A loaded NVRTC.
pub struct Nvrtc {
    library: Library,
}

impl Nvrtc {
    /// Loads the libraries of `folder`: `libnvrtc.so.*`, and first `libnvrtc-builtins.so.*`, which NVRTC looks up
    /// by name.
    pub fn load(folder: &Utf8Path) -> Result<Self> {
        Library::open(folder, "libnvrtc-builtins.so")?;
        Ok(Self { library: Library::open(folder, "libnvrtc.so")? })
    }

    /// Major and minor version, such as (12, 0).
    pub fn version(&self) -> Result<(i32, i32)> {
        let (mut major, mut minor) = (0, 0);
        let version = self.library.function::<Version>("nvrtcVersion")?;
        // SAFETY: `Version` is nvrtcVersion's type; both pointers are to live integers.
        let status = unsafe { version(&raw mut major, &raw mut minor) };
        ensure!(status == 0, "nvrtcVersion answered {status}");
        Ok((major, minor))
    }

    /// Compiles `source` to PTX for `architecture` (`compute_*`).
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile(&self, source: &Source, architecture: &str, options: &[&str]) -> Result<String> {
        let program = self.create(source)?;
        let result = self.compile_program(program, architecture, options);
        let mut program = program;
        // SAFETY: the program was created above and is not used after this.
        unsafe { self.library.function::<Destroy>("nvrtcDestroyProgram")?(&raw mut program) };
        result
    }

    fn create(&self, source: &Source) -> Result<Handle> {
        let (name, text) = (CString::new(&*source.name)?, CString::new(&*source.text)?);
        let names = strings(source.headers.iter().map(|(name, _)| name))?;
        let texts = strings(source.headers.iter().map(|(_, text)| text))?;
        let (names_list, texts_list) = (pointers(&names), pointers(&texts));
        let mut program = std::ptr::null_mut();
        let create = self.library.function::<Create>("nvrtcCreateProgram")?;
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

    fn compile_program(&self, program: Handle, architecture: &str, options: &[&str]) -> Result<String> {
        let architecture_option = format!("--gpu-architecture={architecture}");
        let options = strings([architecture_option.as_str()].iter().chain(options))?;
        let list = pointers(&options);
        // SAFETY: the program is alive; the options and their list outlive the call.
        let status = unsafe {
            let count = c_int::try_from(list.len())?;
            self.library.function::<Compile>("nvrtcCompileProgram")?(program, count, list.as_ptr())
        };
        if status != 0 {
            let log = self.library.text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?;
            bail!("for {architecture}, NVRTC answered {status}: {log}");
        }
        String::from_utf8(self.library.bytes(program, "nvrtcGetPTXSize", "nvrtcGetPTX")?)
            .context("PTX is text")
    }
}
