//! Splits and proposals against exhaustive references.

use std::ops::Range;

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

use super::{
    super::{predict::DeviceProperties, search::Searcher, workload::PrefixSums},
    *,
};

/// Returns all splits of layers into stages that are not empty.
fn every_split(layers: Range<usize>, stages: usize) -> Vec<Vec<Range<usize>>> {
    if stages == 1 {
        return if layers.is_empty() { vec![] } else { vec![vec![layers]] };
    }
    let firsts = layers.start + 1..layers.end;
    firsts
        .flat_map(|end| {
            every_split(end..layers.end, stages - 1).into_iter().map(move |mut rest| {
                rest.insert(0, layers.start..end);
                rest
            })
        })
        .collect()
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![vec![]];
    }
    let shorter = permutations(count - 1);
    shorter
        .iter()
        .flat_map(|order| {
            (0..count).map(|place| {
                let mut order = order.clone();
                order.insert(place, count - 1);
                order
            })
        })
        .collect()
}

/// The cost model as documented: the time of a step, or `None` if no split fits.
fn reference(
    properties: &DeviceProperties,
    workload: &Workload,
    [tp, pp, dp]: [usize; 3],
    order: &[usize],
) -> Option<f64> {
    let at = |d: usize, s: usize, t: usize| order[d * pp * tp + s * tp + t];
    let link = |a: usize, b: usize| properties.bandwidth[a][b].unwrap();
    let layers = &workload.layers;
    let sum = |range: &Range<usize>, of: fn(&Layer) -> f64| layers[range.clone()].iter().map(of).sum::<f64>();
    let slowest = |group: &[usize]| {
        let mut slowest = f64::INFINITY;
        for &a in group {
            for &b in group {
                if a != b {
                    slowest = slowest.min(link(a, b));
                }
            }
        }
        slowest
    };
    let ring = |members: usize| 2.0 * (members as f64 - 1.0) / members as f64;
    let seconds = |d: usize, s: usize, range: &Range<usize>| {
        let group: Vec<usize> = (0..tp).map(|t| at(d, s, t)).collect();
        let rate = group.iter().map(|&device| properties.rates[device]).fold(f64::INFINITY, f64::min);
        let mut seconds = sum(range, |layer| layer.cost) / (rate * tp as f64);
        seconds += sum(range, |layer| layer.tensor_bytes as f64) * ring(tp) / slowest(&group);
        if s + 1 < pp {
            let onwards = (0..tp).map(|t| link(at(d, s, t), at(d, s + 1, t))).fold(f64::INFINITY, f64::min);
            seconds += layers[range.end - 1].output_bytes as f64 / onwards;
        }
        seconds
    };
    let fits = |s: usize, range: &Range<usize>| {
        let needs: u64 = layers[range.clone()].iter().map(|layer| layer.memory_bytes).sum();
        (0..dp).all(|d| {
            (0..tp)
                .all(|t| properties.memory[at(d, s, t)].is_none_or(|capacity| needs <= capacity * tp as u64))
        })
    };
    let together =
        |s: usize, range: &Range<usize>| dp as f64 / (0..dp).map(|d| 1.0 / seconds(d, s, range)).sum::<f64>();
    let splits = every_split(0..layers.len(), pp);
    let fitting = splits.iter().filter(|split| split.iter().enumerate().all(|(s, range)| fits(s, range)));
    let split = fitting.min_by(|a, b| {
        let times = |split: &Vec<Range<usize>>| -> Vec<f64> {
            split.iter().enumerate().map(|(s, range)| together(s, range)).collect()
        };
        let (a, b) = (times(a), times(b));
        let most = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
        most(&a).total_cmp(&most(&b)).then(a.iter().sum::<f64>().total_cmp(&b.iter().sum()))
    })?;
    let stage_s: Vec<Vec<f64>> =
        (0..dp).map(|d| split.iter().enumerate().map(|(s, range)| seconds(d, s, range)).collect()).collect();
    let time = |d: usize, count: u64| {
        let most = stage_s[d].iter().copied().fold(0.0, f64::max);
        if count == 0 { 0.0 } else { stage_s[d].iter().sum::<f64>() + (count - 1) as f64 * most }
    };
    let replicas = every_share(workload.micro_batches, dp)
        .iter()
        .map(|shares| shares.iter().enumerate().map(|(d, &count)| time(d, count)).fold(0.0, f64::max))
        .fold(f64::INFINITY, f64::min);
    let mut gradients = 0.0f64;
    for (s, range) in split.iter().enumerate() {
        for t in 0..tp {
            let group: Vec<usize> = (0..dp).map(|d| at(d, s, t)).collect();
            let bytes = sum(range, |layer| layer.gradient_bytes as f64) / tp as f64;
            gradients = gradients.max(bytes * ring(dp) / slowest(&group));
        }
    }
    Some(replicas + gradients)
}

/// Returns all distributions of micro-batches.
fn every_share(count: u64, replicas: usize) -> Vec<Vec<u64>> {
    if replicas == 1 {
        return vec![vec![count]];
    }
    (0..=count)
        .flat_map(|own| {
            every_share(count - own, replicas - 1).into_iter().map(move |mut rest| {
                rest.push(own);
                rest
            })
        })
        .collect()
}

/// The local search, for few enough orders to try all. Links and memory are random, which is harder than real machines.
#[test]
fn local_search_comes_close_to_the_best_of_all_orders() {
    let mut runner = TestRunner::deterministic();
    let (mut ratios, cases) = (Vec::new(), any_case());
    while ratios.len() < 300 {
        let (sizes, members, links, workload) = cases.new_tree(&mut runner).unwrap().current();
        let properties = properties(&members, &links);
        let sums = PrefixSums::of(&workload.layers);
        let searcher = Searcher::new(&properties, &workload, &sums, &vec![0; members.len()]);
        if workload.layers.len() >= sizes[1]
            && let Some(candidate) = searcher.without_exhaustive(sizes)
        {
            ratios.push(candidate.prediction.step_s / least(&properties, &workload, sizes).unwrap());
        }
    }
    let best = ratios.iter().filter(|&&ratio| ratio <= ROUNDING).count();
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    let worst = ratios.iter().copied().fold(1.0, f64::max);
    println!("{best} of {} are best, mean {mean}, worst {worst}", ratios.len());
    assert!(ratios.iter().all(|&ratio| ratio * ROUNDING >= 1.0));
    assert!(best >= 290 && mean < 1.005, "{best} of {} are best, mean {mean}, worst {worst}", ratios.len());
}

prop_compose! {
    /// Layers with different costs, so that no two splits are equal.
    fn any_layers(most: usize)(
        layers in prop::collection::vec((1.0f64..10.0, 0u64..10, 0u64..50, 0u64..50, 0u64..50), 1..=most),
        traffic in any::<bool>(),
    ) -> Vec<Layer> {
        let bytes = |bytes: u64| if traffic { bytes } else { 0 };
        layers.into_iter().map(|(cost, memory_bytes, tensor, output, gradient)| Layer {
            cost,
            memory_bytes,
            tensor_bytes: bytes(tensor),
            output_bytes: bytes(output),
            gradient_bytes: bytes(gradient),
        }).collect()
    }
}

prop_compose! {
    /// Devices of a few kinds, and links between them.
    fn any_devices(sizes: [usize; 3])(
        devices in prop::collection::vec((prop::sample::select(vec![1.0, 1.5, 4.0]), prop::option::of(10u64..60)), sizes.iter().product::<usize>()),
        links in prop::collection::vec(prop::sample::select(vec![5.0, 20.0, 100.0]), 15),
    ) -> (Vec<Member>, Links) {
        let members: Vec<Member> = devices.iter().enumerate().map(|(index, &(rate, capacity))| {
            let member = device(format!("d{index}"), rate);
            match capacity {
                Some(capacity) => member.with_memory_bytes(capacity),
                None => member,
            }
        }).collect();
        let mut all = Links::new();
        let mut speeds = links.into_iter();
        for one in 0..members.len() {
            for other in one + 1..members.len() {
                all = all.between(format!("d{one}"), format!("d{other}"), speeds.next().unwrap());
            }
        }
        (members, all)
    }
}

fn any_case() -> impl Strategy<Value = ([usize; 3], Vec<Member>, Links, Workload)> {
    let sizes = prop::sample::select(vec![
        [1, 1, 1],
        [2, 1, 1],
        [1, 2, 1],
        [1, 1, 2],
        [1, 3, 1],
        [1, 1, 3],
        [2, 2, 1],
        [1, 2, 2],
        [2, 1, 2],
        [1, 4, 1],
        [1, 5, 1],
        [2, 3, 1],
        [1, 3, 2],
        [3, 2, 1],
        [3, 1, 2],
        [1, 2, 3],
    ]);
    sizes.prop_flat_map(|sizes| {
        (Just(sizes), any_devices(sizes), any_layers(6), 1u64..6).prop_map(
            |(sizes, (members, links), layers, batches)| {
                (sizes, members, links, Workload::new(layers).with_micro_batches(batches))
            },
        )
    })
}

fn properties(members: &[Member], links: &Links) -> DeviceProperties {
    DeviceProperties {
        rates: members.iter().map(|member| member.rate_per_s.unwrap()).collect(),
        memory: members.iter().map(|member| member.memory_bytes).collect(),
        bandwidth: members
            .iter()
            .map(|one| members.iter().map(|other| links.bandwidth(one, other)).collect())
            .collect(),
    }
}

/// Returns the least time of a step over all orders of the devices.
fn least(properties: &DeviceProperties, workload: &Workload, sizes: [usize; 3]) -> Option<f64> {
    let orders = permutations(properties.rates.len());
    let steps = orders.iter().filter_map(|order| reference(properties, workload, sizes, order));
    steps.min_by(f64::total_cmp)
}

/// Checks what every proposal promises.
fn check_promises(plan: &Proposal, members: &[Member], workload: &Workload) {
    let mut names: Vec<String> = plan.members.iter().map(ToString::to_string).collect();
    names.sort_unstable();
    let mut given: Vec<String> = members.iter().map(ToString::to_string).collect();
    given.sort_unstable();
    assert_eq!(names, given, "every device is there once");
    assert_eq!((plan.stages.len(), plan.replicas.len()), (plan.pp, plan.dp));
    let ends: Vec<usize> = plan.stages.iter().map(|stage| stage.layers.end).collect();
    let starts: Vec<usize> = plan.stages.iter().map(|stage| stage.layers.start).collect();
    assert_eq!((starts[0], ends[plan.pp - 1]), (0, workload.layers.len()));
    assert_eq!(starts[1..], ends[..plan.pp - 1], "stages follow each other");
    assert_eq!(
        plan.replicas.iter().map(|replica| replica.micro_batches).sum::<u64>(),
        workload.micro_batches
    );
    let mesh = plan.mesh().unwrap();
    for rank in 0..mesh.world_size() {
        let stage = &plan.stages[mesh.stage(rank).unwrap().index];
        assert!(!stage.layers.is_empty());
        let capacity = mesh.member(rank).unwrap().memory_bytes.unwrap_or(u64::MAX);
        let layers = &workload.layers[stage.layers.clone()];
        let needs: u64 = layers.iter().map(|layer| layer.memory_bytes).sum();
        assert!(
            needs.div_ceil(plan.tp as u64) <= capacity
                && needs.div_ceil(plan.tp as u64) == stage.memory_bytes
        );
    }
    assert!(plan.step_s * ROUNDING >= plan.ideal_s && plan.efficiency <= ROUNDING, "{plan:?}");
    assert!(plan.balance > 0.0 && plan.balance <= ROUNDING, "{plan:?}");
}

proptest! {
    #[test]
    fn no_split_beats_the_split(
        layers in any_layers(9),
        stages in prop::collection::vec((0.1f64..10.0, prop::option::of(5u64..60)), 1..=5),
    ) {
        let stages: Vec<StageCapacity> =
            stages.into_iter().map(|(rate_per_s, memory_bytes)| StageCapacity { rate_per_s, memory_bytes }).collect();
        let time = |stage: usize, range: &Range<usize>| {
            layers[range.clone()].iter().map(|layer| layer.cost).sum::<f64>() / stages[stage].rate_per_s
        };
        let fits = |stage: usize, range: &Range<usize>| {
            let needs: u64 = layers[range.clone()].iter().map(|layer| layer.memory_bytes).sum();
            stages[stage].memory_bytes.is_none_or(|capacity| needs <= capacity)
        };
        let times = |split: &[Range<usize>]| -> Vec<f64> {
            split.iter().enumerate().map(|(stage, range)| time(stage, range)).collect()
        };
        let splits = every_split(0..layers.len(), stages.len());
        let best = splits.iter().filter(|split| split.iter().enumerate().all(|(stage, range)| fits(stage, range)))
            .map(|split| times(split))
            .map(|times| (times.iter().copied().fold(0.0, f64::max), times.iter().sum::<f64>()))
            .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        match (split_layers(&layers, &stages), best) {
            (Ok(split), Some((slowest, sum))) => {
                prop_assert!(splits.contains(&split.stages));
                prop_assert!(split.stages.iter().enumerate().all(|(stage, range)| fits(stage, range)));
                let own = times(&split.stages);
                prop_assert!((split.slowest_s - slowest).abs() <= slowest * 1e-9, "{} {slowest}", split.slowest_s);
                prop_assert!(own.iter().all(|&time| time <= slowest * ROUNDING));
                prop_assert!(own.iter().sum::<f64>() <= sum * ROUNDING, "{own:?} {sum}");
            }
            (Err(PlacementError::TooFewLayers { .. }), None) => prop_assert!(layers.len() < stages.len()),
            (Err(PlacementError::Memory(_)), None) => prop_assert!(layers.len() >= stages.len()),
            (own, reference) => prop_assert!(false, "{own:?} {reference:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_order_of_the_devices_beats_the_proposed_one((sizes, members, links, workload) in any_case()) {
        let [tp, pp, dp] = sizes;
        let planner = Planner::new(&members, workload.clone()).links(links.clone()).tp(tp).pp(pp).dp(dp);
        let best = least(&properties(&members, &links), &workload, sizes);
        match (planner.propose(), best) {
            (Ok(plan), Some(best)) => {
                prop_assert_eq!(plan.search, SearchMethod::Exhaustive);
                prop_assert!((plan.step_s - best).abs() <= best * 1e-9, "{} {best}", plan.step_s);
                check_promises(&plan, &members, &workload);
                if let Ok(listed) = planner.as_listed() {
                    prop_assert!(plan.step_s <= listed.step_s * ROUNDING);
                    check_promises(&listed, &members, &workload);
                }
            }
            (Err(PlacementError::TooFewLayers { .. }), None) => prop_assert!(workload.layers.len() < pp),
            (Err(PlacementError::Memory(_)), None) => prop_assert!(workload.layers.len() >= pp),
            (own, reference) => prop_assert!(false, "{own:?} {reference:?}"),
        }
    }

    #[test]
    fn sizes_that_are_proposed_are_the_best_of_all(
        (_, members, links, workload) in any_case(),
    ) {
        let planner = Planner::new(&members, workload.clone()).links(links.clone());
        let world = members.len();
        let sizes = (1..=world).flat_map(|tp| (1..=world).flat_map(move |pp| (1..=world).map(move |dp| [tp, pp, dp])));
        let sizes = sizes.filter(|sizes| sizes.iter().product::<usize>() == world && sizes[1] <= workload.layers.len());
        let properties = properties(&members, &links);
        let best = sizes.filter_map(|sizes| least(&properties, &workload, sizes)).min_by(f64::total_cmp);
        match (planner.propose(), best) {
            (Ok(plan), Some(best)) => {
                check_promises(&plan, &members, &workload);
                prop_assert!((plan.step_s - best).abs() <= best * 1e-9, "{} {best}", plan.step_s);
            }
            (Err(PlacementError::Memory(_)), None) => {}
            (own, reference) => prop_assert!(false, "{own:?} {reference:?}"),
        }
    }
}
