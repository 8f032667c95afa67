//! The words of the control page, at the device's addresses.

use std::os::fd::OwnedFd;

use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;

use crate::backing::{BackingError, SignalWord};
use crate::cuda::{Address, Context, PinnedMemory};

/// The control page, as `sluice_link` lays it out.
#[derive(Debug)]
pub struct ControlFile {
    /// Its memfd.
    pub file: OwnedFd,
    /// Its size.
    pub bytes: u64,
    /// Returns the byte offset of a word; `None` if the page does not have it.
    pub offset: fn(SignalWord) -> Option<u64>,
}

/// A registered control page.
#[derive(Debug)]
pub(super) struct ControlWords {
    page: PinnedMemory,
    base: Address,
    offset: fn(SignalWord) -> Option<u64>,
}

impl ControlWords {
    /// Maps the page for the device; `None` if the device or its driver cannot wait for words of 64 bits.
    pub(super) fn register(
        context: &Context,
        control: ControlFile,
    ) -> Result<Option<ControlWords>, BackingError> {
        if !can_signal(context) {
            return Ok(None);
        }
        let ControlFile { file, bytes, offset } = control;
        let page = PinnedMemory::from_file(context, file, bytes)?;
        Ok(Some(ControlWords { base: page.address()?, page, offset }))
    }

    /// Returns the device's address of a word, if the page has it.
    pub(super) fn address(&self, word: SignalWord) -> Option<Address> {
        let offset = (self.offset)(word)?;
        assert!(offset + 8 <= self.page.bytes(), "{word:?} lies in the page");
        Some(self.base + offset)
    }
}

/// Whether streams wait for words of 64 bits and write them.
fn can_signal(context: &Context) -> bool {
    let (device, driver) = (context.device(), context.device().driver());
    let functions = ["cuStreamWaitValue64_v2", "cuStreamWriteValue64_v2"];
    let supported = device.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
    supported.is_ok_and(|value| value != 0) && functions.iter().all(|name| driver.optional(name).is_ok())
}
