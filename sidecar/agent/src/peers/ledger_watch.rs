//! Polls the ledger for peers that exited and for returned loans whose message was lost, and forwards the directive's
//! terms.

use std::collections::BTreeSet;
use std::time::Duration;

use sluice_memory::gpu_ledger::{EarmarkState, LedgerError, Participant};
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;
use sluice_policy::peers::victim;
use sluice_wire::directive::{Directive, VictimRule};

use super::full_name::full_name;
use super::grant_client::GrantClient;
use super::ns;

/// Poll interval. Answers arrive sooner; the poll covers lost ones.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Polls until the task is cancelled or the directive store is dropped.
pub async fn watch_ledger(client: GrantClient) {
    let (mut known, mut trouble) = (BTreeSet::new(), None);
    let mut directive = client.directives.watch();
    loop {
        notify_terms(
            &client,
            directive.borrow_and_update().as_ref().map(|in_force| in_force.directive.as_ref()),
        );
        // A directive may name a peer before its record exists, so send the terms again when the set of live peers
        // changes.
        loop {
            let changed = tokio::time::timeout(POLL_INTERVAL, directive.changed()).await;
            let before = known.clone();
            log_error_once(&mut trouble, poll_ledger(&client, &mut known).await.err());
            match changed {
                Ok(Err(_)) => return,
                Ok(Ok(())) => break,
                Err(_) if known != before => break,
                Err(_) => {}
            }
        }
    }
}

/// Logs an error once while it lasts.
fn log_error_once(last: &mut Option<LedgerError>, now: Option<LedgerError>) {
    if let Some(error) = now.as_ref().filter(|error| last.as_ref() != Some(error)) {
        tracing::warn!(%error, "could not read the ledger of the GPU");
    }
    *last = now;
}

async fn poll_ledger(client: &GrantClient, known: &mut BTreeSet<Peer>) -> Result<(), LedgerError> {
    // Take the tracked peers before reading the ledger: a tracked peer that is not live then has exited, even if no
    // poll has seen it live.
    known.append(&mut client.replies.tracked());
    let participants = client.ledger.survey()?;
    let living: BTreeSet<Peer> = participants.iter().filter(|p| p.is_live).map(|p| p.peer).collect();
    let dead: BTreeSet<Peer> = known.difference(&living).copied().collect();
    for peer in &dead {
        tracing::info!(index = peer.index, "a peer has left the GPU");
        client.notify(PeerEvent::Died(*peer));
    }
    client.replies.untrack(&dead);
    *known = living;
    participants.iter().filter(|p| p.is_live).for_each(|p| notify_earmarks(client, p));
    let participant = client.ledger.clone();
    // The guard may have to be waited for, which would block a thread of this runtime. When the runtime ends, nothing
    // has to be cleared.
    tokio::task::spawn_blocking(move || participant.clear_settled().map(drop)).await.unwrap_or(Ok(()))
}

/// Reports the earmarks that wait for this tenant. The scheduler knows which of them are returned loans.
fn notify_earmarks(client: &GrantClient, lender: &Participant) {
    let me = client.ledger.instance();
    let waiting = lender.earmarks.iter().filter(|e| e.to == me && e.state == EarmarkState::Waiting);
    for earmark in waiting {
        let (peer, nonce) = (lender.peer, Nonce(earmark.nonce));
        client.notify(PeerEvent::Returned { peer, nonce, chunks: client.replies.chunks(earmark.bytes) });
    }
}

fn notify_terms(client: &GrantClient, directive: Option<&Directive>) {
    let Some(directive) = directive else { return };
    let living = client.ledger.survey().unwrap_or_default();
    let find = |name: &str| {
        let found = living.iter().find(|p| p.is_live && matches_name(directive, p, name))?;
        Some(found.peer)
    };
    let order = victim_order(directive).into_iter().filter_map(|name| find(name)).collect();
    let named = directive.peers.iter();
    let priorities = named.filter_map(|n| Some((find(&full_name(&n.namespace, &n.name))?, n.priority)));
    let terms = loan_terms(&client.terms, directive, order, priorities.collect());
    client.notify(PeerEvent::Terms(terms));
}

/// Returns the victim order without live state: the directive's peers for `FixedOrder`, else its fallback order.
fn victim_order(directive: &Directive) -> Vec<&String> {
    match directive.victim {
        VictimRule::FixedOrder => directive.peers.iter().map(|peer| &peer.name).collect(),
        VictimRule::MostRecentlyUsed | VictimRule::LeastRecentlyUsed => {
            directive.fallback_order.iter().collect()
        }
    }
}

/// Whether `name` names the participant. The directive lists names, and the ledger has `namespace/name`.
fn matches_name(directive: &Directive, participant: &Participant, name: &str) -> bool {
    let full = |n: &sluice_wire::directive::PeerInfo| full_name(&n.namespace, &n.name);
    participant.name == name || directive.peers.iter().any(|n| n.name == name && full(n) == participant.name)
}

/// Returns the loan terms of a directive. `usual` provides those that it does not set.
pub fn loan_terms(
    usual: &NegotiationPolicy,
    directive: &Directive,
    order: Vec<Peer>,
    priorities: Vec<(Peer, i32)>,
) -> NegotiationPolicy {
    NegotiationPolicy {
        priority: directive.tenant.priority,
        priorities,
        rule: match directive.victim {
            VictimRule::MostRecentlyUsed => victim::VictimRule::MostRecentlyUsed,
            VictimRule::LeastRecentlyUsed => victim::VictimRule::LeastRecentlyUsed,
            VictimRule::FixedOrder => victim::VictimRule::FixedOrder,
        },
        order,
        min_residence_ns: ns(directive.min_residence_ms),
        revoke_bound_ns: ns(directive.revoke_bound_ms),
        ..usual.clone()
    }
}
