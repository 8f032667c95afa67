//! For the same orders a GPU's driver gets the calls that host memory executes: create, map, unmap, release, copy,
//! wait, signal. The calls of the host are those of its backing. Those of the GPU are the trace of the stand-in for the
//! driver, without the calls of the engine.

use sluice_memory::Faults;
use sluice_memory::backing::SignalWord;
use sluice_policy::action::{Address, Fill, FillTarget, LayerBlockMove, LayerBlockSwap, MapOp, Work};
use sluice_policy::event::Outcome;
use sluice_policy::ids::{ChunkId, Generation, HostBlockId, KvChunkId, LayerBlockId, LayerId, SlotId};

use super::{CHUNK_BYTES, GpuMachine, is_case};
use crate::harness::{Harness, LATE_WAITS_VAR, chunks, geometry, map_layer, remap, word_offset};
use crate::recorded_backing::{Bytes, Call, parts};

/// The variable that names the driver's trace.
const TRACE_VAR: &str = "SLUICE_STANDIN_TRACE";
/// Precedes each line of the trace in the output.
const MARK: &str = "call: ";

fn swap(layer_block: u32, chunk: u32, host: u32) -> LayerBlockSwap {
    LayerBlockSwap {
        layer_block: LayerBlockId(layer_block),
        chunk: ChunkId(chunk),
        host: HostBlockId(host),
        generation: Generation(7),
    }
}

/// Runs orders of every kind, one after the other, and returns what `calls` takes from the harness before its memory is
/// released. Faults must not change what happens.
fn run_orders<T>(faults: Faults, calls: impl Fn(&Harness) -> T) -> T {
    // Two layers of two and a half chunks, so that a slab is one copy of a GPU.
    let geometry = geometry(CHUNK_BYTES, 10, 2, CHUNK_BYTES * 5 / 2);
    let host_kv_bytes = 4 * geometry.layer_block_bytes;
    let mut world = Harness::with(&geometry, |options| {
        (options.host_kv_bytes, options.poison) = (host_kv_bytes, true);
    });
    world.memory.set_faults(faults);
    let [first, second] = [LayerId(0), LayerId(1)];
    world.succeed(Work::Create(chunks(0..8)));
    world.succeed(remap(map_layer(&geometry, first, 0), vec![]));
    let fill = |target, generation, after, chunks| {
        Work::Fill(Fill { target, generation: Generation(generation), after, chunks })
    };
    world.succeed(fill(FillTarget::Slot(SlotId(0), first), 1, None, chunks(0..3)));
    world.page.set_done(first, Generation(1));
    let after = Some((first, Generation(1)));
    world.succeed(fill(FillTarget::Slot(SlotId(0), second), 2, after, chunks(0..3)));
    // Chunks in another order: a GPU copies each run of consecutive ones at once.
    let scattered = [4, 5, 3].map(ChunkId).to_vec();
    world.succeed(fill(FillTarget::Resident(second), 3, None, scattered));
    let kv = |at| Address::Kv(KvChunkId(at));
    let handed_over = vec![ChunkId(6), ChunkId(7)];
    world.succeed(remap(vec![MapOp::Map(kv(0), ChunkId(6)), MapOp::Map(kv(1), ChunkId(7))], handed_over));
    let moved = LayerBlockMove {
        from: LayerBlockId(1),
        from_chunk: ChunkId(6),
        to: LayerBlockId(9),
        to_chunk: ChunkId(7),
    };
    world.succeed(Work::MoveLayerBlocks(vec![moved]));
    world.succeed(Work::SwapOut(vec![swap(0, 6, 0), swap(2, 6, 1)]));
    world.succeed(Work::SwapIn(vec![swap(8, 7, 1)]));
    world.succeed(remap(vec![MapOp::Unmap(kv(1), ChunkId(7))], vec![]));
    world.succeed(Work::Release(vec![ChunkId(7)]));
    assert!(matches!(world.run(Work::Create(chunks(7..9))), Outcome::Done { .. }));
    calls(&world)
}

fn calls_on_host() -> Vec<Call> {
    run_orders(Faults::default(), |world| counted_from_least(world.calls.calls()))
}

/// Returns the calls of the driver in a process on the GPU.
fn calls_on_gpu(case: &str, variables: &[(&'static str, &str)]) -> Vec<Call> {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let machine = GpuMachine::new().with(TRACE_VAR, trace.to_str().unwrap());
    let machine = variables.iter().fold(machine, |machine, (name, value)| machine.with(name, value));
    let stdout = machine.run_case(case);
    driver_calls(&stdout.lines().filter_map(|line| line.strip_prefix(MARK)).collect::<Vec<_>>())
}

/// A call of the trace: thread, function, arguments.
struct Traced<'a> {
    thread: &'a str,
    name: &'a str,
    arguments: Vec<u64>,
}

impl<'a> Traced<'a> {
    fn new(line: &'a str) -> Traced<'a> {
        let mut words = line.split_whitespace();
        let (thread, name) = (words.next().unwrap(), words.next().unwrap());
        // Pointers to structures are of no interest.
        Traced { thread, name, arguments: words.map(|word| word.parse().unwrap_or(u64::MAX)).collect() }
    }
}

/// Translates a trace. The engine is the thread that imports chunks.
fn driver_calls(trace: &[&str]) -> Vec<Call> {
    let traced: Vec<Traced<'_>> = trace.iter().map(|line| Traced::new(line)).collect();
    let import = "cuMemImportFromShareableHandle";
    let engine = traced.iter().find(|call| call.name == import).expect("the engine imports chunks").thread;
    let calls: Vec<&Traced<'_>> = traced.iter().filter(|call| call.thread != engine).collect();
    let maps = || calls.iter().filter(|call| call.name == "cuMemMap");
    let base = maps().map(|call| call.arguments[0]).min().expect("chunks are mapped");
    let chunk = |address: u64| (address - base) / CHUNK_BYTES;
    let place = |address: u64| (chunk(address), (address - base) % CHUNK_BYTES);
    // A handle is used for one chunk until it is released.
    let chunk_of =
        |handle: u64| maps().find(|call| call.arguments[3] == handle).map(|map| chunk(map.arguments[0]));
    let translate = |call: &&Traced<'_>| -> Vec<Call> {
        let at = |index: usize| call.arguments[index];
        match call.name {
            "cuMemCreate" => vec![Call::Create],
            "cuMemMap" => vec![Call::Map(chunk(at(0)))],
            "cuMemUnmap" => vec![Call::Unmap(chunk(at(0)))],
            "cuMemRelease" => chunk_of(at(0)).map(Call::Release).into_iter().collect(),
            "cuMemcpyHtoDAsync_v2" => {
                let upload = |(chunk, part)| Call::Upload(chunk, part);
                parts(at(0) - base, at(2), CHUNK_BYTES).map(upload).collect()
            }
            "cuMemcpyDtoHAsync_v2" => {
                let (chunk, offset) = place(at(1));
                vec![Call::Download(chunk, Bytes { offset, bytes: at(2) })]
            }
            "cuMemcpyDtoDAsync_v2" => vec![Call::Copy { from: place(at(1)), to: place(at(0)), bytes: at(2) }],
            "cuMemsetD32Async" => vec![Call::Poison(chunk(at(0)))],
            "cuStreamWaitValue64_v2" => vec![Call::Wait(at(1), at(2))],
            "cuStreamWriteValue64_v2" => vec![Call::Signal(at(1), at(2))],
            _ => vec![],
        }
    };
    counted_from_least(calls.iter().flat_map(translate).collect())
}

/// Words count from the first of those that occur.
fn counted_from_least(mut calls: Vec<Call>) -> Vec<Call> {
    let word = |call: &Call| match call {
        Call::Wait(word, _) | Call::Signal(word, _) => Some(*word),
        _ => None,
    };
    let least = calls.iter().filter_map(word).min().unwrap_or(0);
    for call in &mut calls {
        if let Call::Wait(word, _) | Call::Signal(word, _) = call {
            *word -= least;
        }
    }
    calls
}

/// Returns the first call that differs, or that only one of them makes.
fn first_difference(one: &[Call], other: &[Call]) -> Option<(Option<Call>, Option<Call>)> {
    let mut places = 0..one.len().max(other.len());
    let call = |calls: &[Call], at: usize| calls.get(at).copied();
    places.find(|at| call(one, *at) != call(other, *at)).map(|at| (call(one, at), call(other, at)))
}

/// The wait of the second layer's fill for its reader.
fn wait() -> Call {
    let least = word_offset(SignalWord::Ready(Some(LayerId(0)))).unwrap();
    Call::Wait(word_offset(SignalWord::Done(LayerId(0))).unwrap() - least, 1)
}

/// What the fill copies first.
const FIRST_COPY: Call = Call::Upload(0, Bytes { offset: 0, bytes: CHUNK_BYTES });

#[test]
fn the_driver_gets_the_calls_that_host_memory_executes() {
    let (host, on_gpu) = (calls_on_host(), calls_on_gpu("cuda::sequence::traced_calls", &[]));
    assert_eq!(first_difference(&host, &on_gpu), None, "{host:#?}");
    // What the sequence must contain, by the contract of `Memory`.
    let at = |call: Call| {
        let place = on_gpu.iter().position(|made| *made == call);
        place.unwrap_or_else(|| panic!("{call:?} in {on_gpu:#?}"))
    };
    let place = at(wait());
    let fill = &on_gpu[place + 1..][..4];
    assert!(fill[..3].iter().all(|call| matches!(call, Call::Upload(..))), "{fill:?}");
    assert!(
        matches!(fill[3], Call::Signal(_, 2)),
        "the copies of a slab are between wait and signal: {fill:?}"
    );
    assert_eq!(at(Call::Unmap(7)) + 1, at(Call::Release(7)));
    assert!(at(Call::Poison(6)) < at(Call::Download(6, Bytes { offset: 0, bytes: CHUNK_BYTES / 8 })));
}

/// Negative control: the copies on the GPU do not wait for their reader.
#[test]
fn a_wait_that_the_copies_leave_out_is_a_difference() {
    let on_gpu = calls_on_gpu("cuda::sequence::traced_calls_without_waits", &[]);
    assert_eq!(first_difference(&calls_on_host(), &on_gpu), Some((Some(wait()), Some(FIRST_COPY))));
}

/// Negative control: the driver gets the wait after the first copy.
#[test]
fn a_wait_after_the_first_copy_is_a_difference() {
    let on_gpu = calls_on_gpu("cuda::sequence::traced_calls", &[(LATE_WAITS_VAR, "1")]);
    let host = calls_on_host();
    assert_eq!(first_difference(&host, &on_gpu), Some((Some(wait()), Some(FIRST_COPY))));
    assert_eq!(on_gpu.len(), host.len(), "it is the order alone");
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn traced_calls() {
    print_trace(Faults::default());
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn traced_calls_without_waits() {
    print_trace(Faults { skip_after_wait: true, ..Faults::default() });
}

fn print_trace(faults: Faults) {
    if !is_case() {
        return;
    }
    let path = std::env::var_os(TRACE_VAR).unwrap();
    let trace = run_orders(faults, |_| std::fs::read_to_string(&path).unwrap());
    // The name of the test has no end of line.
    println!();
    trace.lines().for_each(|line| println!("{MARK}{line}"));
}
