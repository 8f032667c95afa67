//! Check 8: missing features of the device, with the driver's reason.

use std::time::Duration;

use cudarc::driver::sys::CUdevice_attribute::{self as Attribute, *};
use cudarc::driver::sys::CUmemAllocationHandleType;
use sluice_memory::cuda::{self, Chunk, PinnedMemory, Range, Stream, granularity};

use super::check::Check;
use crate::Error;
use crate::bench::Bench;
use crate::report::Answer;
use crate::results::Findings;
use crate::statistics::Figure;

/// Check 8.
pub const CHECK: Check = Check {
    id: 8,
    name: "limits",
    text: "Can the device do what the design asks for: map handles, export them as descriptors, register a memfd's pages, \
           and wait in a stream for a 64-bit word there? What else can it not do?",
    mib: 64,
    quick_mib: 64,
    limit: Duration::from_secs(20),
    ask,
};

/// Time limit for a wait whose word is already written.
const AT_ONCE: Duration = Duration::from_secs(2);

/// A device attribute and the feature that it stands for.
type Flag = (Attribute, &'static str);

/// Features that the design requires.
const REQUIRED: [Flag; 5] = [
    (CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, "mapping of handles"),
    (CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, "handles as file descriptors"),
    (CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, "registered host memory"),
    (CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, "host memory mapped for the device"),
    (CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "one address space"),
];

/// Features that the design could use.
const OPTIONAL: [Flag; 11] = [
    (CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, "64-bit wait values (attribute)"),
    (CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, "access to pageable host memory (also by page faults)"),
    (
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
        "coherent access to host memory (by the host's page tables)",
    ),
    (CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, "native atomics on host memory"),
    (CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, "access of the host to managed device memory"),
    (CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, "preemption of kernels"),
    (CU_DEVICE_ATTRIBUTE_MPS_ENABLED, "MPS (in use here)"),
    (CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, "fabric handles (attribute)"),
    (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, "DMA buffers"),
    (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, "RDMA to mapped handles"),
    (CU_DEVICE_ATTRIBUTE_INTEGRATED, "memory shared with the host (integrated)"),
];

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    let mut lacks: Vec<String> = REQUIRED.iter().filter_map(|flag| missing(bench, flag)).collect();
    let page = PinnedMemory::registered(&bench.context, 4096);
    for (what, outcome) in [
        (
            "64-bit wait and write values on a registered memfd page",
            page.and_then(|page| waits(bench, &page)),
        ),
        ("a handle with a descriptor, mapped", maps(bench)),
    ] {
        lacks.extend(outcome.err().map(|error| format!("{what}: {error}")));
    }
    let unwelcome = OPTIONAL.iter().filter_map(|flag| missing(bench, flag));
    findings.notes.extend(unwelcome.map(|lack| format!("no {lack}")));
    findings.notes.extend(attempted_features(bench)?);
    findings.notes.extend(exclusive(bench.device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)?));
    findings.notes.extend(partitions(&bench.device.name()?));
    findings.figures.extend(counts(bench)?);
    Ok(Answer::of(lacks.is_empty(), || format!("no {}", lacks.join("; no "))))
}

/// Describes the restriction of a compute mode other than the default.
fn exclusive(mode: i32) -> Option<String> {
    match mode {
        0 => None,
        2 => Some("compute mode: prohibited, no process can use the device".into()),
        3 => Some(
            "compute mode: exclusive, so that one process at a time can use the device without MPS: questions 2, 3, 5 and 6 \
             need two"
                .into(),
        ),
        mode => Some(format!("compute mode: {mode}")),
    }
}

/// Returns the missing feature, with the driver's error if there is one.
fn missing(bench: &Bench, (attribute, what): &Flag) -> Option<String> {
    match bench.device.attribute(*attribute) {
        Ok(0) => Some(format!("{what}: reported by the driver")),
        Ok(_) => None,
        Err(error) => Some(format!("{what}: {error}")),
    }
}

/// One stream writes a word, another one waits for it.
fn waits(bench: &Bench, page: &PinnedMemory) -> Result<(), cuda::Error> {
    const WORD: u64 = 0x1_0000_0001;
    let (writer, waiting) = (Stream::new(&bench.context)?, Stream::new(&bench.context)?);
    writer.write_value(page.address()?, WORD)?;
    writer.finish_within(AT_ONCE)?;
    waiting.wait_value(page.address()?, WORD)?;
    let waited = waiting.finish_within(AT_ONCE);
    if waited.is_err() {
        // The page must not be freed while a stream waits for it, so write the word.
        page.word(0).store(WORD, std::sync::atomic::Ordering::SeqCst);
        waiting.finish_within(AT_ONCE)?;
    }
    waited
}

fn maps(bench: &Bench) -> Result<(), cuda::Error> {
    let bytes = granularity(bench.device)?;
    let handle = Chunk::create(&bench.context, bytes)?;
    let mut range = Range::reserve(&bench.context, bytes)?;
    range.map_with_access(0, &handle)?;
    handle.export().map(drop)
}

/// Tries features that no attribute reports. The design assumes that none of them works.
fn attempted_features(bench: &Bench) -> Result<Vec<String>, Error> {
    let bytes = granularity(bench.device)?;
    let whole = Chunk::create(&bench.context, 2 * bytes)?;
    let mut range = Range::reserve(&bench.context, 2 * bytes)?;
    let outcomes = [
        ("part of a handle can be mapped", range.map_part(0, &whole, bytes, bytes)),
        ("fabric handles can be made", fabric(bench, bytes)),
        ("handles of host memory can be made", Chunk::create_on_host(&bench.context, 0, bytes).map(drop)),
    ];
    let note = |(what, outcome): (&str, Result<(), cuda::Error>)| match outcome {
        Ok(()) => what.to_owned(),
        Err(error) => format!("not supported: {what}: {error}"),
    };
    Ok(outcomes.map(note).to_vec())
}

fn fabric(bench: &Bench, bytes: u64) -> Result<(), cuda::Error> {
    Chunk::create_as(&bench.context, bytes, CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC).map(drop)
}

/// Describes how this device can be partitioned, as far as an unprivileged process can see.
fn partitions(name: &str) -> Vec<String> {
    let mig = if name.contains("MIG") {
        "this is a MIG instance".to_owned()
    } else if std::path::Path::new("/proc/driver/nvidia/capabilities/mig").exists() {
        "not a MIG instance; the kernel's driver knows MIG".to_owned()
    } else {
        "no MIG: not a MIG instance, and /proc/driver/nvidia/capabilities/mig does not exist".to_owned()
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let control = std::env::split_paths(&path).map(|folder| folder.join("nvidia-cuda-mps-control"));
    let found = control.into_iter().any(|file| file.is_file());
    let mps = if found {
        "MPS can be started: nvidia-cuda-mps-control is on PATH"
    } else {
        "MPS cannot be started: nvidia-cuda-mps-control is not on PATH"
    };
    vec![mig, mps.into()]
}

fn counts(bench: &Bench) -> Result<Vec<Figure>, Error> {
    let mut figures =
        vec![Figure::single("granularity of handles", "KiB", (granularity(bench.device)? >> 10) as f64)];
    for (attribute, name, unit) in [
        (CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, "copy engines", "engines"),
        (CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "multiprocessors", "units"),
        (CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, "second-level cache", "bytes"),
    ] {
        figures.push(Figure::single(name, unit, bench.device.attribute(attribute)?.into()));
    }
    Ok(figures)
}
