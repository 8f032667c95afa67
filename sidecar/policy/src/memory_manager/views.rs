//! Read-only views of the memory manager, one for each reader's question. They change nothing.

mod figures;
mod loans;
mod price;
mod status;
mod timing;

pub use figures::{Figures, Residency};
pub use loans::LoanView;
pub use price::PriceView;
pub use status::StatusView;
pub use timing::TimingView;

use crate::cost::price::Clients;
use crate::geometry::Geometry;
use crate::ids::RequestId;
use crate::memory_manager::{AdmissionView, MemoryManager, OffloadView, PlannedAdmissions, RequestKv};
use crate::params::Params;

impl MemoryManager {
    /// Sizes of the tenant.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Tunables.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Returns whether a step may begin, and what it waits for.
    pub fn status(&self) -> StatusView<'_> {
        StatusView { manager: self }
    }

    /// Returns the KV of one request.
    pub fn kv_of(&self, request: RequestId) -> RequestKv<'_> {
        self.kv.of(request)
    }

    /// Returns memory as it is after the planned admissions.
    pub fn after<'a>(&'a self, planned: &'a PlannedAdmissions) -> AdmissionView<'a> {
        AdmissionView { memory: self.offload_view(), planned }
    }

    /// Returns which KV may leave the device now.
    pub fn offload_view(&self) -> OffloadView<'_> {
        OffloadView {
            kv: &self.kv,
            offload: &self.offload,
            chunks: &self.chunks,
            step_stats: &self.step_stats,
            params: &self.params,
            sizes: &self.sizes,
            geometry: &self.geometry,
            boundary: self.orders.boundaries(),
            in_backoff: self.in_backoff(),
        }
    }

    /// Returns what reclaim options would cost these clients, one for each request of the next step.
    pub fn prices<'a>(&'a self, clients: &'a Clients<'a>) -> PriceView<'a> {
        PriceView { manager: self, clients }
    }

    /// Returns measured and predicted times of steps.
    pub fn timing(&self) -> TimingView<'_> {
        TimingView { manager: self }
    }

    /// Returns the share, the loans and the debts.
    pub fn loans(&self) -> LoanView<'_> {
        LoanView { manager: self }
    }

    /// Returns figures for metrics, log fields and audits.
    pub fn figures(&self) -> Figures<'_> {
        Figures { manager: self }
    }
}
