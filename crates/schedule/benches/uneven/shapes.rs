//! Items, their work, and the distributions of their costs. `tbb.cc` has the same work.

/// An item: a number of rounds of arithmetic, and its start value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) seed: u32,
    pub(crate) rounds: u32,
}

/// Each round depends on the one before, so that no compiler can vectorise it.
pub(crate) fn work(item: &Item) -> u64 {
    let mut value = u64::from(item.seed);
    for _ in 0..item.rounds {
        value = value.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x7F4A_7C15);
        value ^= value >> 29;
    }
    value
}

/// A checksum of all results in order.
pub(crate) fn checksum(results: &[u64]) -> u64 {
    results.iter().fold(0, |sum, &result| (sum ^ result).wrapping_mul(0x0100_0000_01B3))
}

/// Items per core.
const ITEMS: usize = 10_000;
/// Rounds per core: about 80 ms.
const ROUNDS: u64 = 40_000_000;
/// Maximum cost of an item, as a fraction of a core's work: a longer one would alone set the time.
const LONGEST: f64 = 0.05;

/// Makes a shape's items for so many cores.
type Make = fn(usize) -> Vec<Item>;

/// All shapes.
pub(crate) const SHAPES: [(&str, Make); 6] = [
    ("spread", |cores| items(cores, spread(cores))),
    ("worst-first", |cores| items(cores, sorted(spread(cores), true))),
    ("worst-last", |cores| items(cores, sorted(spread(cores), false))),
    ("clustered", |cores| items(cores, clustered(cores, 0.01, 100.0))),
    ("needles", |cores| items(cores, clustered(cores, 0.001, 2_000.0))),
    ("heavy-tail", |cores| items(cores, heavy_tail(cores))),
];

/// Random costs from 1 to 100.
fn spread(cores: usize) -> Vec<f64> {
    let mut rng = Rng(1);
    (0..ITEMS * cores).map(|_| 1.0 + 99.0 * rng.next()).collect()
}

fn sorted(mut costs: Vec<f64>, descending: bool) -> Vec<f64> {
    costs.sort_by(f64::total_cmp);
    if descending {
        costs.reverse();
    }
    costs
}

/// All items cost 1, except a cluster in the middle that costs `times` as much.
fn clustered(cores: usize, part: f64, times: f64) -> Vec<f64> {
    let count = ITEMS * cores;
    let dear = (count as f64 * part) as usize;
    let first = (count - dear) / 2;
    (0..count).map(|it| if (first..first + dear).contains(&it) { times } else { 1.0 }).collect()
}

/// A Pareto distribution: most of the cost is in few items.
fn heavy_tail(cores: usize) -> Vec<f64> {
    const ALPHA: f64 = 1.1;
    let mut rng = Rng(2);
    let mut costs: Vec<f64> = (0..ITEMS * cores).map(|_| (1.0 - rng.next()).powf(-1.0 / ALPHA)).collect();
    // Cutting some costs changes the sum, and with it the limit.
    for _ in 0..20 {
        let longest = LONGEST * costs.iter().sum::<f64>() / cores as f64;
        costs.iter_mut().for_each(|cost| *cost = cost.min(longest));
    }
    costs
}

/// Items with these costs, scaled to the same number of rounds for every shape.
fn items(cores: usize, costs: Vec<f64>) -> Vec<Item> {
    let total = ROUNDS * cores as u64;
    let sum: f64 = costs.iter().sum();
    let seeds = 0..costs.len() as u32;
    let mut items: Vec<Item> = costs
        .into_iter()
        .zip(seeds)
        .map(|(cost, seed)| Item { seed, rounds: (cost / sum * total as f64) as u32 })
        .collect();
    let given: u64 = items.iter().map(|item| u64::from(item.rounds)).sum();
    let left = total.saturating_sub(given) as usize;
    items.iter_mut().take(left).for_each(|item| item.rounds += 1);
    items
}

/// SplitMix64: random numbers from 0 to 1.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}
