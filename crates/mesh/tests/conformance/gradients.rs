//! What the weighted all-reduce is for: the gradient of a batch that is spread unevenly.

use evener_mesh::comm::{Communicator, GroupSpec};

use crate::{Rank, reference::next};

const FEATURES: usize = 17;

/// A logistic model's mean gradient over some examples.
fn gradient(weights: &[f64], examples: &[(Vec<f64>, f64)]) -> Vec<f64> {
    let mut gradient = vec![0.0; FEATURES];
    for (features, label) in examples {
        let score: f64 = features.iter().zip(weights).map(|(feature, weight)| feature * weight).sum();
        let error = 1.0 / (1.0 + (-score).exp()) - label;
        for (gradient, feature) in gradient.iter_mut().zip(features) {
            *gradient += error * feature / examples.len() as f64;
        }
    }
    gradient
}

/// With batches of 25 and 10, training over two ranks is training on one device with the joined batch of 35; a third
/// rank without any examples changes nothing.
pub fn uneven_batches_train_as_one(rank: &Rank) {
    for batches in [vec![25, 10], vec![25, 0, 10]] {
        let members: Vec<_> = (0..batches.len()).collect();
        if batches.len() > rank.world.size() {
            continue;
        }
        let group =
            rank.world.new_group(GroupSpec::new(format!("batches{}", batches.len()), members)).unwrap();
        if let Some(me) = group.rank() {
            train(&group, me, &batches);
        }
    }
}

fn train(group: &Communicator, me: usize, batches: &[usize]) {
    let mut noise = 5u64;
    let mut unit = || (next(&mut noise) >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
    let mut together = vec![0.1; FEATURES];
    let mut alone = together.clone();
    for _ in 0..50 {
        let examples: Vec<(Vec<f64>, f64)> = (0..35)
            .map(|_| {
                let features: Vec<f64> = (0..FEATURES).map(|_| 3.0 * unit()).collect();
                let label = f64::from(u8::from(features[0] + features[1] > 0.0));
                (features, label)
            })
            .collect();
        let start: usize = batches[..me].iter().sum();
        // Without examples there is no mean: the weight of the rank is 0.
        let mut mine = gradient(&together, &examples[start..start + batches[me]]);
        if batches[me] == 0 {
            mine.fill(f64::NAN);
        }
        group.weighted_all_reduce(&mut mine, batches[me] as f64).unwrap();
        let joined = gradient(&alone, &examples);
        for (found, expected) in mine.iter().zip(&joined) {
            assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found} is not {expected}");
        }
        together.iter_mut().zip(&mine).for_each(|(weight, gradient)| *weight -= 0.5 * gradient);
        alone.iter_mut().zip(&joined).for_each(|(weight, gradient)| *weight -= 0.5 * gradient);
    }
    assert!(together[0] > 0.3, "nothing was learned: {together:?}");
}
