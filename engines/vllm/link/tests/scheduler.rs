//! A scheduler's link.

use serde_json::json;
use sluice_link::message::{Demand, Held, Resume, Retired};
use sluice_link::server::scheduler::SchedulerEvent;
use sluice_link::vocabulary::ActionId;
use sluice_vllm_link::*;

use crate::c_link::CLink;
use crate::host_sidecar::{HostSidecar, LIMIT};

#[test]
fn a_scheduler_is_held_gives_extents_up_and_is_granted_others() {
    let sidecar = HostSidecar::new();
    let (mut link, scheduler) = sidecar.scheduler();
    assert_eq!((link.hello.blocks, link.hello.max_model_len, link.hello.pid), (64, 512, std::process::id()));
    assert_eq!(scheduler.setup(), json!({"extent_blocks": 4, "extents": 16, "granted": [0, 1, 2]}));
    let demand =
        r#"{"type": "demand", "wanted_blocks": 3, "waiting": 1, "running": 2, "blocked": [["a", 3]]}"#;
    scheduler.send(demand).unwrap();
    let blocked = vec![("a".to_owned(), 3)];
    let demand = Demand { wanted_blocks: 3, waiting: 1, running: 2, blocked };
    assert_eq!(link.receiver.recv_within(LIMIT).unwrap(), SchedulerEvent::Demand(demand));

    link.sender.send_hold(ActionId(1)).unwrap();
    assert_eq!(scheduler.next(), json!({"type": "hold", "id": 1}));
    scheduler
        .send(r#"{"type": "held", "id": 1, "idle": [2], "wanted_blocks": 0, "waiting": 0, "running": 1}"#)
        .unwrap();
    let held = Held { id: ActionId(1), idle: vec![2], wanted_blocks: 0, waiting: 0, running: 1 };
    assert_eq!(link.receiver.recv_within(LIMIT).unwrap(), SchedulerEvent::Held(held));
    link.sender.send_retire(ActionId(2), 2).unwrap();
    assert_eq!(scheduler.next(), json!({"type": "retire", "id": 2, "extents": 2}));
    scheduler.send(r#"{"type": "retired", "id": 2, "extents": [2], "preempted": 1}"#).unwrap();
    let retired = Retired { id: ActionId(2), extents: vec![2], preempted: 1 };
    assert_eq!(link.receiver.recv_within(LIMIT).unwrap(), SchedulerEvent::Retired(retired));
    let resume = Resume { id: ActionId(3), granted: vec![9], withdrawn: vec![1] };
    link.sender.send_resume(resume).unwrap();
    assert_eq!(scheduler.next(), json!({"type": "resume", "id": 3, "granted": [9], "withdrawn": [1]}));

    link.sender.send_bye().unwrap();
    assert_eq!(scheduler.next(), json!({"type": "bye"}));
    scheduler.shutdown().unwrap();
    assert_eq!(link.receiver.recv_within(LIMIT).unwrap(), SchedulerEvent::Bye);
    assert_eq!(scheduler.receive(-1).unwrap_err().0, SLUICE_CLOSED);
}

#[test]
fn a_scheduler_has_no_memory_and_sends_nothing_too_large() {
    let sidecar = HostSidecar::new();
    let (_link, scheduler) = sidecar.scheduler();
    let refused = |result: Result<(), (i32, String)>| assert_eq!(result.unwrap_err().0, SLUICE_STATE);
    refused(scheduler.reserve());
    refused(scheduler.apply(1));
    refused(scheduler.begin_pass().map(drop));
    refused(scheduler.end_pass(1));
    refused(scheduler.wait_ready(0, 1, 0));
    refused(scheduler.publish_done(0, 1));
    refused(scheduler.kv_range().map(drop));
    let blocked: Vec<_> = (0..1025).map(|at| json!([at.to_string(), 1])).collect();
    let demand =
        json!({"type": "demand", "wanted_blocks": 0, "waiting": 0, "running": 0, "blocked": blocked});
    assert_eq!(scheduler.send(&demand.to_string()).unwrap_err().0, SLUICE_INVALID);
    assert_eq!(scheduler.send(r#"{"type": "loaded", "layer_bytes": []}"#).unwrap_err().0, SLUICE_INVALID);
}

#[test]
fn a_scheduler_that_contradicts_its_orders_loses_its_link() {
    let sidecar = HostSidecar::new();
    let (mut link, scheduler) = sidecar.scheduler();
    scheduler.send(r#"{"type": "retired", "id": 2, "extents": [], "preempted": 0}"#).unwrap();
    assert!(link.receiver.recv_within(LIMIT).is_err());
    drop(link);
    assert_eq!(scheduler.receive(-1).unwrap_err().0, SLUICE_CLOSED);
    let other = sidecar.connecting(CLink::scheduler, "{\"build\": 1}");
    assert_eq!(other.join().unwrap().unwrap_err().0, SLUICE_INVALID);
}
