//! Tests of the stand-in as a caller sees it: through cudarc, in processes that find it on their library path.

mod capture;
mod cublas;
mod device;
mod driver;
mod function;
mod memory;
mod path;
mod process;
mod ptx;
