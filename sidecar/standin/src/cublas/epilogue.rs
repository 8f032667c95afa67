//! Epilogues: what happens to an element between the sum and its rounding.

use super::status::NOT_SUPPORTED;

/// A function of the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    None,
    Relu,
    /// The approximation by the hyperbolic tangent, as cuBLASLt documents it.
    Gelu,
}

/// A `cublasLtEpilogue_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epilogue {
    /// Whether the bias of the row is added first.
    pub has_bias: bool,
    /// What is applied then.
    pub activation: Activation,
}

impl Epilogue {
    /// Returns the epilogue with this number.
    pub fn from_code(code: u32) -> Result<Self, u32> {
        let (has_bias, activation) = match code {
            1 => (false, Activation::None),
            2 => (false, Activation::Relu),
            4 => (true, Activation::None),
            6 => (true, Activation::Relu),
            32 => (false, Activation::Gelu),
            36 => (true, Activation::Gelu),
            _ => return Err(NOT_SUPPORTED),
        };
        Ok(Self { has_bias, activation })
    }
}

impl Activation {
    /// Applies it.
    pub fn apply(self, value: f32) -> f32 {
        match self {
            Self::None => value,
            // A comparison with NaN is false: NaN stays NaN.
            Self::Relu => {
                if value < 0.0 {
                    0.0
                } else {
                    value
                }
            }
            Self::Gelu => {
                let inner = 0.797_884_6 * (value + 0.044_715 * value * value * value);
                0.5 * value * (1.0 + inner.tanh())
            }
        }
    }
}
