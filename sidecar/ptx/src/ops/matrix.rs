//! `ldmatrix` and `mma.sync`, with the layouts of fragments of the PTX manual: lane 4 g + t has, of an 8 x 8 matrix of
//! 16-bit values, row g, columns 2 t and 2 t + 1.
//!
//! A product is exact, and sums run over k from 0 up in f32, rounded to nearest after each step. A GPU adds several
//! products at once with more bits and cuts the sum off, so its last bits differ.

use std::marker::PhantomData;

use crate::fault::Access;
use crate::float;
use crate::instruction::Instruction;
use crate::lanes::{LANES, Lanes, Slot};
use crate::operation::{Body, Operation};
use crate::ops::access::addresses;
use crate::place::Named;

/// `ldmatrix.x{b}`: lane 8 m + r has the address of row r of matrix m.
struct LoadMatrix<const TRANSPOSED: bool, const W: bool>;

impl<const TRANSPOSED: bool, const W: bool> Body for LoadMatrix<TRANSPOSED, W> {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        // SAFETY: slots are those of the kernel; pointers come from the view, which has checked them.
        unsafe {
            let count = i.b as usize;
            let all = addresses::<W>(lanes, i);
            let mut rows = [[0u16; 8]; LANES];
            lanes.view.count(Named::of(i.detail), &all, 16, u32::MAX >> (32 - 8 * count));
            for l in 0..8 * count {
                let found = lanes.view.place(Named::of(i.detail), all[l], 16, l);
                let found = found.and_then(|found| lanes.view.check_read(found, 16, Access::Read, l));
                match found {
                    Ok(place) => rows[l] = place.cast::<[u16; 8]>().read(),
                    Err(kind) => return lanes.fail(kind, l),
                }
            }
            for m in 0..count {
                let matrix: &[[u16; 8]] = &rows[8 * m..8 * m + 8];
                let mut d = [0u32; LANES];
                for l in 0..LANES {
                    let (g, t) = (l / 4, 2 * (l % 4));
                    let (low, high) = if TRANSPOSED {
                        (matrix[t][g], matrix[t + 1][g])
                    } else {
                        (matrix[g][t], matrix[g][t + 1])
                    };
                    d[l] = u32::from(low) | u32::from(high) << 16;
                }
                lanes.put::<u32>(i.list[m], &d);
            }
        }
    }
}

pub(crate) fn load_matrix(transposed: bool, wide: bool) -> Operation {
    match (transposed, wide) {
        (false, false) => Operation::of::<LoadMatrix<false, false>>(),
        (false, true) => Operation::of::<LoadMatrix<false, true>>(),
        (true, false) => Operation::of::<LoadMatrix<true, false>>(),
        (true, true) => Operation::of::<LoadMatrix<true, true>>(),
    }
}

/// A 16-bit float of a matrix.
trait Half {
    fn widen(bits: u16) -> f32;
}

struct F16;
struct Bf16;

impl Half for F16 {
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        float::from_f16(bits)
    }
}

impl Half for Bf16 {
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        float::from_bf16(bits)
    }
}

/// An 8 x 8 matrix as the 32 lanes hold it in one register: lane after lane, its 64 halves are the rows in order.
///
/// # Safety
/// `slot` is a register of the kernel.
#[inline(always)]
unsafe fn fragment<H: Half>(lanes: &Lanes, slot: Slot) -> [[f32; 8]; 8] {
    // SAFETY: the caller's promise.
    let words = unsafe { lanes.get::<u32>(slot) };
    let mut matrix = [[0.0; 8]; 8];
    for g in 0..8 {
        for t in 0..4 {
            let word = words[4 * g + t];
            matrix[g][2 * t] = H::widen(word as u16);
            matrix[g][2 * t + 1] = H::widen((word >> 16) as u16);
        }
    }
    matrix
}

/// `mma.sync.aligned.m16n8k{8,16}.row.col.f32.T.T.f32`. `list` has 4 registers of D, then those of A, of B, and `a`, `b`,
/// `c`, `d` are those of C. A's fragments are rows 0 to 7 and 8 to 15 of columns 0 to 7, then of 8 to 15; B's are rows 0
/// to 7, then 8 to 15, each as its transpose.
struct Multiply<H, const K: usize>(PhantomData<H>);

impl<H: Half, const K: usize> Body for Multiply<H, K> {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        // SAFETY: slots are those of the kernel.
        unsafe {
            let mut sums = sums_of(lanes, i);
            for step in 0..K / 8 {
                let transposed = fragment::<H>(lanes, i.list[4 + K / 4 + step]);
                let mut b = [[0.0f32; 8]; 8];
                for k in 0..8 {
                    for n in 0..8 {
                        b[k][n] = transposed[n][k];
                    }
                }
                for half in 0..2 {
                    let a = fragment::<H>(lanes, i.list[4 + 2 * step + half]);
                    for row in 0..8 {
                        let mut sum = sums[8 * half + row];
                        for k in 0..8 {
                            for n in 0..8 {
                                sum[n] = a[row][k].mul_add(b[k][n], sum[n]);
                            }
                        }
                        sums[8 * half + row] = sum;
                    }
                }
            }
            put_sums(lanes, i, &sums);
        }
    }
}

/// The 16 x 8 matrix C.
///
/// # Safety
/// The slots are registers of the kernel.
#[inline(always)]
unsafe fn sums_of(lanes: &Lanes, i: &Instruction) -> [[f32; 8]; 16] {
    let mut sums = [[0.0; 8]; 16];
    for (half, (even, odd)) in [(i.a, i.b), (i.c, i.d)].into_iter().enumerate() {
        // SAFETY: the caller's promise.
        let (even, odd) = unsafe { (lanes.get::<f32>(even), lanes.get::<f32>(odd)) };
        for l in 0..LANES {
            let row = &mut sums[8 * half + l / 4];
            row[2 * (l % 4)] = f32::from_bits(even[l]);
            row[2 * (l % 4) + 1] = f32::from_bits(odd[l]);
        }
    }
    sums
}

/// Sets the registers of D.
///
/// # Safety
/// The slots are registers of the kernel.
#[inline(always)]
unsafe fn put_sums(lanes: &mut Lanes, i: &Instruction, sums: &[[f32; 8]; 16]) {
    for half in 0..2 {
        let (mut even, mut odd) = ([0; LANES], [0; LANES]);
        for l in 0..LANES {
            let row = &sums[8 * half + l / 4];
            even[l] = float::canonical(row[2 * (l % 4)]).to_bits();
            odd[l] = float::canonical(row[2 * (l % 4) + 1]).to_bits();
        }
        // SAFETY: the caller's promise.
        unsafe {
            lanes.put::<f32>(i.list[2 * half], &even);
            lanes.put::<f32>(i.list[2 * half + 1], &odd);
        }
    }
}

/// `mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32`: lane 4 g + t has A's row g (and g + 8), columns t and t + 4, and
/// B's rows t and t + 4, column g. The lower 13 bits of an operand do not count.
struct MultiplyTf32;

impl Body for MultiplyTf32 {
    #[inline(always)]
    unsafe fn run(lanes: &mut Lanes, i: &Instruction) {
        let (mut a, mut b) = ([[0.0f32; 8]; 16], [[0.0f32; 8]; 8]);
        let cut = |bits: u32| f32::from_bits(bits & 0xffff_e000);
        // SAFETY: slots are those of the kernel.
        unsafe {
            for part in 0..4 {
                let words = lanes.get::<u32>(i.list[4 + part]);
                for l in 0..LANES {
                    a[l / 4 + 8 * (part & 1)][l % 4 + 4 * (part >> 1)] = cut(words[l]);
                }
            }
            for part in 0..2 {
                let words = lanes.get::<u32>(i.list[8 + part]);
                for l in 0..LANES {
                    b[l % 4 + 4 * part][l / 4] = cut(words[l]);
                }
            }
            let mut sums = sums_of(lanes, i);
            for (row, sum) in sums.iter_mut().enumerate() {
                for k in 0..8 {
                    for n in 0..8 {
                        sum[n] = a[row][k].mul_add(b[k][n], sum[n]);
                    }
                }
            }
            put_sums(lanes, i, &sums);
        }
    }
}

/// The product of a shape and a type: the operation, and how many registers A and B have.
pub(crate) fn multiply(shape: &str, ty: &str) -> Option<(Operation, usize, usize)> {
    Some(match (shape, ty) {
        ("m16n8k16", "bf16") => (Operation::of::<Multiply<Bf16, 16>>(), 4, 2),
        ("m16n8k16", "f16") => (Operation::of::<Multiply<F16, 16>>(), 4, 2),
        ("m16n8k8", "bf16") => (Operation::of::<Multiply<Bf16, 8>>(), 2, 1),
        ("m16n8k8", "f16") => (Operation::of::<Multiply<F16, 8>>(), 2, 1),
        ("m16n8k8", "tf32") => (Operation::of::<MultiplyTf32>(), 4, 2),
        _ => return None,
    })
}
