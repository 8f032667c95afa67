//! `GET /v1/state?scope=gpu`: queries all tenants of the GPU at once.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use sluice_wire::directive::PeerInfo;
use sluice_wire::state::{GpuState, TenantReport};

use super::context::Admin;

/// Timeout of each query. All queries run at once.
pub const STATE_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns the states of this tenant and its peers, or the reason why one is missing.
pub async fn collect_states(admin: &Admin) -> GpuState {
    let in_force = admin.directives.active();
    let peers = in_force.as_ref().map_or(&[][..], |in_force| &in_force.directive.peers);
    let (own, mut others) =
        tokio::join!(own_report(admin), join_all(peers.iter().map(|peer| peer_report(admin, peer))));
    let mut tenants = vec![own];
    tenants.append(&mut others);
    GpuState { tenants, ..GpuState::default() }
}

/// Returns the states, or 304 if `headers` show that the caller already has them. The tag ignores clock fields, so that
/// it stays the same on an idle GPU.
pub fn states_response(gpu: &GpuState, headers: &HeaderMap) -> Response {
    let tag = etag(gpu);
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let known = known.flat_map(|list| list.split(',')).any(|one| one.trim() == tag);
    let tag = [(header::ETAG, tag)];
    if known { (StatusCode::NOT_MODIFIED, tag).into_response() } else { (tag, Json(gpu)).into_response() }
}

fn etag(gpu: &GpuState) -> String {
    let mut still = gpu.clone();
    for report in &mut still.tenants {
        let TenantReport::State(state) = report else { continue };
        state.at_unix_ms = 0;
        let place = state.peers.iter_mut();
        place.flat_map(|place| &mut place.grants).for_each(|grant| grant.expires_in_ms = 0);
    }
    let text = serde_json::to_vec(&still).expect("a state serialises");
    let digest = ring::digest::digest(&ring::digest::SHA256, &text);
    let half: String = digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    // The tag is weak, because equal content may have different bytes.
    format!("W/\"{half}\"")
}

async fn own_report(admin: &Admin) -> TenantReport {
    match tokio::time::timeout(STATE_TIMEOUT, admin.service.state()).await {
        Ok(Some(state)) => TenantReport::State(Box::new(state)),
        Ok(None) | Err(_) => TenantReport::Unreachable {
            namespace: admin.namespace.clone(),
            name: admin.name.clone(),
            reason: format!(
                "its scheduler is busy or has ended: no answer within {} ms",
                STATE_TIMEOUT.as_millis()
            ),
        },
    }
}

async fn peer_report(admin: &Admin, peer: &PeerInfo) -> TenantReport {
    match admin.peers.state(peer, STATE_TIMEOUT).await {
        Ok(state) => TenantReport::State(Box::new(state)),
        Err(error) => TenantReport::Unreachable {
            namespace: peer.namespace.clone(),
            name: peer.name.clone(),
            reason: error.to_string(),
        },
    }
}
