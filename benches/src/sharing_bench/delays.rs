//! Delays that peers caused each other, as the sidecars measured them.

use serde_json::{Value, json};

/// Times of one kind over all tenants.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    /// How many there were.
    pub samples: u64,
    /// Median, milliseconds: mean of the tenants' medians, weighted with their samples; NaN = there was none.
    pub p50_ms: f64,
    /// P99 of the tenant that has it worst, milliseconds; NaN = there was none.
    pub p99_ms: f64,
}

/// The kinds, in the order of [`Delays`]: name, and where a state has it.
pub const KINDS: [(&str, &str); 5] = [
    ("KV shortage to mapped", "/peers/grant"),
    ("revoked to returned", "/peers/revoke"),
    ("returned to all layers loaded", "/peers/wake"),
    ("hand-over of the time slice", "/peers/time_slice/handover"),
    ("wait for the time slice", "/peers/time_slice/wait"),
];

/// One of each of [`KINDS`].
pub type Delays = [Delay; KINDS.len()];

/// Reads the states of all tenants. A delay that no sidecar has measured has no samples.
pub fn read(states: &[Value]) -> Delays {
    KINDS.map(|(_, path)| Delay::over(states.iter().filter_map(|state| state.pointer(path))))
}

/// For reports.
pub fn to_json(delays: &Delays) -> Value {
    let one = |((name, _), delay): (&(&str, &str), &Delay)| json!({"what": name, "samples": delay.samples, "p50_ms": delay.p50_ms, "p99_ms": delay.p99_ms});
    KINDS.iter().zip(delays).map(one).collect()
}

impl Delay {
    fn over<'a>(tenants: impl Iterator<Item = &'a Value>) -> Delay {
        let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or(0);
        let (mut samples, mut sum_ms, mut p99_ms) = (0, 0.0, f64::NAN);
        for tenant in tenants.filter(|tenant| number(tenant, "samples") > 0) {
            let count = number(tenant, "samples");
            samples += count;
            sum_ms += number(tenant, "p50_ns") as f64 / 1e6 * count as f64;
            p99_ms = p99_ms.max(number(tenant, "p99_ns") as f64 / 1e6);
        }
        // 0 / 0 is no number, as it should be.
        Delay { samples, p50_ms: sum_ms / samples as f64, p99_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_over_the_tenants_that_measured_some() {
        let state = |samples: u64, p50_ns: u64, p99_ns: u64| {
            let grant = json!({"samples": samples, "p50_ns": p50_ns, "p99_ns": p99_ns});
            json!({"peers": {"grant": grant, "time_slice": null}})
        };
        let found = read(&[
            state(1, 2_000_000, 9_000_000),
            state(3, 6_000_000, 7_000_000),
            state(0, 0, 0),
            json!({}),
        ]);
        assert_eq!((found[0].samples, found[0].p50_ms, found[0].p99_ms), (4, 5.0, 9.0));
        assert!(
            found[1..].iter().all(|none| none.samples == 0 && none.p50_ms.is_nan() && none.p99_ms.is_nan())
        );
        assert_eq!(
            to_json(&found)[3],
            json!({"what": KINDS[3].0, "samples": 0, "p50_ms": null, "p99_ms": null})
        );
    }
}
