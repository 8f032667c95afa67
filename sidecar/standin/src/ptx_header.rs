//! The head of a PTX text: whether the driver would take it.

use crate::abi::code;
use crate::driver_pose::DriverPose;

/// Checks `.version` and `.target` of a module against a driver and a device's compute capability (`90` is 9.0).
///
/// # Errors
/// `UNSUPPORTED_PTX_VERSION` for PTX that is newer than the driver, `INVALID_PTX` for one whose target the device is
/// not: an older device, or another one than that of an `a` target. The text says why.
pub fn check(text: &str, driver: DriverPose, capability: u32) -> Result<(), (u32, String)> {
    let invalid = |words: &str| (code::INVALID_PTX, words.to_owned());
    let version = directive(text, ".version").ok_or_else(|| invalid("there is no .version"))?;
    let target = directive(text, ".target").ok_or_else(|| invalid("there is no .target"))?;
    let numbers = version.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let numbers: (u32, u32) = numbers.ok_or_else(|| invalid("its .version is not two numbers"))?;
    if numbers > driver.newest_ptx() {
        let (major, minor) = driver.newest_ptx();
        let words =
            format!("its .version {version} is newer than {major}.{minor}, which this driver takes at most");
        return Err((code::UNSUPPORTED_PTX_VERSION, words));
    }
    let architecture = target.split(',').next().and_then(|name| name.trim().strip_prefix("sm_"));
    let architecture = architecture.ok_or_else(|| invalid("its .target is no sm_ architecture"))?;
    let is_specific = architecture.ends_with(|last: char| last.is_ascii_alphabetic());
    let number = architecture.trim_end_matches(|last: char| last.is_ascii_alphabetic()).parse();
    let number: u32 = number.map_err(|_| invalid("its .target is no sm_ architecture"))?;
    if number > capability || (is_specific && number != capability) {
        return Err((
            code::INVALID_PTX,
            format!("its .target {target} is not for a device of sm_{capability}"),
        ));
    }
    Ok(())
}

fn directive<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim_start);
    lines.find_map(|line| line.strip_prefix(name)).map(|rest| rest.split("//").next().unwrap_or(rest).trim())
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::abi::code;
    use crate::driver_pose::DriverPose;

    fn answer(version: &str, target: &str, driver: &str) -> u32 {
        let text = format!("// a comment\n.version {version}\n.target {target}\n.address_size 64\n");
        check(&text, DriverPose::named(Some(driver)), 90).err().map_or(0, |(code, _)| code)
    }

    #[test]
    fn a_driver_refuses_newer_ptx() {
        assert_eq!(answer("8.0", "sm_80", "12.0"), 0);
        assert_eq!(answer("8.1", "sm_80", "12.0"), code::UNSUPPORTED_PTX_VERSION);
        assert_eq!(answer("8.7", "sm_80", "12.8"), 0);
        assert_eq!(answer("9.0", "sm_80", "12.8"), code::UNSUPPORTED_PTX_VERSION);
        assert_eq!((answer("9.0", "sm_80", "13.0"), answer("9.1", "sm_80", "13.0")), (0, 222));
    }

    #[test]
    fn a_target_is_for_its_device_and_later_ones_but_an_a_target_for_one() {
        assert_eq!((answer("8.0", "sm_90", "13.0"), answer("8.0", "sm_90a", "13.0")), (0, 0));
        assert_eq!(answer("8.0", "sm_80a", "13.0"), code::INVALID_PTX);
        assert_eq!(answer("8.0", "sm_100", "13.0"), code::INVALID_PTX);
        assert_eq!(answer("8.0", "sm_80, debug", "13.0"), 0);
    }
}
