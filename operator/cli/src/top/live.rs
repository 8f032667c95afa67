//! The live screen: a table of tenants, a tenant's page, help.

mod app;
mod gpu;
mod help;
mod keys;
mod list;
mod model;
mod screen;
mod tenant;
mod text_layout;
mod theme;

pub use screen::run;

#[cfg(test)]
mod tests;
