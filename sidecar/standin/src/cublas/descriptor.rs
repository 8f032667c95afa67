//! Descriptors of products, matrices and preferences, with their attributes.

use std::ffi::c_void;

use crate::abi::OutPtr;

use super::number::NumberFormat;
use super::status::{INVALID_VALUE, NOT_SUPPORTED};

/// `cublasLtMatmulDesc_t`.
#[derive(Clone, Copy, Debug)]
pub struct MatmulDescriptor {
    /// `cublasComputeType_t`.
    pub compute: u32,
    /// `cudaDataType_t` of alpha and beta.
    pub scale: u32,
    /// Where alpha and beta are: 0 is the host.
    pub pointer_mode: u32,
    /// `cublasOperation_t` of A, B and C.
    pub operations: [u32; 3],
    /// `cublasLtEpilogue_t`.
    pub epilogue: u32,
    /// Device address of the bias.
    pub bias: u64,
    /// `cudaDataType_t` of the bias; `u32::MAX` stands for that of D.
    pub bias_format: u32,
}

/// `cublasLtMatrixLayout_t`.
#[derive(Clone, Copy, Debug)]
pub struct MatrixLayout {
    pub format: NumberFormat,
    pub rows: u64,
    pub columns: u64,
    /// Elements from one column to the next.
    pub lead: i64,
    pub batch: i32,
    /// Elements from one matrix of a batch to the next.
    pub batch_stride: i64,
    /// `cublasLtOrder_t`: 0 is by columns.
    pub order: u32,
}

/// `cublasLtMatmulPreference_t`.
#[derive(Clone, Copy, Debug)]
pub struct Preference {
    /// Most bytes of workspace.
    pub workspace: u64,
    /// Least alignment of A, B, C and D in bytes.
    pub alignment: [u32; 4],
    /// Bits of `cublasLtReductionScheme_t` that are allowed.
    pub reductions: u32,
}

impl MatmulDescriptor {
    /// Describes a product with the library's defaults.
    pub fn new(compute: u32, scale: u32) -> Self {
        Self {
            compute,
            scale,
            pointer_mode: 0,
            operations: [0; 3],
            epilogue: 1,
            bias: 0,
            bias_format: u32::MAX,
        }
    }

    /// Sets an attribute.
    pub fn set(&mut self, attribute: u32, value: AttributeBytes) -> Result<(), u32> {
        match attribute {
            0 => self.compute = value.u32()?,
            1 => self.scale = value.u32()?,
            2 => self.pointer_mode = value.u32()?,
            3..=5 => self.operations[attribute as usize - 3] = value.u32()?,
            7 => self.epilogue = value.u32()?,
            8 => self.bias = value.u64()?,
            26 => self.bias_format = value.u32()?,
            _ => return Err(NOT_SUPPORTED),
        }
        Ok(())
    }

    /// Returns an attribute: its value and its length in bytes.
    pub fn get(&self, attribute: u32) -> Result<(u64, usize), u32> {
        match attribute {
            0 => Ok((self.compute.into(), 4)),
            1 => Ok((self.scale.into(), 4)),
            2 => Ok((self.pointer_mode.into(), 4)),
            3..=5 => Ok((self.operations[attribute as usize - 3].into(), 4)),
            7 => Ok((self.epilogue.into(), 4)),
            8 => Ok((self.bias, 8)),
            26 => Ok((self.bias_format.into(), 4)),
            _ => Err(NOT_SUPPORTED),
        }
    }
}

impl MatrixLayout {
    /// Describes a matrix by columns. The library checks its numbers when it is used.
    pub fn new(format: NumberFormat, rows: u64, columns: u64, lead: i64) -> Self {
        Self { format, rows, columns, lead, batch: 1, batch_stride: 0, order: 0 }
    }

    /// Sets an attribute.
    pub fn set(&mut self, attribute: u32, value: AttributeBytes) -> Result<(), u32> {
        match attribute {
            0 => self.format = NumberFormat::from_code(value.u32()?)?,
            1 => self.order = value.u32()?,
            2 => self.rows = value.u64()?,
            3 => self.columns = value.u64()?,
            4 => self.lead = value.u64()?.cast_signed(),
            5 => self.batch = value.u32()?.cast_signed(),
            6 => self.batch_stride = value.u64()?.cast_signed(),
            _ => return Err(NOT_SUPPORTED),
        }
        Ok(())
    }

    /// Returns an attribute: its value and its length in bytes.
    pub fn get(&self, attribute: u32) -> Result<(u64, usize), u32> {
        match attribute {
            0 => Ok((self.format.code().into(), 4)),
            1 => Ok((self.order.into(), 4)),
            2 => Ok((self.rows, 8)),
            3 => Ok((self.columns, 8)),
            4 => Ok((self.lead.cast_unsigned(), 8)),
            5 => Ok((self.batch.cast_unsigned().into(), 4)),
            6 => Ok((self.batch_stride.cast_unsigned(), 8)),
            _ => Err(NOT_SUPPORTED),
        }
    }

    /// Checks that the matrix exists: by columns, not empty, no column longer than the distance to the next.
    pub fn check(&self) -> Result<(), u32> {
        if self.order != 0 {
            return Err(NOT_SUPPORTED);
        }
        let fits = u64::try_from(self.lead).is_ok_and(|lead| lead >= self.rows);
        if fits && self.rows > 0 && self.columns > 0 && self.batch > 0 { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// Returns the bytes from the first to the last element of one matrix.
    pub fn extent(&self) -> u64 {
        (self.lead.cast_unsigned() * (self.columns - 1) + self.rows) * self.format.bytes()
    }
}

impl Default for Preference {
    /// The library's defaults: no workspace, pointers with an alignment of 256 bytes.
    fn default() -> Self {
        Self { workspace: 0, alignment: [256; 4], reductions: u32::MAX }
    }
}

impl Preference {
    /// Sets an attribute. Those without meaning for one algorithm are accepted and have no effect.
    pub fn set(&mut self, attribute: u32, value: AttributeBytes) -> Result<(), u32> {
        match attribute {
            1 => self.workspace = value.u64()?,
            3 => self.reductions = value.u32()?,
            5..=8 => self.alignment[attribute as usize - 5] = value.u32()?,
            0 | 9 | 11 | 12 | 13 => {}
            _ => return Err(NOT_SUPPORTED),
        }
        Ok(())
    }
}

/// The value of an attribute that a caller sets.
#[derive(Clone, Copy)]
pub struct AttributeBytes {
    bytes: [u8; 8],
    length: usize,
}

impl AttributeBytes {
    /// Reads the caller's buffer.
    ///
    /// # Safety
    /// `place` is null or points to `length` bytes.
    pub unsafe fn read(place: *const c_void, length: usize) -> Result<Self, u32> {
        if place.is_null() || length == 0 || length > 8 {
            return Err(INVALID_VALUE);
        }
        let mut bytes = [0; 8];
        // SAFETY: not null, so `length` bytes, which are not more than there is space for.
        unsafe { std::ptr::copy_nonoverlapping(place.cast::<u8>(), bytes.as_mut_ptr(), length) };
        Ok(Self { bytes, length })
    }

    /// Returns a value of 32 bits; another length is refused.
    fn u32(self) -> Result<u32, u32> {
        let [a, b, c, d, ..] = self.bytes;
        if self.length == 4 { Ok(u32::from_ne_bytes([a, b, c, d])) } else { Err(INVALID_VALUE) }
    }

    /// Returns a value of 64 bits; another length is refused.
    fn u64(self) -> Result<u64, u32> {
        if self.length == 8 { Ok(u64::from_ne_bytes(self.bytes)) } else { Err(INVALID_VALUE) }
    }
}

/// Writes an attribute into the caller's buffer of `space` bytes. Without a buffer only its length is returned.
pub fn write_attribute(
    (value, length): (u64, usize),
    place: *mut c_void,
    space: usize,
    written: &OutPtr<usize>,
) -> Result<(), u32> {
    if space == 0 {
        return written.set(length).map_err(|_| INVALID_VALUE);
    }
    if place.is_null() || space < length {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller has space for `space` bytes, which are enough.
    unsafe { std::ptr::copy_nonoverlapping(value.to_ne_bytes().as_ptr(), place.cast::<u8>(), length) };
    // The length is optional here.
    let _ = written.set(length);
    Ok(())
}
