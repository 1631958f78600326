//! Quantiles and means of samples, and how sure they are.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

/// Resamples behind an interval.
const RESAMPLES: usize = 1000;

/// What samples come to. All in the unit of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// How many.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Half of them are below.
    pub p50: f64,
    /// 95 of 100 are below.
    pub p95: f64,
    /// 99 of 100 are below.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

/// Sums up. Of no samples everything is 0.
pub fn summary(mut samples: Vec<f64>) -> Summary {
    samples.sort_by(f64::total_cmp);
    Summary {
        count: samples.len(),
        mean: mean(&samples),
        p50: quantile(&samples, 0.50),
        p95: quantile(&samples, 0.95),
        p99: quantile(&samples, 0.99),
        max: samples.last().copied().unwrap_or_default(),
    }
}

/// The mean; 0 of none.
pub fn mean(samples: &[f64]) -> f64 {
    if samples.is_empty() { 0.0 } else { samples.iter().sum::<f64>() / samples.len() as f64 }
}

/// The middle of some samples; 0 of none.
pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    quantile(&samples, 0.5)
}

/// The smallest sample that is not below this part of them (nearest rank). They are sorted.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank among the samples")]
    let rank = (part * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// 95% interval of the mean over runs, by bootstrap; a fixed seed, so that a report can be made again.
pub fn interval(runs: &[f64]) -> (f64, f64) {
    if runs.len() < 2 {
        let only = mean(runs);
        return (only, only);
    }
    let mut random = SmallRng::seed_from_u64(1);
    let mut draw = || (0..runs.len()).map(|_| runs[random.random_range(0..runs.len())]).sum::<f64>() / runs.len() as f64;
    let mut means: Vec<f64> = (0..RESAMPLES).map(|_| draw()).collect();
    means.sort_by(f64::total_cmp);
    (quantile(&means, 0.025), quantile(&means, 0.975))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(left: &[f64], right: &[f64]) -> bool {
        left.len() == right.len() && left.iter().zip(right).all(|(left, right)| (left - right).abs() < 1e-9)
    }

    #[test]
    fn quantiles_are_samples() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        let all = summary(hundred);
        assert!(same(&[all.mean, all.p50, all.p95, all.p99, all.max], &[50.5, 50.0, 95.0, 99.0, 100.0]), "{all:?}");
        let few = [summary(vec![3.0]).p99, summary(Vec::new()).mean, median(vec![3.0, 1.0, 2.0])];
        assert!(same(&few, &[3.0, 0.0, 2.0]), "{few:?}");
    }

    #[test]
    fn the_interval_holds_the_mean_and_narrows_with_agreement() {
        let (low, high) = interval(&[1.0, 2.0, 3.0, 2.0, 2.0]);
        assert!(low <= 2.0 && 2.0 <= high && high > low);
        assert_eq!(interval(&[5.0, 5.0, 5.0]), (5.0, 5.0));
    }
}
