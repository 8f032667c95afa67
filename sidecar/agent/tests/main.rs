//! The gateway over real sockets. Its scheduler is the test.

mod gateway {
    mod client;
    mod doors;
    mod hostile;
    mod leaving;
    mod limits;
    mod metrics;
    mod pacing;
    mod params;
    mod shapes;
    mod tiny;
    mod world;
}
