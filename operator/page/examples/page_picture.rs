//! Takes a picture of a live page that is being served, such as that of a running `sluice demo`.
//!
//! `docs/pictures/page.png` is made by it, while the demo lends.

use std::process::ExitCode;
use std::{fs, thread, time::Duration};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sluice_e2e::browser::Chromium;

const USAGE: &str = "\
Takes a picture of a live page.

Usage: page_picture URL FILE [WIDTH]

URL    address of the page, as `sluice demo` and `sluice up --page` print it
FILE   the picture, PNG
WIDTH  width of the page in pixels [default: 1400]

It needs the Chromium that SLUICE_CHROMIUM names, or the one on the PATH.
";

/// The first figures through time need two readings, which are a second apart.
const READINGS: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|word| word == "--help" || word == "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let (url, file, width) = match arguments.as_slice() {
        [url, file] => (url, file, Ok(1400)),
        [url, file, width] => (url, file, width.parse()),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let taken = width.map_err(|error| format!("WIDTH: {error}")).and_then(|width| take(url, file, width));
    match taken {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("page_picture: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn take(url: &str, file: &str, width: u32) -> Result<(), String> {
    let chromium = Chromium::find("the picture").ok_or("there is no Chromium")?;
    let sight = chromium.page(width, false);
    sight.open(url, ".gpu .moves");
    thread::sleep(READINGS);
    let picture = STANDARD.decode(sight.picture()).map_err(|error| error.to_string())?;
    fs::write(file, picture).map_err(|error| format!("{file}: {error}"))
}
