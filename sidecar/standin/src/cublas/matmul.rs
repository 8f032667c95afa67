//! A product that is queued on a stream.

use crate::address_space::View;

use super::epilogue::Activation;
use super::number::NumberFormat;
use super::product::{Source, multiply};

/// D = activation(alpha A B + beta C + bias), for each matrix of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Matmul {
    pub a: Operand,
    pub b: Operand,
    /// Only if beta is not zero.
    pub c: Option<Operand>,
    pub d: Operand,
    /// Rows of D, columns of D, and the length of a sum.
    pub shape: [usize; 3],
    pub batch: u32,
    /// Alpha and beta.
    pub scale: [f32; 2],
    /// Address and format of one number per row of D.
    pub bias: Option<(u64, NumberFormat)>,
    pub activation: Activation,
    /// Address and bytes of the workspace that the algorithm overwrites.
    pub workspace: (u64, u64),
}

/// A matrix by columns on the device.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    pub address: u64,
    pub format: NumberFormat,
    /// Elements from one column to the next.
    pub lead: usize,
    /// Bytes from the first to the last element.
    pub extent: u64,
    /// Bytes from one matrix of a batch to the next.
    pub batch_bytes: i64,
    pub is_transposed: bool,
}

impl Matmul {
    /// Computes it.
    ///
    /// # Errors
    /// The fault of the device if a matrix is not mapped.
    pub fn run(&self) -> Result<(), u32> {
        let view = View::new();
        let (workspace, bytes) = self.workspace;
        if bytes > 0 {
            let place = view.host(workspace, bytes)?;
            // SAFETY: inside the mapped range, which stays mapped while the view exists. NaN in every format: a matrix
            // that lies in the workspace by mistake makes the product wrong.
            unsafe { place.write_bytes(0xff, bytes as usize) };
        }
        (0..self.batch).try_for_each(|index| self.run_one(&view, index))
    }

    fn run_one(&self, view: &View, index: u32) -> Result<(), u32> {
        let place = |operand: &Operand| {
            let offset = operand.batch_bytes.wrapping_mul(index.into());
            view.host(operand.address.wrapping_add_signed(offset), operand.extent)
        };
        let source = |operand: &Operand| {
            let Operand { format, lead, is_transposed, .. } = *operand;
            Ok::<Source, u32>(Source { place: place(operand)?.cast_const(), format, lead, is_transposed })
        };
        let [m, n, k] = self.shape;
        let (a, b, out) = (source(&self.a)?, source(&self.b)?, place(&self.d)?);
        let added = self.c.as_ref().map(&source).transpose()?;
        let bias = match self.bias {
            Some((address, format)) => Some((view.host(address, m as u64 * format.bytes())?, format)),
            None => None,
        };
        let [alpha, beta] = self.scale;
        // SAFETY: all places below are inside mapped ranges of the sizes that the layouts say, which stay mapped while
        // the view exists.
        unsafe {
            multiply(&a, &b, [m, n, k], |row, column, sum| {
                let mut value = alpha * sum;
                if let Some(c) = added {
                    value += beta * c.format.read(c.place, column * c.lead + row);
                }
                if let Some((place, format)) = bias {
                    value += format.read(place, row);
                }
                self.d.format.write(out, column * self.d.lead + row, self.activation.apply(value));
            });
        }
        Ok(())
    }
}
