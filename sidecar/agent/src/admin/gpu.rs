//! `GET /v1/state?scope=gpu`: all tenants of the GPU, asked at once.

use std::time::Duration;

use futures_util::future::join_all;
use sluice_wire::directive::Neighbour;
use sluice_wire::state::{GpuState, TenantReport};

use super::Admin;

/// How long each is waited for; all are waited for at once.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// This tenant's state and its neighbours', or why there is none.
pub async fn gather(admin: &Admin) -> GpuState {
    let in_force = admin.directives.in_force();
    let neighbours = in_force.as_ref().map_or(&[][..], |in_force| &in_force.directive.neighbours);
    let (own, mut others) =
        tokio::join!(own(admin), join_all(neighbours.iter().map(|neighbour| ask(admin, neighbour))));
    let mut tenants = vec![own];
    tenants.append(&mut others);
    GpuState { tenants, ..GpuState::default() }
}

async fn own(admin: &Admin) -> TenantReport {
    match tokio::time::timeout(PATIENCE, admin.service.state()).await {
        Ok(Some(state)) => TenantReport::State(Box::new(state)),
        Ok(None) | Err(_) => TenantReport::Unreachable {
            namespace: admin.namespace.clone(),
            name: admin.name.clone(),
            reason: format!(
                "its scheduler is busy or has gone: no answer within {} ms",
                PATIENCE.as_millis()
            ),
        },
    }
}

async fn ask(admin: &Admin, neighbour: &Neighbour) -> TenantReport {
    match admin.neighbours.state(neighbour, PATIENCE).await {
        Ok(state) => TenantReport::State(Box::new(state)),
        Err(error) => TenantReport::Unreachable {
            namespace: neighbour.namespace.clone(),
            name: neighbour.name.clone(),
            reason: error.to_string(),
        },
    }
}
