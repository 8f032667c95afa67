//! Requests of each tenant, and their times.

use anyhow::Result;
use serde_json::Value;

use super::setting::Setting;
use super::size::Size;
use super::tenants::TENANTS;
use crate::client::{self, Client, ClientReport};
use crate::tenant::{BenchEnv, Up};

/// How the load is spread over the tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Bursts cycle through the tenants, each after its predecessor has ended; the other tenants are idle.
    Alternating,
    /// The first tenant gets burst after burst, each of the others now and then one request.
    Skewed,
}

/// Requests to one tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestStream {
    tenant: usize,
    requests: u32,
    arrivals: Arrivals,
    seed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Arrivals {
    /// This number is always open.
    Open(u32),
    /// A fixed gap, milliseconds.
    Every(u64),
}

/// Streams that begin together. The next round begins when all have ended.
pub type Round = Vec<RequestStream>;

impl Shape {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Alternating => "alternating",
            Shape::Skewed => "skewed",
        }
    }

    /// The load.
    pub fn rounds(self, size: Size, setting: &Setting) -> Vec<Round> {
        match self {
            Shape::Alternating => alternating(size),
            Shape::Skewed => vec![skewed(size, setting)],
        }
    }
}

fn alternating(size: Size) -> Vec<Round> {
    let bursts = (0..size.cycles).flat_map(|_| 0..TENANTS.len()).enumerate();
    let burst = |(number, tenant): (usize, usize)| {
        let arrivals = Arrivals::Open(size.requests);
        vec![RequestStream { tenant, requests: size.requests, arrivals, seed: number as u32 + 1 }]
    };
    bursts.map(burst).collect()
}

/// As many requests as with bursts that go round, nearly all of them for the first tenant.
fn skewed(size: Size, setting: &Setting) -> Round {
    // Time enough between them to be asked for memory, which then has to come back: twice that of an answer.
    let step_ns = setting.calibration.compute_ns * setting.calibration.layers;
    let gap_ms = 2 * (u64::from(size.output) * step_ns).div_ceil(1_000_000);
    let few = |tenant: usize| RequestStream {
        tenant,
        requests: size.cycles,
        arrivals: Arrivals::Every(gap_ms),
        seed: tenant as u32 + 1,
    };
    let rest = size.requests() - 2 * size.cycles;
    let many = RequestStream { tenant: 0, requests: rest, arrivals: Arrivals::Open(size.requests), seed: 1 };
    vec![many, few(1), few(2)]
}

/// Sends the load by `sluice bench`; its reports, round by round.
pub fn send(
    world: &BenchEnv,
    up: &Up<'_>,
    setting: &Setting,
    rounds: &[Round],
    mut look: impl FnMut(&[Value]),
) -> Result<Vec<Vec<ClientReport>>> {
    let mut meanwhile = client::looking(&world.stop, || up.states().map(|states| look(&states)));
    let mut send = |round: &Round| {
        let clients = round.iter().map(|stream| stream.client(world, up, setting)).collect();
        client::run_all(clients, &world.stop, &mut meanwhile)
    };
    rounds.iter().map(&mut send).collect()
}

impl RequestStream {
    fn client(&self, world: &BenchEnv, up: &Up<'_>, setting: &Setting) -> Client {
        let arrivals = match self.arrivals {
            Arrivals::Open(requests) => ["--concurrency".to_owned(), requests.to_string()],
            Arrivals::Every(gap_ms) => ["--arrivals".to_owned(), format!("every:{}", gap_ms as f64 / 1e3)],
        };
        let options = format!(
            "--vocab 256 -n {} --seed {} --lengths {}:{} --slo-ttft {} --slo-tbt {}",
            self.requests,
            self.seed,
            setting.burst.prompt,
            setting.burst.output,
            setting.ttft_ms,
            setting.tbt_ms
        );
        let options: Vec<_> = options.split(' ').map(str::to_owned).chain(arrivals).collect();
        Client::new(world, &up.url(self.tenant), up.files().join(TENANTS[self.tenant]), &options)
    }
}

#[cfg(test)]
mod tests {
    use super::super::setting::tests::setting;
    use super::*;

    fn requests_of(rounds: &[Round], tenant: usize) -> u32 {
        rounds.iter().flatten().filter(|stream| stream.tenant == tenant).map(|stream| stream.requests).sum()
    }

    #[test]
    fn both_shapes_send_as_many_requests() {
        for shape in [Shape::Alternating, Shape::Skewed] {
            let rounds = shape.rounds(Size::FULL, &setting());
            let all: u32 = (0..TENANTS.len()).map(|tenant| requests_of(&rounds, tenant)).sum();
            assert_eq!(all, Size::FULL.requests(), "{shape:?}");
        }
    }

    #[test]
    fn alternating_bursts_are_one_at_a_time_and_go_round() {
        let rounds = Shape::Alternating.rounds(Size::FULL, &setting());
        let order: Vec<_> = rounds.iter().map(|round| (round.len(), round[0].tenant)).collect();
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2].map(|tenant| (1, tenant)));
        // No burst repeats another one: a tenant would find its prompts in its cache.
        let seeds: std::collections::BTreeSet<_> = rounds.iter().map(|round| round[0].seed).collect();
        assert_eq!(seeds.len(), rounds.len());
    }

    #[test]
    fn under_a_skewed_load_one_tenant_gets_nearly_all() {
        let rounds = Shape::Skewed.rounds(Size::FULL, &setting());
        let share = f64::from(requests_of(&rounds, 0)) / f64::from(Size::FULL.requests());
        assert!(share > 0.85 && share < 1.0, "{share}");
    }
}
