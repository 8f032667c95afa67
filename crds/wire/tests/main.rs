//! Messages against their committed forms: names, shapes, versions.

mod messages {
    mod directive;
    mod geometry;
    mod golden;
    mod grants;
    mod overview;
    mod restart;
    mod state;
}
