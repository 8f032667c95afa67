//! Tests of the stand-in as a caller sees it: through cudarc, in processes that find it on their library path.

mod cublas;
mod device;
mod driver;
mod process;
