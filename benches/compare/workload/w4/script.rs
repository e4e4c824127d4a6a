//! Who comes when, and is completed when: drawn before anything is measured.

use std::time::Duration;

use fastrand::Rng;

/// Keys that there are.
const KEYS: u64 = 100;

/// The normal distribution's 75th percentile.
const NORMAL_75: f64 = 0.674_489_75;

/// Kafka's constant, which the harness of that time had as an option.
pub(super) const TIMEOUT: Duration = Duration::from_millis(200);

/// The time from a request's arrival to its completion: log-normal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latency {
    pub(super) median: Duration,
    pub(super) third_quartile: Duration,
}

pub(super) struct Script {
    pub(super) arrivals: Vec<Arrival>,
    /// When which request is completed, in that order. As in Kafka's test, one that would come
    /// after the timeout is left out: that request expires.
    pub(super) completions: Vec<(Duration, u32)>,
}

pub(super) struct Arrival {
    pub(super) at: Duration,
    /// Three different ones.
    pub(super) keys: [u64; 3],
    pub(super) is_completed: bool,
}

impl Script {
    /// Requests at `rate` per second, for `span`. Each number draws other requests.
    pub(super) fn new(number: u64, rate: usize, span: Duration, latency: Latency) -> Self {
        let mut random = Rng::with_seed(2015 + number);
        let median = latency.median.as_secs_f64();
        let sigma = (latency.third_quartile.as_secs_f64() / median).ln() / NORMAL_75;
        let requests = (rate as f64 * span.as_secs_f64()) as usize;
        let mut arrivals = Vec::with_capacity(requests);
        let mut completions = Vec::with_capacity(requests);
        let mut time = 0.0;
        for index in 0..requests as u32 {
            time += exponential(&mut random) / rate as f64;
            let latency = median * (sigma * normal(&mut random)).exp();
            let is_completed = latency < TIMEOUT.as_secs_f64();
            if is_completed {
                completions.push((Duration::from_secs_f64(time + latency), index));
            }
            arrivals.push(Arrival {
                at: Duration::from_secs_f64(time),
                keys: three_keys(&mut random),
                is_completed,
            });
        }
        completions.sort_unstable();
        Self {
            arrivals,
            completions,
        }
    }
}

fn three_keys(random: &mut Rng) -> [u64; 3] {
    let first = random.u64(..KEYS);
    let second = (first + 1 + random.u64(..KEYS - 1)) % KEYS;
    loop {
        let third = random.u64(..KEYS);
        if third != first && third != second {
            return [first, second, third];
        }
    }
}

/// Exponential, 1 on average: the gap between two events that come once in a unit of time.
fn exponential(random: &mut Rng) -> f64 {
    // Above 0, up to 1.
    -(1.0 - random.f64()).ln()
}

/// Standard normal, by Box and Muller.
fn normal(random: &mut Rng) -> f64 {
    let radius = (2.0 * exponential(random)).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}
