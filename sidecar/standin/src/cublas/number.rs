//! Number formats of matrices: `cudaDataType_t` as far as it is used, and their conversion to and from f32.

use super::status::NOT_SUPPORTED;

/// The format of a matrix's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberFormat {
    F32,
    F16,
    Bf16,
}

impl NumberFormat {
    /// Returns the format with this number of `cudaDataType_t`.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for other formats.
    pub fn from_code(code: u32) -> Result<Self, u32> {
        match code {
            0 => Ok(Self::F32),
            2 => Ok(Self::F16),
            14 => Ok(Self::Bf16),
            _ => Err(NOT_SUPPORTED),
        }
    }

    /// Returns the number of `cudaDataType_t`.
    pub fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 2,
            Self::Bf16 => 14,
        }
    }

    /// Returns the bytes of an element.
    pub fn bytes(self) -> u64 {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// Reads element `index` of the elements at `place`.
    ///
    /// # Safety
    /// `place` points to more than `index` elements of this format.
    #[inline]
    pub unsafe fn read(self, place: *const u8, index: usize) -> f32 {
        // SAFETY: the caller's guarantee.
        unsafe {
            match self {
                Self::F32 => place.cast::<f32>().add(index).read_unaligned(),
                Self::F16 => f16_to_f32(place.cast::<u16>().add(index).read_unaligned()),
                Self::Bf16 => bf16_to_f32(place.cast::<u16>().add(index).read_unaligned()),
            }
        }
    }

    /// Writes element `index` of the elements at `place`, rounded to the nearest, ties to even.
    ///
    /// # Safety
    /// `place` points to space for more than `index` elements of this format, which only the caller uses.
    #[inline]
    pub unsafe fn write(self, place: *mut u8, index: usize, value: f32) {
        // SAFETY: the caller's guarantee.
        unsafe {
            match self {
                Self::F32 => place.cast::<f32>().add(index).write_unaligned(value),
                Self::F16 => place.cast::<u16>().add(index).write_unaligned(f32_to_f16(value)),
                Self::Bf16 => place.cast::<u16>().add(index).write_unaligned(f32_to_bf16(value)),
            }
        }
    }
}

/// Converts a bf16 number.
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Converts to the nearest bf16 number, ties to even.
#[inline]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Converts an f16 number.
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // The exponent is 112 less than that of f32: the product corrects it, for subnormal numbers too.
    let finite = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let special = f32::from_bits(magnitude | 0x7f80_0000);
    let value = if magnitude >= 0x0f80_0000 { special } else { finite };
    f32::from_bits(value.to_bits() | sign)
}

/// Converts to the nearest f16 number, ties to even; too large numbers become infinite.
#[inline]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    // 65520 is the tie between the largest number and infinity.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // A subnormal number: adding 0.5 rounds at the bit with the value 2^-24.
        let rounded = f32::from_bits(magnitude) + 0.5;
        return sign | (rounded.to_bits() - 0x3f00_0000) as u16;
    }
    let rounded = magnitude - 0x3800_0000 + 0xfff + (magnitude >> 13 & 1);
    sign | (rounded >> 13) as u16
}

#[cfg(test)]
mod tests {
    use super::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

    #[test]
    fn every_f16_number_survives_the_way_through_f32() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if value.is_nan() {
                assert!(f16_to_f32(f32_to_f16(value)).is_nan());
            } else {
                assert_eq!(f32_to_f16(value), bits, "{value}");
            }
        }
    }

    #[test]
    fn values_of_f16_are_those_of_ieee_754() {
        // From the definition of binary16: the largest, one, the least normal, the least, a third.
        let known = [(0x7bff, 65504.0), (0x3c00, 1.0), (0x0400, 6.103_515_6e-5), (1, 5.960_464_5e-8)];
        known.iter().for_each(|(bits, value)| assert_eq!(f16_to_f32(*bits), *value));
        assert_eq!(f32_to_f16(1.0 / 3.0), 0x3555);
        assert_eq!((f32_to_f16(65519.9), f32_to_f16(65520.0)), (0x7bff, 0x7c00));
        // 1 + 2^-11 lies between 1 and the next number: the even one is 1.
        assert_eq!(f32_to_f16(1.0 + 0.000_488_281_25), 0x3c00);
    }

    #[test]
    fn bf16_rounds_to_the_nearest_and_ties_to_even() {
        assert_eq!(f32_to_bf16(1.0), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80, "a tie, down to even");
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82, "a tie, up to even");
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8001)), 0x3f81);
        assert!(bf16_to_f32(f32_to_bf16(f32::NAN)).is_nan());
    }
}
