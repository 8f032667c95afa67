//! The library: its file and its functions.

use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::os::unix::Library as File;

use super::super::{Driver, Error};

/// `cublasLtMatmulAlgo_t`: opaque.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Algorithm([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Heuristic {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Bytes of workspace that it uses.
    pub workspace_bytes: usize,
    state: u32,
    waves: f32,
    reserved: [c_int; 4],
}

/// Returns the names of files that fit a driver of this major version of CUDA, the best first. A driver runs libraries
/// of its own version and of earlier ones, and the kernels of Sluice need CUDA 12.
pub fn file_names(cuda_major: u32) -> Vec<String> {
    (12..=cuda_major.min(13)).rev().map(|major| format!("libcublasLt.so.{major}")).collect()
}

/// Defines the table of functions, and looks each up by its name.
macro_rules! functions {
    ($($(#[$meta:meta])* $field:ident = $symbol:literal: fn($($argument:ty),* $(,)?) -> $result:ty;)*) => {
        /// The functions of a loaded file, which is never unloaded: its code may still run on the device.
        #[derive(Debug)]
        pub struct Library {
            /// Name of the file.
            pub file: String,
            $($(#[$meta])* pub $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Library {
            fn of(file: &File, name: &str) -> Result<Library, Error> {
                Ok(Library {
                    file: name.to_owned(),
                    $($field: {
                        // SAFETY: the type is that of `cublasLt.h`, of CUDA 12 and 13 alike.
                        let found = unsafe {
                            file.get::<unsafe extern "C" fn($($argument),*) -> $result>($symbol.as_bytes())
                        };
                        *found.map_err(|_| Error::OldCublasLt { file: name.to_owned(), lacks: $symbol })?
                    },)*
                })
            }
        }
    };
}

functions! {
    /// Creates a handle.
    create = "cublasLtCreate": fn(*mut *mut c_void) -> u32;
    /// Destroys a handle.
    destroy = "cublasLtDestroy": fn(*mut c_void) -> u32;
    /// Returns the library's version.
    version = "cublasLtGetVersion": fn() -> usize;
    /// Returns the name of a status.
    status_name = "cublasLtGetStatusName": fn(u32) -> *const c_char;
    /// Creates the descriptor of a product: compute type, scale type.
    create_product = "cublasLtMatmulDescCreate": fn(*mut *mut c_void, u32, u32) -> u32;
    /// Destroys it.
    destroy_product = "cublasLtMatmulDescDestroy": fn(*mut c_void) -> u32;
    /// Sets an attribute: its number, its value, the value's bytes.
    set_product = "cublasLtMatmulDescSetAttribute": fn(*mut c_void, u32, *const c_void, usize) -> u32;
    /// Creates the descriptor of a matrix: format, rows, columns, numbers from one column to the next.
    create_matrix = "cublasLtMatrixLayoutCreate": fn(*mut *mut c_void, u32, u64, u64, i64) -> u32;
    /// Destroys it.
    destroy_matrix = "cublasLtMatrixLayoutDestroy": fn(*mut c_void) -> u32;
    /// Creates a preference.
    create_preference = "cublasLtMatmulPreferenceCreate": fn(*mut *mut c_void) -> u32;
    /// Destroys it.
    destroy_preference = "cublasLtMatmulPreferenceDestroy": fn(*mut c_void) -> u32;
    /// Sets an attribute, as of a product.
    set_preference = "cublasLtMatmulPreferenceSetAttribute": fn(*mut c_void, u32, *const c_void, usize) -> u32;
    /// Chooses algorithms: handle, product, A, B, C, D, preference, most results, results, their number.
    heuristic = "cublasLtMatmulAlgoGetHeuristic": fn(
        *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void, *mut c_void,
        c_int, *mut Heuristic, *mut c_int,
    ) -> u32;
    /// Queues a product: handle, product, alpha, A, B, beta, C, D (each with its layout), algorithm, workspace, stream.
    matmul = "cublasLtMatmul": fn(
        *mut c_void, *mut c_void, *const f32, u64, *mut c_void, u64, *mut c_void,
        *const f32, u64, *mut c_void, u64, *mut c_void,
        *const Algorithm, u64, usize, *mut c_void,
    ) -> u32;
}

impl Library {
    /// Loads the first file that there is.
    pub fn load(driver: Driver) -> Result<Library, Error> {
        let names = file_names(driver.cuda_major());
        for name in &names {
            // SAFETY: loads a library by its name; its initializers are its own.
            if let Ok(file) = unsafe { File::new(name) } {
                let library = Library::of(&file, name);
                // The functions stay valid.
                std::mem::forget(file);
                return library;
            }
        }
        Err(Error::NoCublasLt { files: names.join(" or "), cuda: driver.cuda_version() })
    }
}

/// Converts the status of `call`, with the library's name for it if it is an error.
pub fn check(library: &Library, call: &'static str, status: u32) -> Result<(), Error> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: takes any number.
    let name = unsafe { (library.status_name)(status) };
    let status = if name.is_null() {
        status.to_string()
    } else {
        // SAFETY: not null, so a constant string of the library, which is never unloaded.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    };
    Err(Error::CublasLt { call, status })
}

#[cfg(test)]
mod tests {
    use cudarc::cublaslt::sys;

    use super::{Algorithm, Heuristic, file_names};

    #[test]
    fn a_driver_gets_the_library_of_its_version_or_an_earlier_one() {
        assert_eq!(file_names(13), ["libcublasLt.so.13", "libcublasLt.so.12"]);
        assert_eq!(file_names(12), ["libcublasLt.so.12"], "a library of CUDA 13 needs a driver of CUDA 13");
        assert_eq!(file_names(14), file_names(13), "a later driver runs both");
        assert_eq!(file_names(11), [""; 0]);
    }

    #[test]
    fn structures_are_those_of_the_header() {
        assert_eq!(size_of::<Algorithm>(), size_of::<sys::cublasLtMatmulAlgo_t>());
        assert_eq!(size_of::<Heuristic>(), size_of::<sys::cublasLtMatmulHeuristicResult_t>());
        assert_eq!(
            std::mem::offset_of!(Heuristic, workspace_bytes),
            std::mem::offset_of!(sys::cublasLtMatmulHeuristicResult_t, workspaceSize)
        );
    }
}
