//! Read-only views of the memory manager, one for each reader's question. They change nothing.

mod admission;
mod figures;
mod loans;
mod offload;
mod price;
mod request;
mod status;
mod timing;

pub use admission::{AdmissionView, MemoryNotes, PlanAdmission, PlannedAdmissions, PrefillOffload};
pub use figures::{Figures, Residency};
pub use loans::LoanView;
pub use offload::OffloadView;
pub use price::PriceView;
pub use request::RequestKv;
pub use status::StatusView;
pub use timing::TimingView;
