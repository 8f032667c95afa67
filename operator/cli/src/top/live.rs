//! The live screen: a table of tenants, a tenant's page, help.

mod app;
mod board;
mod cells;
mod gpu;
mod help;
mod keys;
mod list;
mod screen;
mod tenant;
mod theme;

pub use screen::live;

#[cfg(test)]
mod tests;
