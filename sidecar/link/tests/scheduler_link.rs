//! Tests of the scheduler's link over real sockets, and of peers that violate its protocol.

use rustix::net::SendFlags;
use sluice_link::client::scheduler::*;
use sluice_link::error::LinkError;
use sluice_link::frame::ProtocolError;
use sluice_link::message::*;
use sluice_link::server::FirstMessage;
use sluice_link::server::scheduler::{SchedulerEvent, SchedulerLink};
use sluice_link::vocabulary::ActionId;

use crate::handshake::{TIMEOUT, refusal};
use crate::messages::{packets, receive};
use crate::worker_link::Sidecar;

fn identity() -> SchedulerIdentity {
    SchedulerIdentity {
        build: "test".to_owned(),
        engine: "vllm 0.32.0".to_owned(),
        blocks: 64,
        block_tokens: 16,
        max_model_len: 512,
    }
}

fn setup() -> SchedulerSetup {
    SchedulerSetup { extent_blocks: 4, extents: 16, granted: vec![0, 1, 2, 3] }
}

type Connected = Result<(SchedulerClient, SchedulerWelcome), LinkError>;

fn connecting(sidecar: &Sidecar) -> std::thread::JoinHandle<Connected> {
    let path = sidecar.path.clone();
    std::thread::spawn(move || SchedulerClient::connect(&path, identity(), TIMEOUT))
}

fn attach(sidecar: &Sidecar, setup: &SchedulerSetup) -> Result<SchedulerLink, LinkError> {
    let FirstMessage::Scheduler(scheduler) = sidecar.first()? else { panic!("a scheduler connected") };
    assert_eq!(scheduler.hello().max_model_len, 512);
    let lock = tempfile::tempfile().unwrap();
    scheduler.send_setup(setup, std::os::fd::AsFd::as_fd(&lock))
}

fn attached() -> (Sidecar, SchedulerLink, SchedulerClient) {
    let sidecar = Sidecar::new();
    let other = connecting(&sidecar);
    let link = attach(&sidecar, &setup()).unwrap();
    let (client, welcome) = other.join().unwrap().unwrap();
    assert_eq!(welcome.setup, setup());
    (sidecar, link, client)
}

fn held(id: u64, idle: &[u32]) -> Held {
    Held { id: ActionId(id), idle: idle.to_vec(), wanted_blocks: 3, waiting: 1, running: 2 }
}

fn retired(id: u64, extents: &[u32]) -> Retired {
    Retired { id: ActionId(id), extents: extents.to_vec(), preempted: 1 }
}

fn resume(granted: &[u32], withdrawn: &[u32]) -> Resume {
    Resume { id: ActionId(3), granted: granted.to_vec(), withdrawn: withdrawn.to_vec() }
}

#[test]
fn extents_are_taken_and_given_while_the_scheduler_is_held() {
    let (_sidecar, mut link, mut client) = attached();
    let demand = Demand { wanted_blocks: 9, waiting: 1, running: 0, blocked: vec![("a".to_owned(), 9)] };
    client.sender.send_demand(demand.clone()).unwrap();
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), SchedulerEvent::Demand(demand.clone()));

    link.sender.send_hold(ActionId(1)).unwrap();
    assert_eq!(client.receiver.recv().unwrap(), SchedulerRequest::Hold { id: ActionId(1) });
    client.sender.send_demand(demand.clone()).unwrap();
    client.sender.send_held(held(1, &[3, 1])).unwrap();
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), SchedulerEvent::Demand(demand), "at any time");
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), SchedulerEvent::Held(held(1, &[3, 1])));

    link.sender.send_retire(ActionId(2), 2).unwrap();
    let asked = SchedulerRequest::Retire { id: ActionId(2), extents: 2 };
    assert_eq!(client.receiver.recv_within(TIMEOUT).unwrap(), asked);
    client.sender.send_retired(retired(2, &[3])).unwrap();
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), SchedulerEvent::Retired(retired(2, &[3])));

    link.sender.send_resume(resume(&[15, 3], &[1])).unwrap();
    assert_eq!(client.receiver.recv().unwrap(), SchedulerRequest::Resume(resume(&[15, 3], &[1])));
    link.sender.send_hold(ActionId(4)).unwrap();
    client.sender.send_held(held(4, &[15, 2, 3])).unwrap();
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), SchedulerEvent::Held(held(4, &[15, 2, 3])));
    client.sender.send_bye().unwrap();
    assert_eq!(link.receiver.recv_within(TIMEOUT).unwrap(), SchedulerEvent::Bye);
    drop(client);
    assert!(matches!(link.receiver.recv_within(TIMEOUT), Err(LinkError::Closed)));
}

#[test]
fn refusals_of_a_sidecar_reach_the_scheduler() {
    let sidecar = Sidecar::new();
    let other = connecting(&sidecar);
    let FirstMessage::Scheduler(scheduler) = sidecar.first().unwrap() else {
        panic!("a scheduler connected")
    };
    scheduler.refuse(RefusalReason::Model, "another model").unwrap();
    match other.join().unwrap() {
        Err(LinkError::SetupRefused(refused)) => {
            assert_eq!(refused, SetupRefused::new(RefusalReason::Model, "another model"));
        }
        other => panic!("{other:?} is no refusal"),
    }
    let other = connecting(&sidecar);
    let connection = sidecar.listener.accept(TIMEOUT).unwrap().unwrap();
    assert!(matches!(refusal(connection.recv_hello().unwrap_err()), ProtocolError::Unexpected { .. }));
    assert!(other.join().unwrap().unwrap_err().to_string().contains("(engine)"));
}

/// Sends messages as a scheduler that has received `Hold` 1, and `Retire` 2 of two extents once it was held.
fn contradiction(messages: &[Message]) -> ProtocolError {
    let (_sidecar, mut link, client) = attached();
    link.sender.send_hold(ActionId(1)).unwrap();
    for (at, message) in messages.iter().enumerate() {
        for packet in packets(message) {
            rustix::net::send(client.sender.fd(), &packet, SendFlags::NOSIGNAL).unwrap();
        }
        match (link.receiver.recv_within(TIMEOUT), at + 1 == messages.len()) {
            (Ok(SchedulerEvent::Held(_)), false) => link.sender.send_retire(ActionId(2), 2).unwrap(),
            (Ok(_), false) => {}
            (Err(error), true) => return refusal(error),
            (other, _) => panic!("{other:?} for message {at} of {messages:?}"),
        }
    }
    panic!("the last message is refused")
}

#[test]
fn messages_that_contradict_the_commands_or_the_extents_are_refused() {
    let held = |id, idle: &[u32]| Message::Scheduler(SchedulerMessage::Held(held(id, idle)));
    let retired = |id, extents: &[u32]| Message::Scheduler(SchedulerMessage::Retired(retired(id, extents)));
    for messages in [
        vec![held(2, &[])],
        vec![held(1, &[4])],
        vec![held(1, &[16])],
        vec![held(1, &[0])],
        vec![held(1, &[1, 2, 1])],
        vec![held(1, &[1]), held(1, &[1])],
        vec![retired(1, &[])],
        vec![held(1, &[]), retired(1, &[1])],
        vec![held(1, &[]), retired(2, &[1, 2, 3])],
        vec![held(1, &[]), retired(2, &[1, 1])],
        vec![held(1, &[]), retired(2, &[0])],
        vec![held(1, &[]), retired(2, &[9])],
        vec![held(1, &[]), retired(2, &[1]), retired(2, &[2])],
    ] {
        let refused = contradiction(&messages);
        assert!(matches!(refused, ProtocolError::Contradiction { .. }), "{messages:?}: {refused}");
    }
    let foreign = contradiction(&[Message::Applied { id: ActionId(1) }]);
    assert!(matches!(foreign, ProtocolError::Unexpected { .. }), "{foreign}");
}

#[test]
fn commands_that_do_not_fit_the_scheduler_are_not_sent() {
    let (_sidecar, mut link, mut client) = attached();
    let contradicts = |sent: Result<(), LinkError>| {
        let refused = refusal(sent.unwrap_err());
        assert!(matches!(refused, ProtocolError::Contradiction { .. }), "{refused}");
    };
    contradicts(link.sender.send_retire(ActionId(1), 1));
    contradicts(link.sender.send_resume(resume(&[], &[])));
    link.sender.send_hold(ActionId(1)).unwrap();
    contradicts(link.sender.send_hold(ActionId(2)));
    client.sender.send_held(held(1, &[])).unwrap();
    link.receiver.recv_within(TIMEOUT).unwrap();
    contradicts(link.sender.send_resume(resume(&[1], &[])));
    assert_eq!(client.receiver.recv().unwrap(), SchedulerRequest::Hold { id: ActionId(1) });
    assert!(matches!(client.receiver.recv_within(std::time::Duration::ZERO), Err(LinkError::Timeout(_))));

    let sidecar = Sidecar::new();
    let other = connecting(&sidecar);
    contradicts(attach(&sidecar, &SchedulerSetup { granted: vec![0, 16], ..setup() }).map(drop));
    assert!(matches!(other.join().unwrap(), Err(LinkError::Closed)));
}

#[test]
fn lists_above_their_limits_are_refused_at_both_ends() {
    let many: Vec<u32> = (0..=MAX_EXTENTS as u32).collect();
    let long = |count: usize| vec![("x".to_owned(), 1); count];
    let demand = |blocked| Demand { wanted_blocks: 0, waiting: 0, running: 0, blocked };
    let oversized = [
        SchedulerMessage::Held(held(1, &many)),
        SchedulerMessage::Retired(retired(1, &many)),
        SchedulerMessage::Resume(resume(&many[..MAX_EXTENTS], &[1])),
        SchedulerMessage::Demand(demand(long(MAX_BLOCKED + 1))),
        SchedulerMessage::Demand(demand(vec![("x".repeat(MAX_NAME_BYTES + 1), 1)])),
    ];
    for message in oversized {
        assert!(message.check().is_err());
        let refused = receive(&packets(&Message::Scheduler(message)));
        assert!(matches!(refused, Err(ProtocolError::Payload { .. })), "{refused:?}");
    }
    for message in [
        SchedulerMessage::Resume(resume(&many[..MAX_EXTENTS], &[])),
        SchedulerMessage::Demand(demand(long(MAX_BLOCKED))),
    ] {
        message.check().unwrap();
        let message = Message::Scheduler(message);
        assert_eq!(receive(&packets(&message)), Ok(Some(message)), "the largest lists fit a message");
    }
    let (_sidecar, _link, client) = attached();
    let error = client.sender.send_demand(demand(long(MAX_BLOCKED + 1))).unwrap_err();
    assert!(matches!(error, LinkError::Setup(_)), "{error}");
}
