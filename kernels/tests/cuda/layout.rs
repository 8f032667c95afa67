//! The argument structures against what the PTX reads of its parameters.

use std::collections::{BTreeMap, BTreeSet};

use sluice_kernels::cuda::attention::{Attention, AttentionF32, AttentionMerge};
use sluice_kernels::cuda::embedding::Embed;
use sluice_kernels::cuda::gemm::{Elementwise, Gemm};
use sluice_kernels::cuda::memory::{CheckReady, Fill, KvCopy, WaitReady};
use sluice_kernels::cuda::norm::Norm;
use sluice_kernels::cuda::rope::{RopeAngles, RopeKv};
use sluice_kernels::cuda::sampling::{ArgmaxParts, ArgmaxRows, TopK};
use sluice_kernels::cuda::{Field, Layout, Module};

/// Size and numbers (offset and bytes) of an argument.
struct Argument {
    bytes: usize,
    numbers: BTreeSet<(usize, usize)>,
}

impl Argument {
    /// Whether a read is one of a number, or of its low bytes, where the compiler needs no more.
    fn has(&self, (offset, bytes): (usize, usize)) -> bool {
        self.numbers.iter().any(|(start, size)| *start == offset && bytes <= *size)
    }
}

fn argument<A: Layout>() -> Argument {
    let mut numbers = BTreeSet::new();
    collect(A::FIELDS, 0, &mut numbers);
    Argument { bytes: size_of::<A>(), numbers }
}

fn collect(fields: &[Field], start: usize, to: &mut BTreeSet<(usize, usize)>) {
    for field in fields {
        if field.inner.is_empty() {
            to.insert((start + field.offset, field.bytes));
        } else {
            collect(field.inner, start + field.offset, to);
        }
    }
}

/// The argument of each kernel, by the start of its name.
fn arguments() -> Vec<(&'static str, Argument)> {
    vec![
        ("sluice_attention_f32", argument::<AttentionF32>()),
        ("sluice_attention_merge_", argument::<AttentionMerge>()),
        ("sluice_attention_", argument::<Attention>()),
        ("sluice_embed_", argument::<Embed>()),
        ("sluice_gemm_", argument::<Gemm>()),
        ("sluice_elementwise_", argument::<Elementwise>()),
        ("sluice_kv_", argument::<KvCopy>()),
        ("sluice_fill", argument::<Fill>()),
        ("sluice_wait_ready", argument::<WaitReady>()),
        ("sluice_check_ready", argument::<CheckReady>()),
        ("sluice_norm_", argument::<Norm>()),
        ("sluice_rope_angles", argument::<RopeAngles>()),
        ("sluice_rope_kv_", argument::<RopeKv>()),
        ("sluice_argmax_parts", argument::<ArgmaxParts>()),
        ("sluice_argmax_rows", argument::<ArgmaxRows>()),
        ("sluice_top_k", argument::<TopK>()),
    ]
}

/// What a kernel's text says of its argument.
#[derive(Default)]
struct Reads {
    /// Size of the one parameter.
    bytes: usize,
    /// Offset and size of each number that is read.
    numbers: BTreeSet<(usize, usize)>,
    /// Offsets of the addresses in registers.
    registers: BTreeMap<String, usize>,
}

impl Reads {
    /// Reads one instruction: `mov` and `add` pass addresses on, `ld.param` reads.
    fn instruction(&mut self, name: &str, operands: &str) {
        let words: Vec<_> = operands.split([',', ' ', ';', '\t']).filter(|word| !word.is_empty()).collect();
        let place = |base: &str| {
            if base.ends_with("_param_0") { Some(0) } else { self.registers.get(base).copied() }
        };
        if name.starts_with("mov.") && words.len() == 2 {
            let offset = place(words[1]);
            self.registers.extend(offset.map(|offset| (words[0].to_owned(), offset)));
        } else if name.starts_with("add.s64") && words.len() == 3 {
            let offset = place(words[1]).and_then(|start| Some(start + words[2].parse::<usize>().ok()?));
            self.registers.extend(offset.map(|offset| (words[0].to_owned(), offset)));
        } else if name.starts_with("ld.param.") {
            let parts: Vec<_> = name.split('.').collect();
            let number = parts.last().unwrap()[1..].parse::<usize>().unwrap() / 8;
            let count =
                parts.iter().find_map(|part| part.strip_prefix('v')).map_or(1, |n| n.parse().unwrap());
            let address = operands.split(['[', ']']).nth(1).unwrap();
            let (base, offset) = address.split_once('+').unwrap_or((address, "0"));
            let start = place(base).expect("an address of the argument") + offset.parse::<usize>().unwrap();
            self.numbers.extend((0..count).map(|i| (start + i * number, number)));
        }
    }
}

/// What a module's text says of each kernel's argument.
fn reads(ptx: &str) -> BTreeMap<String, Reads> {
    let mut all: BTreeMap<String, Reads> = BTreeMap::new();
    let mut kernel = String::new();
    for line in ptx.lines() {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix(".visible .entry ") {
            kernel = rest.split('(').next().unwrap().to_owned();
        } else if line.starts_with(".param ") {
            // .param .align 8 .b8 name_param_0[56]
            let bytes = line.split(['[', ']']).nth(1).unwrap().parse().unwrap();
            let reads = Reads { bytes, ..Reads::default() };
            assert!(all.insert(kernel.clone(), reads).is_none(), "{kernel} has one parameter");
        } else if let (Some(reads), Some((name, operands))) =
            (all.get_mut(&kernel), line.split_once(char::is_whitespace))
        {
            reads.instruction(name, operands);
        }
    }
    all
}

#[test]
fn every_kernel_reads_its_argument_as_the_structure_lays_it_out() {
    let arguments = arguments();
    let mut kernels = 0;
    for module in Module::ALL {
        for (kernel, reads) in reads(module.ptx()) {
            let (_, argument) = arguments.iter().find(|(start, _)| kernel.starts_with(start)).expect(&kernel);
            assert_eq!(argument.bytes, reads.bytes, "{kernel}");
            assert!(!reads.numbers.is_empty(), "{kernel} reads nothing");
            for number in reads.numbers {
                assert!(argument.has(number), "{kernel} reads {number:?}: of no field");
            }
            kernels += 1;
        }
    }
    assert!(kernels > 40, "{kernels} kernels");
}

#[test]
fn a_read_between_two_fields_is_found() {
    let entry = ".visible .entry sluice_fill(\n.param .align 8 .b8 sluice_fill_param_0[24]\n)\n";
    let read = "mov.b64 %rd1, sluice_fill_param_0;\nadd.s64 %rd2, %rd1, 8;\nld.param.u32 \t%r1, [%rd2+8];";
    let numbers = |text: String| reads(&text).remove("sluice_fill").unwrap().numbers;
    let found = |text| numbers(text).into_iter().all(|number| argument::<Fill>().has(number));
    assert!(found(format!("{entry}{read}")), "the pattern");
    assert!(!found(format!("{entry}{read}").replace("+8", "+10")), "between two fields");
    assert!(!found(format!("{entry}{read}").replace("u32", "u64")), "two fields at once");
}
