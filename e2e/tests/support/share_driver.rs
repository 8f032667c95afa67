//! Assigns shares of a GPU from the test. From its first directive on, those of `sluice up` are refused because
//! their epoch is older.

use reqwest::{Method, StatusCode};
use sluice_wire::config::SidecarRecord;
use sluice_wire::directive::{Directive, Fence};

use super::Tenant;
use super::http::CLIENT;

/// Source of the test's directives.
#[derive(Debug)]
pub struct ShareDriver {
    /// Last directive of `sluice up` to each tenant.
    base: Vec<Directive>,
    fence: Fence,
}

/// Share of a tenant.
#[derive(Clone, Copy, Debug)]
pub struct TenantShare {
    /// Bytes of its share.
    pub share_bytes: u64,
    /// Percent of its layers that may be remapped.
    pub cap: u32,
}

/// A share, with the usual cap.
pub fn share(share_bytes: u64) -> TenantShare {
    TenantShare { share_bytes, cap: 60 }
}

impl ShareDriver {
    /// Creates a driver for tenants that have received the records of their peers.
    pub async fn of(tenants: &[Tenant]) -> ShareDriver {
        let mut base = Vec::new();
        for tenant in tenants {
            let (status, text) = ask(&tenant.record, Method::GET, Vec::new()).await;
            assert_eq!(status, StatusCode::OK, "{text}");
            base.push(Directive::from_json(text.as_bytes()).unwrap());
        }
        let epoch = base.iter().map(|directive| directive.epoch).max().unwrap() + 1;
        ShareDriver { base, fence: Fence { epoch, sequence: 0 } }
    }

    /// Sends each tenant its share and the current records of the others.
    pub async fn assign_shares(&mut self, tenants: &[Tenant], parts: &[TenantShare]) {
        self.fence.sequence += 1;
        for ((tenant, base), part) in tenants.iter().zip(&self.base).zip(parts) {
            let mut directive = base.clone();
            (directive.epoch, directive.sequence) = (self.fence.epoch, self.fence.sequence);
            directive.tenant.share_bytes = Some(part.share_bytes);
            directive.tenant.max_remapped_percent = part.cap;
            for peer in &mut directive.peers {
                let now = tenants.iter().find(|tenant| tenant.record.name == peer.name).unwrap();
                peer.admin = now.record.admin;
            }
            let body = serde_json::to_vec(&directive).unwrap();
            let (status, text) = ask(&tenant.record, Method::PUT, body).await;
            assert_eq!(status, StatusCode::OK, "{}: {text}", tenant.record.name);
        }
    }
}

async fn ask(record: &SidecarRecord, method: Method, body: Vec<u8>) -> (StatusCode, String) {
    let token = std::fs::read_to_string(&record.token_file).unwrap();
    let request = CLIENT.request(method, format!("http://{}/v1/directive", record.admin)).bearer_auth(token);
    let answer = request.header("content-type", "application/json").body(body).send().await.unwrap();
    (answer.status(), answer.text().await.unwrap())
}
