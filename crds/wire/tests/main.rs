//! Messages against their committed forms: names, shapes, versions.

mod messages {
    mod config;
    mod directive;
    mod geometry;
    mod golden;
    mod grants;
    mod overview;
    mod restart;
    mod state;
}
