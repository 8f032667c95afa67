//! What people see of tenants: the live page, and the words that `explain` and `top` share with it.
//!
//! A server reads states and gives them to a [`hub::Hub`]; [`serve`] sends viewers what is new. [`view`] makes of
//! states what the page shows, [`history`] keeps the last quarter of an hour.

pub mod history;
pub mod hub;
pub mod palette;
pub mod rates;
pub mod serve;
pub mod shortages;
pub mod text;
pub mod tracker;
pub mod view;
