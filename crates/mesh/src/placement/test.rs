//! Splits and proposals as cases; `against` compares them with exhaustive references.

mod against;

use evener_device::DeviceKind;

use super::*;
use crate::topology::{LayoutError, Member};

/// Rounding, as a factor.
const ROUNDING: f64 = 1.0 + 1e-9;

fn layer(cost: f64) -> Layer {
    Layer { cost, ..Layer::default() }
}

fn device(id: impl Into<String>, rate: f64) -> Member {
    Member::new(id, DeviceKind::Discrete).with_rate(rate)
}

fn ids(plan: &Proposal, group: &str) -> Vec<String> {
    let group = plan.mesh().unwrap().group(group).unwrap();
    group.members().unwrap().map(|member| member.id.to_string()).collect()
}

#[test]
fn a_stage_gets_layers_by_its_rate() {
    let layers = vec![layer(1.0); 12];
    let stages = [3.0, 2.0, 1.0].map(|rate_per_s| StageCapacity { rate_per_s, memory_bytes: None });
    let split = split_layers(&layers, &stages).unwrap();
    assert_eq!(split.stages, [0..6, 6..10, 10..12]);
    assert_eq!(split.slowest_s, 2.0);
}

#[test]
fn memory_overrules_rate() {
    let layers = vec![Layer { cost: 1.0, memory_bytes: 10, ..Layer::default() }; 8];
    let stages = [(100.0, Some(20)), (1.0, None)]
        .map(|(rate_per_s, memory_bytes)| StageCapacity { rate_per_s, memory_bytes });
    assert_eq!(split_layers(&layers, &stages).unwrap().stages, [0..2, 2..8]);
    let tight = [(100.0, Some(19)), (1.0, Some(69))]
        .map(|(rate_per_s, memory_bytes)| StageCapacity { rate_per_s, memory_bytes });
    let refused = split_layers(&layers, &tight).unwrap_err().to_string();
    assert!(refused.contains("they need 80 bytes of the 88 bytes"), "{refused}");
    let small = tight.map(|stage| StageCapacity { memory_bytes: Some(9), ..stage });
    assert!(
        split_layers(&layers, &small)
            .unwrap_err()
            .to_string()
            .contains("80 bytes, and the stages have 18 bytes: 62 bytes too")
    );
    let large = [Layer { memory_bytes: 25, ..layer(1.0) }, layer(1.0), layer(1.0)];
    let refused =
        split_layers(&large, &stages.map(|stage| StageCapacity { memory_bytes: Some(20), ..stage }));
    assert!(refused.unwrap_err().to_string().contains("the largest layer needs 25 bytes"));
}

#[test]
fn invalid_input_is_not_split() {
    let stage = |rate_per_s| StageCapacity { rate_per_s, memory_bytes: None };
    let few = split_layers(&[layer(1.0)], &[stage(1.0), stage(1.0)]).unwrap_err();
    assert_eq!(few, PlacementError::TooFewLayers { layers: 1, stages: 2 });
    assert!(split_layers(&[], &[]).is_err());
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(
            matches!(split_layers(&[layer(1.0)], &[stage(rate)]), Err(PlacementError::InvalidNumber { .. })),
            "{rate}"
        );
    }
    for cost in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(
            matches!(split_layers(&[layer(cost)], &[stage(1.0)]), Err(PlacementError::Workload(_))),
            "{cost}"
        );
    }
}

#[test]
fn alike_devices_share_layers_whatever_their_order() {
    let rates = [1.0, 5.0, 1.0, 5.0, 5.0, 1.0, 5.0, 1.0];
    let devices = rates.iter().enumerate().map(|(index, &rate)| device(format!("d{index}"), rate));
    let plan = Planner::new(devices, Workload::even(24, 1.0)).tp(2).pp(2).dp(2).propose().unwrap();
    for group in plan.mesh().unwrap().groups_of_axis("tp").unwrap() {
        let rates: Vec<_> = group.members().unwrap().map(|member| member.rate_per_s).collect();
        assert_eq!(rates[0], rates[1], "{}", group.name());
    }
    assert_eq!(plan.search, SearchMethod::Exhaustive);
    let shares: Vec<u64> = plan.replicas.iter().map(|replica| replica.micro_batches).collect();
    assert_eq!(shares, [2, 14], "a slow replica and a fast one");
    let listed = Planner::new(plan.members.iter().rev(), Workload::even(24, 1.0)).tp(2).pp(2).dp(2);
    assert!(listed.as_listed().unwrap().step_s >= plan.step_s / ROUNDING);
}

#[test]
fn alike_devices_keep_their_order() {
    let devices = (0..16).map(|index| device(format!("d{index}"), 1.0));
    let plan = Planner::new(devices, Workload::even(8, 1.0)).tp(4).pp(2).propose().unwrap();
    assert_eq!((plan.dp, plan.search), (2, SearchMethod::Exhaustive));
    let order: Vec<String> = plan.members.iter().map(ToString::to_string).collect();
    assert_eq!(order, (0..16).map(|index| format!("d{index}")).collect::<Vec<_>>());
    assert!((plan.balance - 1.0).abs() < 1e-12);
}

#[test]
fn unlike_replicas_share_micro_batches_by_their_speed() {
    let devices = [device("slow", 1.0), device("fast", 3.0)];
    let workload = Workload::even(4, 1.0).with_micro_batches(8);
    let plan = Planner::new(devices, workload).dp(2).propose().unwrap();
    assert_eq!(plan.replicas.iter().map(|replica| replica.micro_batches).collect::<Vec<_>>(), [2, 6]);
    assert_eq!((plan.step_s, plan.ideal_s, plan.efficiency), (8.0, 8.0, 1.0));
    assert!((plan.balance - 1.0).abs() < 1e-12);
}

/// Two machines of four devices, listed alternately, with fast links within and a slow one between.
fn two_machines() -> (Vec<Member>, Links) {
    let machine = |index: usize| if index.is_multiple_of(2) { "one" } else { "two" };
    let devices = (0..8).map(|index| device(format!("d{index}"), 1e12).on_machine(machine(index))).collect();
    let links =
        ["one", "two"].iter().fold(Links::new(), |links, machine| links.between(*machine, *machine, 400e9));
    (devices, links.between("one", "two", 1e9))
}

#[test]
fn tensor_parallel_groups_stay_on_the_fastest_links() {
    let (devices, links) = two_machines();
    let traffic =
        Layer { tensor_bytes: 1 << 24, output_bytes: 1 << 20, gradient_bytes: 1 << 24, ..layer(1e9) };
    // Also without traffic: then links break ties.
    for layer in [traffic, layer(1e9)] {
        let planner = Planner::new(&devices, Workload::new(vec![layer; 8])).links(links.clone());
        let plan = planner.clone().tp(4).propose().unwrap();
        for group in plan.mesh().unwrap().groups_of_axis("tp").unwrap() {
            let mut machines: Vec<_> =
                group.members().unwrap().map(|member| member.machine.clone()).collect();
            machines.dedup();
            assert_eq!(machines.len(), 1, "{}", group.name());
        }
    }
    let planner = Planner::new(&devices, Workload::new(vec![traffic; 8])).links(links);
    let plan = planner.propose().unwrap();
    assert!(plan.tp <= 4, "no tensor-parallel group over the slow link: {plan:?}");
    for (tp, pp, dp) in [(8, 1, 1), (4, 2, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2)] {
        let other = planner.clone().tp(tp).pp(pp).dp(dp).propose().unwrap();
        assert!(plan.step_s <= other.step_s * ROUNDING, "{tp} {pp} {dp}");
    }
}

#[test]
fn many_unlike_devices_are_placed_better_than_listed() {
    let rate = |index: usize| 1.0 + (index * 7919 % 13) as f64;
    let devices: Vec<Member> = (0..32).map(|index| device(format!("d{index}"), rate(index))).collect();
    let planner = Planner::new(devices, Workload::even(48, 1.0)).tp(2).pp(4).dp(4);
    let (plan, listed) = (planner.propose().unwrap(), planner.as_listed().unwrap());
    assert_eq!((plan.search, listed.search), (SearchMethod::LocalSearch, SearchMethod::AsListed));
    assert!(plan.efficiency > 1.5 * listed.efficiency, "{} {}", plan.efficiency, listed.efficiency);
    assert!(plan.balance > listed.balance);
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let planner = Planner::new((0..8).map(|index| device(format!("d{index}"), 1.0)), Workload::even(4, 1.0));
    let refused = |planner: Planner| planner.propose().unwrap_err();
    let zero = LayoutError::ZeroSize { axis: "tp".into(), world: 8 };
    assert_eq!(refused(planner.clone().tp(0)), PlacementError::Layout(zero));
    let text = refused(planner.clone().tp(3)).to_string();
    assert!(text.contains("ranks 3 to 7 would be left over"), "{text}");
    let text = refused(planner.clone().tp(2).pp(2).dp(3)).to_string();
    assert!(text.contains("dp 3 × pp 2 × tp 2 needs 12 ranks"), "{text}");
    assert_eq!(refused(planner.clone().pp(8)), PlacementError::TooFewLayers { layers: 4, stages: 8 });
    assert!(planner.propose().unwrap().pp <= 4);
    let none: [Member; 0] = [];
    assert_eq!(
        Planner::new(none, Workload::even(1, 1.0)).propose().unwrap_err(),
        PlacementError::Layout(LayoutError::NoDevices)
    );
}

#[test]
fn invalid_workloads_and_rates_are_refused() {
    let refused =
        |workload: Workload| Planner::new([device("a", 1.0)], workload).propose().unwrap_err().to_string();
    assert!(refused(Workload::even(0, 1.0)).contains("all layers have cost 0"));
    assert!(refused(Workload::even(2, 0.0)).contains("all layers have cost 0"));
    assert!(refused(Workload::even(2, f64::NAN)).contains("layer 0 costs NaN"));
    assert!(refused(Workload::even(2, 1.0).with_micro_batches(0)).contains("0 micro-batches"));
    let rate = Planner::new([device("a", -1.0)], Workload::even(1, 1.0)).propose().unwrap_err();
    assert_eq!(rate.to_string(), "a: its rate is -1: it must be a number above 0");
}

#[test]
fn rates_are_measured_or_scored_for_all_devices() {
    let (a, b) = (Member::new("a", DeviceKind::Discrete), Member::new("b", DeviceKind::Cpu));
    let plan = |devices: [Member; 2], layer: Layer| {
        Planner::new(devices, Workload::new(vec![layer])).dp(2).propose()
    };
    let unknown = plan([a.clone().with_rate(1.0), b.clone().with_score(1.0)], layer(1.0)).unwrap_err();
    assert_eq!(unknown, PlacementError::NotRated(vec!["b".into()]));
    let scored = [a.with_rate(5.0).with_score(30.0), b.with_score(10.0)];
    let by_score = plan(scored.clone(), layer(1.0)).unwrap();
    assert_eq!(by_score.rated_by, RateSource::Score);
    assert_eq!(by_score.replicas.iter().map(|replica| replica.micro_batches).collect::<Vec<_>>(), [12, 4]);
    let traffic = plan(scored, Layer { gradient_bytes: 1, ..layer(1.0) }).unwrap_err();
    assert_eq!(
        traffic.to_string(),
        "traffic is given, and b was not measured: measure all devices, or leave the traffic out"
    );
}

#[test]
fn links_that_are_needed_must_be_known_and_there() {
    let (a, b) = (device("a", 1.0).on_machine("one"), device("b", 1.0).on_machine("two"));
    let workload = Workload::new(vec![Layer { gradient_bytes: 1, ..layer(1.0) }]);
    let planner = Planner::new([&a, &b], workload).dp(2);
    assert_eq!(
        planner.propose().unwrap_err(),
        PlacementError::UnknownLink { from: "one/a".into(), to: "two/b".into() }
    );
    let refused = |links: Links| planner.clone().links(links).propose().unwrap_err().to_string();
    assert!(refused(Links::new().between("one", "three", 1.0)).ends_with("called three"));
    assert!(refused(Links::new().between("one", "two", 0.0)).contains("its bandwidth is 0"));
    assert!(planner.links(Links::new().between("one", "two", 1.0)).propose().is_ok());
}

#[test]
fn the_closest_link_counts() {
    let on = |id: &str, machine: &str| device(id, 1.0).on_machine(machine);
    let (a, b, c) = (on("a", "one"), on("b", "one"), on("c", "two"));
    let links = Links::new()
        .between("one", "one", 1.0)
        .between("a", "one/b", 2.0)
        .between("two", "one", 3.0)
        .between("c", "one", 4.0)
        .between("two", "one", 5.0);
    assert_eq!(links.bandwidth(&b, &a), Some(2.0));
    assert_eq!(links.bandwidth(&a, &c), Some(4.0));
    assert_eq!(links.bandwidth(&b, &on("d", "one")), Some(1.0));
    assert_eq!(links.bandwidth(&b, &on("d", "two")), Some(5.0), "the last of two for the same");
    assert_eq!(links.bandwidth(&c, &on("d", "two")), None);
    let host = |member: Member, bytes| member.with_host_bytes_per_s(bytes);
    assert_eq!(links.bandwidth(&host(c, 9.0), &host(on("d", "two"), 8.0)), Some(8.0));
}

#[test]
fn too_little_memory_is_reported_with_numbers() {
    let devices = (0..4).map(|index| device(format!("d{index}"), 1.0).with_memory_bytes(10));
    let layers = vec![Layer { memory_bytes: 11, ..layer(1.0) }; 4];
    let planner = Planner::new(devices, Workload::new(layers));
    let refused = planner.propose().unwrap_err().to_string();
    assert!(
        refused.contains("they need 44 bytes, and the stages have 40 bytes: 4 bytes too little"),
        "{refused}"
    );
    let refused = planner.clone().dp(4).propose().unwrap_err().to_string();
    assert!(refused.contains("with tp 1, pp 1 and dp 4"), "{refused}");
}

#[test]
fn partitions_share_memory() {
    let part = |id: &str| device(id, 1.0).part_of("gpu").with_memory_bytes(100);
    let layers = vec![Layer { memory_bytes: 30, ..layer(1.0) }; 3];
    let planner = Planner::new([part("gpu/a"), part("gpu/b")], Workload::new(layers)).pp(2);
    let refused = planner.propose().unwrap_err().to_string();
    assert!(refused.contains("no split in the layers' order fits"), "{refused}");
}

#[test]
fn memory_decides_who_takes_which_stage() {
    // The fast device has too little memory for the large layer, at any position in the list.
    let small = device("small", 9.0).with_memory_bytes(10);
    let large = device("large", 1.0).with_memory_bytes(100);
    let layers = vec![Layer { memory_bytes: 50, ..layer(1.0) }, Layer { memory_bytes: 10, ..layer(1.0) }];
    for devices in [[&small, &large], [&large, &small]] {
        let plan = Planner::new(devices, Workload::new(layers.clone())).pp(2).propose().unwrap();
        assert_eq!(
            (ids(&plan, "pp_dp0_tp0"), plan.stages[0].capacity_bytes),
            (vec!["large".into(), "small".into()], Some(100))
        );
    }
}

#[test]
fn an_invalid_cluster_spec_says_what_is_wrong() {
    let wrong = |text: &str| ClusterSpec::from_toml(text).unwrap_err();
    assert!(wrong("[[device]]\nid='a'\nspeed=3").contains("speed"));
    assert!(wrong("[[layer]]\nmemory_bytes=3").contains("cost"));
    assert!(wrong("[[layer]]\ncost=1\ncount=5000").contains("5000 layers: at most 4096 are allowed"));
    assert!(wrong("micro_batches=3").contains("[[layer]]"));
    let empty = ClusterSpec::from_toml("").unwrap();
    assert!(empty.members.is_empty() && empty.workload.is_none());
}
