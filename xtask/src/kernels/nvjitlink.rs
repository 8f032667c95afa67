//! The calls of nvJitLink, NVIDIA's linker, that assemble PTX.

use std::ffi::{CString, c_char, c_int, c_void};

use anyhow::{Result, bail, ensure};
use cargo_metadata::camino::Utf8Path;

use super::library::{Handle, Library, pointers, strings};

type Create = unsafe extern "C" fn(*mut Handle, u32, *const *const c_char) -> c_int;
type Add = unsafe extern "C" fn(Handle, c_int, *const c_void, usize, *const c_char) -> c_int;
type Complete = unsafe extern "C" fn(Handle) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Handle) -> c_int;

/// `NVJITLINK_INPUT_PTX` of nvJitLink.h.
const INPUT_PTX: c_int = 2;

/// What the assembler made of PTX.
pub struct Code {
    /// The machine code, an ELF file.
    pub bytes: Vec<u8>,
    /// What each kernel needs, as the assembler says it.
    pub log: String,
}

/// A loaded nvJitLink.
pub struct NvJitLink {
    library: Library,
}

impl NvJitLink {
    /// Loads `libnvJitLink.so.*` of `folder`.
    pub fn load(folder: &Utf8Path) -> Result<Self> {
        Ok(Self { library: Library::open(folder, "libnvJitLink.so")? })
    }

    /// Assembles PTX for `architecture` (`sm_*`), as a driver does that loads it.
    ///
    /// # Errors
    /// The assembler's messages.
    pub fn assemble(&self, ptx: &str, architecture: &str) -> Result<Code> {
        let options = strings([format!("-arch={architecture}").as_str(), "-Xptxas=-v"])?;
        let list = pointers(&options);
        let mut link = std::ptr::null_mut();
        let create = self.library.function::<Create>("nvJitLinkCreate")?;
        // SAFETY: the options and their list, which has as many entries as the call says, outlive the call.
        let status = unsafe { create(&raw mut link, u32::try_from(list.len())?, list.as_ptr()) };
        ensure!(status == 0, "for {architecture}, nvJitLinkCreate answered {status}");
        let result = self.link(link, ptx, architecture);
        // SAFETY: the link was created above and is not used after this.
        unsafe { self.library.function::<Destroy>("nvJitLinkDestroy")?(&raw mut link) };
        result
    }

    fn link(&self, link: Handle, ptx: &str, architecture: &str) -> Result<Code> {
        let text = CString::new(ptx)?;
        let text = text.as_bytes_with_nul();
        let (add, complete) = (
            self.library.function::<Add>("nvJitLinkAddData")?,
            self.library.function::<Complete>("nvJitLinkComplete")?,
        );
        // SAFETY: the link is alive; the text, of the stated length, and the name outlive the call, which copies them.
        let added = unsafe { add(link, INPUT_PTX, text.as_ptr().cast(), text.len(), c"ptx".as_ptr()) };
        // SAFETY: the link is alive.
        let status = if added == 0 { unsafe { complete(link) } } else { added };
        if status != 0 {
            let log = self.library.text(link, "nvJitLinkGetErrorLogSize", "nvJitLinkGetErrorLog")?;
            bail!("for {architecture}, nvJitLink answered {status}: {log}");
        }
        Ok(Code {
            bytes: self.library.bytes(link, "nvJitLinkGetLinkedCubinSize", "nvJitLinkGetLinkedCubin")?,
            log: self.library.text(link, "nvJitLinkGetInfoLogSize", "nvJitLinkGetInfoLog")?,
        })
    }
}
