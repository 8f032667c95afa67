//! Read-only views of the memory manager, one for each reader's question. They change nothing. Those that each step asks
//! are inlined: a caller with one question need not have the whole view built.

mod figures;
mod price;
mod status;
mod timing;

pub use figures::{Figures, Residency};
pub use price::PriceView;
pub use status::StatusView;
pub use timing::TimingView;

use crate::cost::price::Clients;
use crate::geometry::Geometry;
use crate::ids::RequestId;
use crate::loans::view::LoanView;
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
    #[inline]
    pub fn status(&self) -> StatusView<'_> {
        StatusView {
            orders: &self.orders,
            kv: &self.kv,
            chunks: &self.chunks,
            weights: &self.weights,
            sleep: &self.sleep,
            loaded: self.loaded,
            failure: self.failure,
        }
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
        PriceView {
            kv: &self.kv,
            offload: &self.offload,
            cost: self.cost(),
            layer_block_bytes: self.geometry.layer_block_bytes,
            clients,
        }
    }

    /// Returns measured and predicted times of steps.
    pub fn timing(&self) -> TimingView<'_> {
        TimingView { cost: self.cost(), layout: self.weights.layout() }
    }

    /// Returns the share, the loans and the debts.
    #[inline]
    pub fn loans(&self) -> LoanView<'_> {
        LoanView {
            loans: &self.loans,
            orders: &self.orders,
            chunks: &self.chunks,
            kv: &self.kv,
            sleep: &self.sleep,
            layouts: self.layout_search(),
            loaded: self.loaded,
            is_loaded: self.status().is_loaded(),
            in_backoff: self.in_backoff(),
        }
    }

    /// Returns figures for metrics, log fields and audits.
    pub fn figures(&self) -> Figures<'_> {
        Figures {
            chunks: &self.chunks,
            kv: &self.kv,
            weights: &self.weights,
            offload: &self.offload,
            orders: &self.orders,
            sizes: &self.sizes,
            geometry: &self.geometry,
        }
    }
}
