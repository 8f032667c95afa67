//! What all tests share: a world for the tenants of one test, clients, models, and a look into `/proc`.

pub mod answer;
pub mod dealer;
pub mod http;
pub mod model;
pub mod pressure;
pub mod processes;
pub mod sidecar;
pub mod slow;
pub mod soak;
pub mod tenant;
pub mod trio;
pub mod wait;
pub mod world;
pub mod yaml;

pub use self::answer::Answer;
pub use self::http::Stream;
pub use self::sidecar::Sidecar;
pub use self::tenant::Tenant;
pub use self::wait::{PATIENCE, eventually};
pub use self::world::{Outcome, Up, World};
pub use self::yaml::Yaml;
