//! Types of PTX instructions.

/// The type that an opcode ends with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ty {
    Pred,
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    F16,
    Bf16,
    B32,
    U32,
    S32,
    F32,
    Tf32,
    F16x2,
    Bf16x2,
    B64,
    U64,
    S64,
    F64,
}

/// What a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum Width {
    Pred,
    /// Zero-extended to 32 bits.
    W16,
    W32,
    W64,
}

impl Ty {
    pub fn parse(word: &str) -> Option<Ty> {
        Some(match word {
            "pred" => Ty::Pred,
            "b8" => Ty::B8,
            "u8" => Ty::U8,
            "s8" => Ty::S8,
            "b16" => Ty::B16,
            "u16" => Ty::U16,
            "s16" => Ty::S16,
            "f16" => Ty::F16,
            "bf16" => Ty::Bf16,
            "b32" => Ty::B32,
            "u32" => Ty::U32,
            "s32" => Ty::S32,
            "f32" => Ty::F32,
            "tf32" => Ty::Tf32,
            "f16x2" => Ty::F16x2,
            "bf16x2" => Ty::Bf16x2,
            "b64" => Ty::B64,
            "u64" => Ty::U64,
            "s64" => Ty::S64,
            "f64" => Ty::F64,
            _ => return None,
        })
    }

    pub fn bytes(self) -> u64 {
        match self {
            Ty::Pred | Ty::B8 | Ty::U8 | Ty::S8 => 1,
            Ty::B16 | Ty::U16 | Ty::S16 | Ty::F16 | Ty::Bf16 => 2,
            Ty::B32 | Ty::U32 | Ty::S32 | Ty::F32 | Ty::Tf32 | Ty::F16x2 | Ty::Bf16x2 => 4,
            Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64 => 8,
        }
    }

    /// The registers that hold a value of this type.
    pub fn width(self) -> Width {
        match (self, self.bytes()) {
            (Ty::Pred, _) => Width::Pred,
            (_, 1 | 2) => Width::W16,
            (_, 4) => Width::W32,
            _ => Width::W64,
        }
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
    }

    /// The unsigned type of the same size, for operations that do not depend on the sign.
    pub fn bits(self) -> Ty {
        match self.width() {
            Width::Pred => Ty::Pred,
            Width::W16 if self.bytes() == 1 => Ty::U8,
            Width::W16 => Ty::U16,
            Width::W32 => Ty::U32,
            Width::W64 => Ty::U64,
        }
    }
}
