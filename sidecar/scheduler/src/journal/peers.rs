//! Encodes peer events and a tenant's membership as words, and decodes them.

use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_policy::peers::loan_denied::LoanDenied;
use sluice_policy::peers::loans::Nonce;
use sluice_policy::peers::time_slice::Quantum;
use sluice_policy::peers::victim::{PeerState, PeerView, VictimRule};
use sluice_ports::peers::PeerPortEvent;

use super::text_codec::{Encoder, Reader, by_code, code_of};
use crate::config::{Config, Membership, TimeSharing};

const RULES: [VictimRule; 3] =
    [VictimRule::MostRecentlyUsed, VictimRule::LeastRecentlyUsed, VictimRule::FixedOrder];

/// Names of peer events.
pub const NAMES: [&str; 6] =
    ["slice_granted", "slice_requested", "slice_taken_over", "survey", "terms", "peer"];

/// Writes an event and returns its name, one of [`NAMES`].
pub fn put(words: &mut Encoder, event: &PeerPortEvent) -> &'static str {
    match event {
        PeerPortEvent::SliceGranted { epoch } => {
            words.put(*epoch);
            "slice_granted"
        }
        PeerPortEvent::SliceRequested { epoch } => {
            words.put(*epoch);
            "slice_requested"
        }
        PeerPortEvent::SliceTakenOver { epoch } => {
            words.put(*epoch);
            "slice_taken_over"
        }
        PeerPortEvent::Peer(PeerEvent::Survey(peers)) => {
            words.put_list(peers, put_peer_view);
            "survey"
        }
        PeerPortEvent::Peer(PeerEvent::Terms(terms)) => {
            put_terms(words, terms);
            "terms"
        }
        PeerPortEvent::Peer(event) => {
            put_peer_event(words, event);
            "peer"
        }
    }
}

/// Decodes the event with this name.
pub fn read(name: &str, r: &mut Reader<'_>) -> Result<PeerPortEvent, String> {
    Ok(match name {
        "slice_granted" => PeerPortEvent::SliceGranted { epoch: r.u64()? },
        "slice_requested" => PeerPortEvent::SliceRequested { epoch: r.u64()? },
        "slice_taken_over" => PeerPortEvent::SliceTakenOver { epoch: r.u64()? },
        "survey" => PeerPortEvent::Peer(PeerEvent::Survey(r.list(peer_view)?)),
        "terms" => PeerPortEvent::Peer(PeerEvent::Terms(terms(r)?)),
        _ => PeerPortEvent::Peer(peer_event(r)?),
    })
}

fn put_peer(words: &mut Encoder, peer: &Peer) {
    words.put(peer.index).put(peer.instance);
}

fn peer(r: &mut Reader<'_>) -> Result<Peer, String> {
    Ok(Peer { index: r.int()?, instance: r.u64()? })
}

fn put_peer_view(words: &mut Encoder, view: &PeerView) {
    let PeerView { peer, priority, reachable, live } = view;
    put_peer(words, peer);
    words.put(priority.cast_unsigned()).put(*reachable).put(live.is_some());
    if let Some(PeerState {
        active,
        last_used,
        resident_since,
        lendable_chunks,
        queue_position,
        next_use_ns,
    }) = live
    {
        words.put(*active).put(last_used.0).put(resident_since.0).put(*lendable_chunks);
        words.put_option(queue_position.map(u64::from)).put_option(*next_use_ns);
    }
}

fn peer_view(r: &mut Reader<'_>) -> Result<PeerView, String> {
    let (peer, priority, reachable) = (peer(r)?, r.int::<u32>()?.cast_signed(), r.bool()?);
    let live = if r.bool()? { Some(live(r)?) } else { None };
    Ok(PeerView { peer, priority, reachable, live })
}

fn live(r: &mut Reader<'_>) -> Result<PeerState, String> {
    let (active, last_used, resident_since) = (r.bool()?, Nanos(r.u64()?), Nanos(r.u64()?));
    let lendable_chunks = r.int()?;
    let queue_position = r.option()?.map(u32::try_from).transpose().map_err(|_| "a place is too large")?;
    let next_use_ns = r.option()?;
    Ok(PeerState { active, last_used, resident_since, lendable_chunks, queue_position, next_use_ns })
}

/// Writes a code, the peer, the nonce and up to two numbers.
fn put_peer_event(words: &mut Encoder, event: &PeerEvent) {
    let none = Peer::default();
    let (code, who, nonce, chunks, ttl_ns) = match *event {
        PeerEvent::Asked { peer, nonce, chunks, ttl_ns } => (0, peer, nonce, chunks, ttl_ns),
        PeerEvent::Withdrawn { peer, nonce } => (1, peer, nonce, 0, 0),
        PeerEvent::Revoked { peer, nonce, chunks } => (2, peer, nonce, chunks, 0),
        PeerEvent::Granted { peer, nonce, chunks, ttl_ns } => (3, peer, nonce, chunks, ttl_ns),
        PeerEvent::Refused { peer, nonce, why } => {
            let (code, left_ns) = refusal_words(why);
            (4, peer, nonce, code, left_ns)
        }
        PeerEvent::Renewed { peer, nonce, ttl_ns } => (5, peer, nonce, 0, ttl_ns),
        PeerEvent::Returned { peer, nonce, chunks } => (6, peer, nonce, chunks, 0),
        PeerEvent::TookBack { nonce } => (7, none, nonce, 0, 0),
        PeerEvent::Died(peer) => (8, peer, Nonce(0), 0, 0),
        PeerEvent::Prolonged { peer, nonce, ttl_ns } => (9, peer, nonce, 0, ttl_ns),
        PeerEvent::Claimed { peer, nonce, chunks } => (10, peer, nonce, chunks, 0),
        PeerEvent::Survey(_) | PeerEvent::Terms(_) => unreachable!("it has its own name"),
    };
    words.put(code as u64);
    put_peer(words, &who);
    words.put(nonce.0).put(chunks).put(ttl_ns);
}

fn peer_event(r: &mut Reader<'_>) -> Result<PeerEvent, String> {
    let (code, peer) = (r.u64()?, peer(r)?);
    let (nonce, chunks, ttl_ns) = (Nonce(r.u64()?), r.int()?, r.u64()?);
    Ok(match code {
        0 => PeerEvent::Asked { peer, nonce, chunks, ttl_ns },
        1 => PeerEvent::Withdrawn { peer, nonce },
        2 => PeerEvent::Revoked { peer, nonce, chunks },
        3 => PeerEvent::Granted { peer, nonce, chunks, ttl_ns },
        4 => PeerEvent::Refused { peer, nonce, why: refusal(chunks, ttl_ns)? },
        5 => PeerEvent::Renewed { peer, nonce, ttl_ns },
        6 => PeerEvent::Returned { peer, nonce, chunks },
        7 => PeerEvent::TookBack { nonce },
        8 => PeerEvent::Died(peer),
        9 => PeerEvent::Prolonged { peer, nonce, ttl_ns },
        10 => PeerEvent::Claimed { peer, nonce, chunks },
        other => return Err(format!("{other} is not a message to a peer")),
    })
}

/// Returns the denial's code (0 for none) and the remaining time in nanoseconds.
fn refusal_words(why: Option<LoanDenied>) -> (u32, u64) {
    match why {
        None => (0, 0),
        Some(LoanDenied::Active) => (1, 0),
        Some(LoanDenied::MinResidence { left_ns }) => (2, left_ns),
        Some(LoanDenied::AtCap) => (3, 0),
        Some(LoanDenied::AtFloor) => (4, 0),
        Some(LoanDenied::Nothing) => (5, 0),
        Some(LoanDenied::Busy) => (6, 0),
        Some(LoanDenied::NotTraded) => (7, 0),
    }
}

fn refusal(code: u32, left_ns: u64) -> Result<Option<LoanDenied>, String> {
    Ok(Some(match code {
        0 => return Ok(None),
        1 => LoanDenied::Active,
        2 => LoanDenied::MinResidence { left_ns },
        3 => LoanDenied::AtCap,
        4 => LoanDenied::AtFloor,
        5 => LoanDenied::Nothing,
        6 => LoanDenied::Busy,
        7 => LoanDenied::NotTraded,
        other => return Err(format!("{other} is not a refusal")),
    }))
}

/// Writes how the GPU's time is shared, and the terms by which memory is traded.
pub fn put_membership(words: &mut Encoder, config: &Config) {
    match config.sharing {
        TimeSharing::Exclusive => words.put(0u64).put(0u64).put(0u64),
        TimeSharing::Spatial => words.put(1u64).put(0u64).put(0u64),
        TimeSharing::Temporal(quantum) => words.put(2u64).put(quantum.min_ns()).put(quantum.max_ns()),
    };
    words.put(config.membership.is_some());
    if let Some(Membership { own_peer: me, terms }) = &config.membership {
        put_peer(words, me);
        put_terms(words, terms);
    }
}

/// Reads what [`put_membership`] wrote.
pub fn membership(r: &mut Reader<'_>) -> Result<(TimeSharing, Option<Membership>), String> {
    let (code, min_ns, max_ns) = (r.u64()?, r.u64()?, r.u64()?);
    let sharing = match code {
        0 => TimeSharing::Exclusive,
        1 => TimeSharing::Spatial,
        2 if min_ns <= max_ns && max_ns > 0 => TimeSharing::Temporal(Quantum::new(min_ns, max_ns)),
        2 => return Err(format!("a quantum of {min_ns} to {max_ns} ns is not valid")),
        other => return Err(format!("{other} is not a sharing mode")),
    };
    let membership = if r.bool()? { Some(Membership { own_peer: peer(r)?, terms: terms(r)? }) } else { None };
    Ok((sharing, membership))
}

fn put_terms(words: &mut Encoder, terms: &NegotiationPolicy) {
    let NegotiationPolicy { priority, priorities, rule, order, min_residence_ns, revoke_bound_ns, .. } =
        terms;
    let NegotiationPolicy { ask_patience_ns, ttl_ns, retry_ns, .. } = terms;
    words.put(priority.cast_unsigned()).put(code_of(&RULES, rule));
    words.put_list(order, put_peer);
    words.put_list(priorities, |words, (peer, priority)| {
        put_peer(words, peer);
        words.put(priority.cast_unsigned());
    });
    words.put(*min_residence_ns).put(*revoke_bound_ns).put(*ask_patience_ns).put(*ttl_ns).put(*retry_ns);
}

fn terms(r: &mut Reader<'_>) -> Result<NegotiationPolicy, String> {
    Ok(NegotiationPolicy {
        priority: r.int::<u32>()?.cast_signed(),
        rule: by_code(&RULES, r)?,
        order: r.list(peer)?,
        priorities: r.list(|r| Ok((peer(r)?, r.int::<u32>()?.cast_signed())))?,
        min_residence_ns: r.u64()?,
        revoke_bound_ns: r.u64()?,
        ask_patience_ns: r.u64()?,
        ttl_ns: r.u64()?,
        retry_ns: r.u64()?,
    })
}
