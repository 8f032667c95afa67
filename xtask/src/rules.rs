//! The rules of the tree, one module each. All of them are pure: text and structs in, findings out.

pub mod circles;
pub mod clauses;
pub mod commits;
pub mod edges;
pub mod layout;
pub mod library_docs;
pub mod links;
pub mod manifest;
pub mod method_circles;
pub mod orphans;
pub mod pages;
pub mod reach;
pub mod table;
pub mod tidy;
pub mod words;
