//! A loaded library of NVIDIA: its functions, and results that it hands out as bytes.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use anyhow::{Context, Result, ensure};
use cargo_metadata::camino::Utf8Path;
use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};

/// A program of NVRTC, or a link of nvJitLink.
pub type Handle = *mut c_void;
type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Bytes = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// A loaded library, which is never unloaded.
pub struct Library {
    loaded: Loaded,
}

impl Library {
    /// Loads the file in `folder` whose name starts with `prefix`.
    pub fn open(folder: &Utf8Path, prefix: &str) -> Result<Self> {
        let entries: Vec<_> = folder.read_dir_utf8().with_context(|| folder.to_string())?.flatten().collect();
        let file = entries.iter().find(|entry| entry.file_name().starts_with(prefix));
        let file = file.with_context(|| format!("no {prefix}* in {folder}"))?.path();
        // SAFETY: the initialisers of NVIDIA's libraries have no preconditions.
        let loaded = unsafe { Loaded::open(Some(file.as_std_path()), RTLD_NOW | RTLD_GLOBAL) }
            .with_context(|| format!("loading {file}"))?;
        Ok(Library { loaded })
    }

    /// A function by its name; `F` is its type.
    pub fn function<F: Copy>(&self, name: &str) -> Result<F> {
        // SAFETY: every caller names the type of the function that it names; the library is not unloaded before.
        let symbol = unsafe { self.loaded.get::<F>(name.as_bytes()) };
        Ok(*symbol.with_context(|| format!("the library has no {name}"))?)
    }

    /// One of the results of a handle, by the functions that give its size and its bytes. The zero that ends a text is
    /// not part of it.
    pub fn bytes(&self, handle: Handle, size: &str, get: &str) -> Result<Vec<u8>> {
        let mut length = 0;
        // SAFETY: the handle is alive and `Size` writes one usize.
        let status = unsafe { self.function::<Size>(size)?(handle, &raw mut length) };
        ensure!(status == 0, "{size} answered {status}");
        let mut bytes = vec![0; length];
        // SAFETY: `Bytes` writes exactly as many bytes as `size` has just said.
        let status = unsafe { self.function::<Bytes>(get)?(handle, bytes.as_mut_ptr().cast()) };
        ensure!(status == 0, "{get} answered {status}");
        match CStr::from_bytes_with_nul(&bytes) {
            Ok(text) => Ok(text.to_bytes().to_vec()),
            Err(_) => Ok(bytes),
        }
    }

    /// A result that is text.
    pub fn text(&self, handle: Handle, size: &str, get: &str) -> Result<String> {
        let bytes = self.bytes(handle, size, get)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim().to_owned())
    }
}

/// Strings for C.
pub fn strings<S: AsRef<str>>(all: impl IntoIterator<Item = S>) -> Result<Vec<CString>> {
    all.into_iter().map(|one| Ok(CString::new(one.as_ref())?)).collect()
}

/// Their addresses.
pub fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}
