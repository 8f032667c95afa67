//! A worker's link: memory that both sides see, the control page, and every way in which a call can fail.

use std::time::{Duration, Instant};

use serde_json::json;
use sluice_link::error::LinkError;
use sluice_link::message::{KvExtents, KvLayout, Loaded, Moving, RefusalReason};
use sluice_link::server::FirstMessage;
use sluice_link::server::worker::{WorkerEvent, WorkerLink};
use sluice_link::vocabulary::*;
use sluice_vllm_link::*;

use crate::c_link::*;
use crate::host_sidecar::*;

fn layer(layer: u16, part: u32) -> Address {
    Address::Layer(LayerId(layer), part)
}

fn kv(at: u32) -> Address {
    Address::Kv(KvChunkId(at))
}

fn map(address: Address, chunk: u32) -> MapOp {
    MapOp::Map(address, ChunkId(chunk))
}

/// Returns the bytes of a range.
fn bytes<'a>(address: u64, length: u64) -> &'a mut [u8] {
    // SAFETY: the caller names mapped bytes, and no other reference to them exists in the test's process.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, length as usize) }
}

/// Sends changes, lets the worker apply them, and returns its reply.
fn remap(
    link: &mut WorkerLink,
    worker: &CLink,
    id: u64,
    ops: &[MapOp],
) -> (Result<(), Refused>, WorkerEvent) {
    link.sender.send_remap(ActionId(id), ops).unwrap();
    assert_eq!(worker.next()["id"], id);
    let applied = worker.apply(id);
    (applied, link.receiver.recv_within(LIMIT).unwrap())
}

#[test]
fn bytes_that_one_side_writes_are_read_by_the_other() {
    let sidecar = HostSidecar::new();
    let (mut link, worker) = sidecar.worker();
    let setup = json!({
        "device": "host", "device_uuid": null, "chunk_bytes": CHUNK, "capacity_chunks": 16,
        "layer_chunks": [2, 2, 3], "kv_chunks": 8,
    });
    assert_eq!(worker.setup(), setup);
    worker.reserve().unwrap();
    let ranges: Vec<_> = (0..3).map(|layer| worker.layer_range(layer).unwrap()).collect();
    assert_eq!(ranges.iter().map(|(_, bytes)| bytes / CHUNK).collect::<Vec<_>>(), [2, 2, 3]);
    let (kv_start, kv_bytes) = worker.kv_range().unwrap();
    assert_eq!(kv_bytes, 8 * CHUNK);

    let ops =
        [map(layer(0, 0), 5), map(layer(0, 1), 6), map(layer(1, 0), 9), map(layer(1, 1), 2), map(kv(3), 7)];
    link.sender.send_remap(ActionId(1), &ops).unwrap();
    assert_eq!(worker.next(), json!({"type": "remap", "id": 1, "maps": 5, "unmaps": 0}));
    worker.apply(1).unwrap();
    assert_eq!(link.receiver.recv_within(LIMIT).unwrap(), WorkerEvent::Applied { id: ActionId(1) });

    bytes(ranges[0].0, 2 * CHUNK).fill(7);
    assert_eq!((sidecar.read(5), sidecar.read(6)), (vec![7; CHUNK as usize], vec![7; CHUNK as usize]));
    sidecar.fill(2, 9);
    assert!(bytes(ranges[1].0 + CHUNK, CHUNK).iter().all(|byte| *byte == 9));

    // The layers share a slot: one chunk behind two addresses.
    let ops = [MapOp::Unmap(layer(1, 1), ChunkId(2)), map(layer(1, 1), 6)];
    assert_eq!(remap(&mut link, &worker, 2, &ops), (Ok(()), WorkerEvent::Applied { id: ActionId(2) }));
    bytes(ranges[1].0 + CHUNK, CHUNK)[17] = 1;
    assert_eq!(bytes(ranges[0].0 + CHUNK, CHUNK)[17], 1);

    sidecar.fill(7, 0xff);
    link.sender.send_zero(ActionId(3), &[KvChunkId(3)]).unwrap();
    assert_eq!(worker.next(), json!({"type": "zero", "id": 3, "positions": 1}));
    assert_eq!(sidecar.read(7)[0], 0xff, "not before the caller says so");
    worker.apply(3).unwrap();
    assert_eq!(link.receiver.recv_within(LIMIT).unwrap(), WorkerEvent::Applied { id: ActionId(3) });
    assert_eq!(sidecar.read(7), vec![0; CHUNK as usize]);
    assert!(bytes(kv_start + 3 * CHUNK, CHUNK).iter().all(|byte| *byte == 0));
}

#[test]
fn an_order_that_contradicts_the_mappings_is_refused_and_changes_nothing() {
    let sidecar = HostSidecar::new();
    let (mut link, worker) = sidecar.worker();
    worker.reserve().unwrap();
    remap(&mut link, &worker, 1, &[map(layer(0, 0), 1)]).0.unwrap();
    let bad = [map(layer(0, 1), 2), map(layer(0, 0), 3)];
    let (applied, event) = remap(&mut link, &worker, 2, &bad);
    let (code, reason) = applied.unwrap_err();
    assert_eq!(code, SLUICE_REFUSED);
    assert!(reason.contains("ChunkId(1)"), "{reason}");
    assert_eq!(event, WorkerEvent::Refused { id: ActionId(2), message: reason });
    let beyond = remap(&mut link, &worker, 3, &[map(layer(0, 1), 16)]).0.unwrap_err();
    assert!(beyond.1.contains("outside the pool"), "{beyond:?}");
    assert!(remap(&mut link, &worker, 4, &[map(layer(3, 0), 2)]).0.is_err());
    link.sender.send_zero(ActionId(5), &[KvChunkId(0)]).unwrap();
    worker.next();
    assert_eq!(
        worker.apply(5).unwrap_err(),
        (SLUICE_REFUSED, "position 0 of the KV range is not backed".to_owned())
    );
    link.receiver.recv_within(LIMIT).unwrap();
    remap(&mut link, &worker, 6, &[map(layer(0, 1), 2)]).0.expect("it was rolled back");
}

#[test]
fn a_worker_loads_and_announces_its_kv() {
    let sidecar = HostSidecar::new();
    let (mut link, worker) = sidecar.worker();
    worker.reserve().unwrap();
    worker.send(r#"{"type": "loaded", "layer_bytes": [1, 2, 3]}"#).unwrap();
    let loaded = WorkerEvent::Loaded(Loaded { layer_bytes: vec![1, 2, 3] });
    assert_eq!(link.receiver.recv_within(LIMIT).unwrap(), loaded);
    link.sender.send_captured().unwrap();
    assert_eq!(worker.next(), json!({"type": "captured"}));
    let layout = KvLayout {
        layers: 2,
        blocks: 4,
        block_bytes: 100,
        layer_stride_bytes: 400,
        block_stride_bytes: 101,
        block_tokens: 16,
    };
    worker
        .send(
            r#"{"type": "kv_layout", "layers": 2, "blocks": 4, "block_bytes": 100, "layer_stride_bytes": 400,
                "block_stride_bytes": 101, "block_tokens": 16}"#,
        )
        .unwrap();
    assert_eq!(link.receiver.recv_within(LIMIT).unwrap(), WorkerEvent::KvLayout(layout));
    link.sender.send_kv_accepted(KvExtents { extent_blocks: 2, extents: 9 }).unwrap();
    assert_eq!(worker.next(), json!({"type": "kv_accepted", "extent_blocks": 2, "extents": 9}));

    let moving = Moving { id: ActionId(4), layers: vec![LayerId(0), LayerId(2)], first_pass: 8 };
    link.sender.send_moving(moving).unwrap();
    assert_eq!(worker.next(), json!({"type": "moving", "id": 4, "layers": [0, 2], "first_pass": 8}));
    assert_eq!(worker.apply(4).unwrap_err().0, SLUICE_STATE, "the caller replies to it");
    worker.send(r#"{"type": "applied", "id": 4}"#).unwrap();
    assert_eq!(link.receiver.recv_within(LIMIT).unwrap(), WorkerEvent::Applied { id: ActionId(4) });
    worker.shutdown().unwrap();
    assert_eq!(link.receiver.recv_within(LIMIT).unwrap(), WorkerEvent::Bye);
    assert_eq!(worker.receive(0).unwrap_err().0, SLUICE_CLOSED);
}

#[test]
fn refusals_of_the_sidecar_have_their_reason() {
    let sidecar = HostSidecar::new();
    let other = sidecar.connecting(CLink::worker, &WORKER.replace("\"ranks\": 1", "\"ranks\": 2"));
    let connection = sidecar.listener.accept(LIMIT).unwrap().unwrap();
    assert!(matches!(connection.recv_first(), Err(LinkError::Ranks { rank: 0, ranks: 2 })));
    let (code, reason) = other.join().unwrap().unwrap_err();
    assert_eq!(code, SLUICE_REFUSED);
    assert!(reason.contains("(ranks)") && reason.contains("rank 0 of 2"), "{reason}");

    let other = sidecar.connecting(CLink::worker, WORKER);
    let FirstMessage::Worker(worker) = sidecar.first() else { panic!("a worker connected") };
    worker.refuse(RefusalReason::Engine, "vllm 0.32.0 is not supported").unwrap();
    let refused = other.join().unwrap().unwrap_err();
    assert_eq!(refused.1, "the sidecar refuses this engine (engine): vllm 0.32.0 is not supported");

    let (mut link, worker) = sidecar.worker();
    worker.send(r#"{"type": "loaded", "layer_bytes": [0, 0, 0]}"#).unwrap();
    link.receiver.recv_within(LIMIT).unwrap();
    link.sender.refuse_layout("no").unwrap();
    assert_eq!(worker.next(), json!({"type": "setup_refused", "reason": "layout", "message": "no"}));
    assert_eq!(worker.receive(-1).unwrap_err().0, SLUICE_CLOSED);
}

#[test]
fn passes_wait_for_moving_layers_and_are_recorded() {
    let sidecar = HostSidecar::new();
    let (_link, worker) = sidecar.worker();
    let pass = worker.begin_pass().unwrap();
    assert_eq!((pass, sidecar.control.passes_begun(), sidecar.control.passes_ended()), (1, 1, 0));
    let lease = |pass, generation| {
        sidecar.control.publish_lease(LayerId(2), pass, generation).unwrap();
    };
    sidecar.control.publish_ready(LayerId(2), Generation(40)).unwrap();
    assert_eq!(
        worker.wait_ready(2, pass, 20).unwrap_err().0,
        SLUICE_TIMEOUT,
        "no copy is leased to the pass"
    );
    lease(pass, Some(Generation(41)));
    assert_eq!(
        worker.wait_ready(2, pass, 20).unwrap_err().0,
        SLUICE_TIMEOUT,
        "an earlier copy is not its own"
    );
    sidecar.control.publish_ready(LayerId(2), Generation(41)).unwrap();
    worker.wait_ready(2, pass, -1).unwrap();
    worker.publish_done(2, pass).unwrap();
    assert_eq!(sidecar.control.done(LayerId(2)).unwrap(), Generation(41));
    worker.end_pass(pass).unwrap();
    let record = sidecar.control.pass_record(1).unwrap();
    assert_eq!((record.total_ns, record.stall_ns, record.tokens, record.sequences), (100, 10, 7, 2));
    let progress = sidecar.control.progress();
    // SAFETY: the link exists.
    checked(unsafe { sluice_begin_layer(worker.0) }).unwrap();
    assert_ne!(sidecar.control.progress(), progress);
    lease(2, None);
    worker.wait_ready(2, 2, -1).unwrap();
    worker.publish_done(2, 2).unwrap();
    assert_eq!(sidecar.control.done(LayerId(2)).unwrap(), Generation(41), "the layer is resident");
    lease(3, Some(Generation(42)));
    assert_eq!(worker.wait_ready(2, 2, -1).unwrap_err().0, SLUICE_OVERTAKEN, "a later pass has the lease");
    sidecar.control.publish_ready(LayerId(2), Generation(43)).unwrap();
    assert_eq!(worker.wait_ready(2, 3, -1).unwrap_err().0, SLUICE_OVERTAKEN, "a later copy is in the slot");
    assert_eq!(worker.wait_ready(3, 2, -1).unwrap_err().0, SLUICE_INVALID, "there are three layers");
    assert_eq!(worker.publish_done(1 << 16, 2).unwrap_err().0, SLUICE_INVALID);
}

#[test]
fn a_wait_ends_when_the_sidecar_is_gone() {
    let sidecar = HostSidecar::new();
    let (link, worker) = sidecar.worker();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| worker.wait_ready(0, 5, -1));
        link.sender.shutdown();
        assert_eq!(waiting.join().unwrap().unwrap_err().0, SLUICE_CLOSED, "without a call that receives");
    });
    let (link, worker) = sidecar.worker();
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| worker.receive(-1));
        let waiting = scope.spawn(|| worker.wait_ready(0, 5, -1));
        drop(link);
        assert_eq!(receiving.join().unwrap().unwrap_err().0, SLUICE_CLOSED);
        assert_eq!(waiting.join().unwrap().unwrap_err().0, SLUICE_CLOSED);
    });
    assert_eq!(worker.send(r#"{"type": "loaded", "layer_bytes": []}"#).unwrap_err().0, SLUICE_CLOSED);
}

#[test]
fn calls_that_do_not_fit_are_refused_and_send_nothing() {
    let sidecar = HostSidecar::new();
    let (mut link, worker) = sidecar.worker();
    assert_eq!(worker.layer_range(0).unwrap_err().0, SLUICE_STATE, "the ranges are not reserved");
    worker.reserve().unwrap();
    assert_eq!(worker.reserve().unwrap_err().0, SLUICE_STATE, "they are");
    assert_eq!(worker.layer_range(3).unwrap_err().0, SLUICE_INVALID);
    assert_eq!(worker.apply(1).unwrap_err(), (SLUICE_STATE, "there is no order 1".to_owned()));
    for text in ["", "{}", r#"{"type": "held"}"#, r#"{"type": "applied", "id": -1}"#, "\u{0}"] {
        assert_eq!(worker.send(text).unwrap_err().0, SLUICE_INVALID, "{text}");
    }
    let many = vec!["0"; 5000].join(",");
    let loaded = format!(r#"{{"type": "loaded", "layer_bytes": [{many}]}}"#);
    assert_eq!(worker.send(&loaded).unwrap_err().0, SLUICE_INVALID, "more layers than a model has");
    assert_eq!(worker.send(r#"{"type": "applied", "id": 1}"#).unwrap_err().0, SLUICE_STATE);

    link.sender.send_remap(ActionId(1), &[map(layer(0, 0), 1)]).unwrap();
    link.sender.send_zero(ActionId(2), &[]).unwrap();
    assert_eq!((worker.next()["id"].clone(), worker.next()["id"].clone()), (json!(1), json!(2)));
    let (code, reason) = worker.apply(2).unwrap_err();
    assert_eq!((code, reason.as_str()), (SLUICE_STATE, "order 2 is not what comes next, which is order 1"));
    assert_eq!(worker.send(r#"{"type": "applied", "id": 1}"#).unwrap_err().0, SLUICE_STATE, "it is not done");
    assert!(matches!(link.receiver.recv_within(Duration::ZERO), Err(LinkError::Timeout(_))));
    worker.apply(1).unwrap();
    worker.apply(2).unwrap();
    for id in [1, 2] {
        assert_eq!(link.receiver.recv_within(LIMIT).unwrap(), WorkerEvent::Applied { id: ActionId(id) });
    }
}

#[test]
fn null_pointers_and_time_limits_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let absent = CLink::connect(sluice_worker_connect, &folder.path().join("none"), WORKER, 60).unwrap_err();
    assert!(begun.elapsed() >= Duration::from_millis(60), "it tries again");
    assert!(absent.1.contains("none"), "{absent:?}");
    let null = CLink(std::ptr::null_mut());
    assert_eq!(null.receive(0).unwrap_err(), (SLUICE_INVALID, "the link is null".to_owned()));
    assert_eq!(null.reserve().unwrap_err().0, SLUICE_INVALID);
    let sidecar = HostSidecar::new();
    let (_link, worker) = sidecar.worker();
    // SAFETY: null places are refused.
    let code = unsafe { sluice_receive(worker.0, 0, std::ptr::null_mut(), std::ptr::null_mut()) };
    assert_eq!(code, SLUICE_INVALID);
    // SAFETY: a null text is refused.
    assert_eq!(unsafe { sluice_send(worker.0, std::ptr::null(), 3) }, SLUICE_INVALID);
    assert_eq!(worker.receive(20).unwrap_err().0, SLUICE_TIMEOUT);
    assert_eq!(worker.receive(0).unwrap_err().0, SLUICE_TIMEOUT, "and the link is usable");
    let silent = CLink::connect(sluice_worker_connect, &sidecar.path, WORKER, 40).unwrap_err();
    assert_eq!(silent.0, SLUICE_TIMEOUT, "the sidecar accepts nothing");
    let hello = CLink::connect(sluice_worker_connect, &sidecar.path, "{}", 40).unwrap_err();
    assert_eq!(hello.0, SLUICE_INVALID);
}
