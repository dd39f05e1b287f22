use std::collections::HashSet;

use evener_device::{Device, DeviceKind};
use proptest::prelude::*;

use super::*;

fn members(count: usize) -> Vec<Member> {
    (0..count)
        .map(|index| {
            Member::new(format!("d{index}"), DeviceKind::Discrete)
                .with_memory_bytes(1 << (index % 40))
                .with_compute_units(index as u32)
        })
        .collect()
}

fn mesh(axes: &[(&str, usize)]) -> Mesh {
    let world = axes.iter().map(|axis| axis.1).product();
    Mesh::new(members(world)).axes(axes.to_vec()).unwrap()
}

fn names(mesh: &Mesh) -> Vec<String> {
    mesh.groups().map(|group| group.name().to_owned()).collect()
}

/// Returns the results of all queries of a mesh.
fn answers(mesh: &Mesh) -> String {
    let mut text = format!("{:?} {:?}", mesh.axes(), mesh.members());
    for group in mesh.groups() {
        text += &format!(
            "\n{} {:?} {:?} {:?}",
            group.name(),
            group.axis().unwrap(),
            group.ranks().unwrap(),
            group.totals().unwrap()
        );
    }
    for rank in 0..mesh.world_size() {
        text += &format!("\n{rank} {:?} {:?}", mesh.coordinates(rank).unwrap(), mesh.stage(rank));
        for axis in mesh.axes() {
            let group = mesh.group_of(rank, &axis.name).unwrap();
            text += &format!(" {} {:?}", group.name(), mesh.neighbours(rank, &axis.name).unwrap());
        }
    }
    let mut statistics = mesh.statistics();
    statistics.reshapes = 0;
    text + &format!("\n{statistics:?}")
}

/// Checks the laws of every layout: coordinates, groups and names.
fn check_laws(mesh: &Mesh) {
    let world = mesh.world_size();
    let axes = mesh.axes().to_vec();
    let all: Vec<usize> = (0..world).collect();
    assert_eq!(mesh.group("world").unwrap().ranks().unwrap(), all);
    let listed: HashSet<String> = names(mesh).into_iter().collect();
    assert_eq!(listed.len(), mesh.groups().len(), "every name is there once");

    let mut expected = 1;
    for (index, axis) in axes.iter().enumerate() {
        let groups = mesh.groups_of_axis(&axis.name).unwrap();
        assert_eq!(groups.len() * axis.size, world);
        expected += groups.len();
        let mut in_groups: Vec<usize> =
            groups.iter().flat_map(|group| group.ranks().unwrap().to_vec()).collect();
        in_groups.sort_unstable();
        assert_eq!(in_groups, all, "the groups of {} partition the ranks", axis.name);
        for group in &groups {
            assert_eq!(group.axis().unwrap(), Some(axis.name.as_str()));
            for (place, &rank) in group.ranks().unwrap().iter().enumerate() {
                let at = mesh.coordinates(rank).unwrap();
                assert_eq!(at[index], place, "a group rank is the coordinate along the axis");
                assert_eq!(group.group_rank(rank).unwrap(), place);
                assert_eq!(group.rank(place).unwrap(), rank);
                assert_eq!(mesh.group_of(rank, &axis.name).unwrap().name(), group.name());
                // The name as the rule says it, made here from the coordinates alone.
                let others: Vec<String> = (0..axes.len())
                    .filter(|&other| other != index)
                    .map(|other| format!("{}{}", axes[other].name, at[other]))
                    .collect();
                let others = if others.is_empty() { "0".into() } else { others.join("_") };
                assert_eq!(group.name(), format!("{}_{others}", axis.name));
            }
        }
    }
    assert_eq!(mesh.groups().len(), expected, "no group beside world's and the axes'");

    for rank in 0..world {
        let at = mesh.coordinates(rank).unwrap();
        assert_eq!(mesh.rank_at(&at).unwrap(), rank);
        let by_hand = axes.iter().zip(&at).fold(0, |rank, (axis, at)| rank * axis.size + at);
        assert_eq!(by_hand, rank, "the last axis is innermost");
        for (index, axis) in axes.iter().enumerate() {
            assert_eq!(mesh.coordinate(rank, &axis.name).unwrap(), at[index]);
            let moved = |to: usize| {
                let mut at = at.clone();
                at[index] = to;
                mesh.rank_at(&at).unwrap()
            };
            let near = mesh.neighbours(rank, &axis.name).unwrap();
            assert_eq!(near.previous, at[index].checked_sub(1).map(moved));
            assert_eq!(near.next, (at[index] + 1 < axis.size).then(|| moved(at[index] + 1)));
            assert_eq!(near.ring_next, moved((at[index] + 1) % axis.size));
            assert_eq!(near.ring_previous, moved((at[index] + axis.size - 1) % axis.size));
        }
    }
}

#[test]
fn every_mixed_layout_up_to_64_obeys_the_laws() {
    let mut layouts = 0;
    for tp in 1..=64 {
        for pp in 1..=64 / tp {
            for dp in 1..=64 / tp / pp {
                let mesh = Mesh::new(members(tp * pp * dp)).axes(Parallelism::Mixed { tp, pp, dp }).unwrap();
                check_laws(&mesh);
                for rank in 0..mesh.world_size() {
                    let stage = mesh.stage(rank).unwrap();
                    assert_eq!((stage.index, stage.stages), (rank / tp % pp, pp));
                    assert_eq!(stage.predecessor, (stage.index > 0).then(|| rank - tp));
                    assert_eq!(stage.successor, (stage.index + 1 < pp).then(|| rank + tp));
                    assert_eq!(
                        (stage.is_first(), stage.is_last()),
                        (stage.index == 0, stage.index + 1 == pp)
                    );
                }
                layouts += 1;
            }
        }
    }
    assert_eq!(layouts, 796, "the triples whose product is at most 64");
}

#[test]
fn groups_are_named_as_documented() {
    let mesh = mesh(&[("dp", 2), ("pp", 2), ("tp", 4)]);
    let ranks = |name: &str| mesh.group(name).unwrap().ranks().unwrap().to_vec();
    assert_eq!(ranks("tp_dp0_pp1"), [4, 5, 6, 7]);
    assert_eq!(ranks("pp_dp0_tp1"), [1, 5]);
    assert_eq!(ranks("dp_pp0_tp1"), [1, 9]);
    assert_eq!(mesh.groups().len(), 1 + 8 + 8 + 4);
    assert_eq!(mesh.groups().next().unwrap().name(), "world");
}

#[test]
fn one_axis_has_one_group() {
    let name = |parallelism| {
        let mesh = Mesh::new(members(4)).axes(parallelism).unwrap();
        assert_eq!(mesh.group_of(2, &mesh.axes()[0].name).unwrap().ranks().unwrap(), [0, 1, 2, 3]);
        names(&mesh)
    };
    assert_eq!(name(Parallelism::TensorParallel { degree: 4 }), ["world", "tp_0"]);
    assert_eq!(name(Parallelism::PipelineParallel { stages: 4 }), ["world", "pp_0"]);
    assert_eq!(name(Parallelism::DataParallel), ["world", "dp_0"]);
}

#[test]
fn names_do_not_depend_on_sizes() {
    let flat = mesh(&[("dp", 1), ("pp", 1), ("tp", 1)]);
    assert_eq!(names(&flat), ["world", "dp_pp0_tp0", "pp_dp0_tp0", "tp_dp0_pp0"]);
}

#[test]
fn a_layout_that_does_not_fit_is_refused() {
    let refused = |axes: Vec<(&str, usize)>| Mesh::new(members(8)).axes(axes).unwrap_err().to_string();
    assert!(refused(vec![("dp", 2), ("tp", 0)]).contains("1, 2, 4 or 8 would divide"));
    assert!(refused(vec![("dp", 2), ("tp", 3)]).contains("ranks 6 to 7 would be left over; tp 4 would fit"));
    assert!(refused(vec![("dp", 2), ("dp", 4)]).contains("two axes are called `dp`"));
    assert!(refused(vec![]).contains("`dp` of size 8"));
    assert!(refused(vec![("dp", usize::MAX), ("tp", 2)]).contains("would be missing"));
    for name in ["", "TP", "tp_0", "t0", "-tp", "world", "t p"] {
        assert!(refused(vec![(name, 8)]).starts_with(&format!("invalid axis name `{name}`")), "{name}");
    }
    let degree = Mesh::new(members(8)).axes(Parallelism::TensorParallel { degree: 4 }).unwrap_err();
    assert!(degree.to_string().contains("ranks 4 to 7 would be left over"), "{degree}");
    assert_eq!(Mesh::new(members(0)).axes([("dp", 0)]).unwrap_err(), LayoutError::NoDevices);
}

#[test]
fn a_device_is_one_rank_unless_machines_differ() {
    let twice = [Member::new("cuda:0", DeviceKind::Discrete), Member::new("cuda:0", DeviceKind::Discrete)];
    let refused = Mesh::new(&twice).axes(Parallelism::DataParallel).unwrap_err();
    assert_eq!(refused, LayoutError::DuplicateDevice { device: "cuda:0".into(), first: 0, second: 1 });
    let [first, second] = twice;
    let apart = [first.on_machine("a"), second.on_machine("b")];
    assert_eq!(Mesh::new(apart).axes(Parallelism::DataParallel).unwrap().world_size(), 2);
}

#[test]
fn custom_groups_keep_their_order_and_are_checked() {
    let mut mesh = mesh(&[("dp", 2), ("tp", 2)]);
    let group = mesh.add_group("back", [3, 1]).unwrap();
    assert_eq!(group.ranks().unwrap(), [3, 1]);
    assert_eq!((group.group_rank(1).unwrap(), group.rank(0).unwrap()), (1, 3));
    assert_eq!(group.axis().unwrap(), None);
    assert!(group.contains(3).unwrap() && !group.contains(0).unwrap());
    assert_eq!(
        group.group_rank(0).unwrap_err().to_string(),
        "rank 0 is not in group `back`, which has ranks [3, 1]"
    );
    assert!(group.rank(2).unwrap_err().to_string().starts_with("group rank 2 is not in group `back`"));
    assert_eq!(names(&mesh).last().unwrap(), "back");
    assert_eq!(mesh.statistics().custom_groups, 1);

    let mut refused = |name: &str, ranks: &[usize]| {
        let before = mesh.groups().len();
        let error = mesh.add_group(name, ranks.to_vec()).unwrap_err();
        assert_eq!(mesh.groups().len(), before);
        error
    };
    assert_eq!(refused("world", &[0]), LayoutError::ReservedName);
    assert_eq!(refused("tp", &[0]), LayoutError::GroupNamedAsAxis { name: "tp".into() });
    assert_eq!(refused("back", &[0]), LayoutError::DuplicateGroup { name: "back".into(), ranks: vec![3, 1] });
    assert_eq!(
        refused("tp_dp0", &[0]),
        LayoutError::DuplicateGroup { name: "tp_dp0".into(), ranks: vec![0, 1] }
    );
    assert_eq!(refused("none", &[]), LayoutError::EmptyGroup { name: "none".into(), world: 4 });
    assert_eq!(
        refused("far", &[1, 4]),
        LayoutError::GroupOutOfRange { name: "far".into(), rank: 4, world: 4 }
    );
    assert_eq!(refused("twice", &[1, 2, 1]), LayoutError::DuplicateRank { name: "twice".into(), rank: 1 });
    assert_eq!(refused("a b", &[1]), LayoutError::InvalidGroupName { name: "a b".into() });
    assert_eq!(refused("", &[1]), LayoutError::InvalidGroupName { name: "".into() });
}

#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let mesh = mesh(&[("dp", 2), ("tp", 2)]);
    let text = |error: LayoutError| error.to_string();
    assert_eq!(text(mesh.member(4).unwrap_err()), "there is no rank 4: there are ranks 0 to 3");
    assert_eq!(text(mesh.stage(0).unwrap_err()), "there is no axis `pp`: this mesh has dp, tp");
    assert!(text(mesh.group("tp_0").unwrap_err()).contains("world, dp_tp0, dp_tp1, tp_dp0, tp_dp1"));
    for wrong in [&[0][..], &[0, 2], &[0, 0, 0]] {
        assert!(text(mesh.rank_at(wrong).unwrap_err()).ends_with("dp 2 × tp 2"), "{wrong:?}");
    }
}

#[test]
fn a_reshape_that_does_not_fit_changes_nothing() {
    let mut mesh = mesh(&[("dp", 2), ("tp", 2)]);
    let (before, group) = (answers(&mesh), mesh.group("tp_dp1").unwrap());
    assert!(mesh.reshape([("dp", 3)]).is_err());
    assert_eq!(answers(&mesh), before);
    assert_eq!(group.ranks().unwrap(), [2, 3]);
}

#[test]
fn a_handle_from_before_a_reshape_fails_even_where_the_shape_is_the_same() {
    let mut mesh = mesh(&[("dp", 2), ("tp", 2)]);
    let custom = mesh.add_group("mine", [0]).unwrap();
    let old: Vec<RankSet> = mesh.groups().chain([custom]).collect();
    mesh.reshape([("dp", 2), ("tp", 2)]).unwrap();
    for group in &old {
        let stale = LayoutError::Stale { group: group.name().into(), generation: 0, current: 1 };
        assert_eq!(group.check(), Err(stale.clone()));
        assert_eq!(group.ranks(), Err(stale.clone()));
        assert_eq!(group.axis(), Err(stale.clone()));
        assert_eq!(group.size(), Err(stale.clone()));
        assert_eq!(group.contains(0), Err(stale.clone()));
        assert_eq!(group.group_rank(0), Err(stale.clone()));
        assert_eq!(group.rank(0), Err(stale.clone()));
        assert_eq!(group.totals(), Err(stale.clone()));
        assert_eq!(group.members().err(), Some(stale));
    }
    assert!(mesh.group("mine").is_err(), "a custom group does not outlive its generation");
    assert_eq!(mesh.statistics().reshapes, 1);
}

#[test]
fn totals_leave_out_what_is_not_known_and_say_so() {
    let devices = [
        Member::new("a", DeviceKind::Discrete).with_memory_bytes(5).with_compute_units(7).with_rate(2.0),
        Member::new("b", DeviceKind::Cpu).with_memory_bytes(3),
        Member::new("c", DeviceKind::Discrete).with_rate(0.5),
    ];
    let mesh = Mesh::new(devices).axes(Parallelism::DataParallel).unwrap();
    let expected = ResourceTotals {
        devices: 3,
        memory_bytes: 8,
        memory_unknown: 1,
        compute_units: 7,
        compute_units_unknown: 2,
        rate_per_s: 2.5,
        rate_unknown: 1,
    };
    assert_eq!(mesh.totals(), expected);
    assert_eq!(mesh.group("world").unwrap().totals().unwrap(), expected);
    assert_eq!(
        mesh.statistics().kinds.into_iter().collect::<Vec<_>>(),
        [(DeviceKind::Discrete, 2), (DeviceKind::Cpu, 1)]
    );
}

#[test]
fn memory_that_partitions_share_counts_once() {
    let part = |id: &str, of: &str| Member::new(id, DeviceKind::Cpu).part_of(of).with_memory_bytes(7);
    let devices = [
        part("cpu/a", "cpu"),
        part("cpu/b/a", "cpu/b"),
        part("cpu/a", "cpu").on_machine("other"),
        Member::new("gpu", DeviceKind::Discrete).with_memory_bytes(5),
    ];
    let mesh = Mesh::new(devices).axes(Parallelism::DataParallel).unwrap();
    assert_eq!((mesh.totals().memory_bytes, mesh.totals().memory_unknown), (7 + 7 + 5, 0));
}

#[test]
fn real_devices_are_members_and_can_be_had_back() {
    let device = Device::cpu();
    let mesh = Mesh::new([&device]).axes(Parallelism::DataParallel).unwrap();
    let group = mesh.group("dp_0").unwrap();
    let member = group.members().unwrap().next().unwrap();
    assert_eq!(member.device().unwrap().id(), device.id());
    assert_eq!(member.memory_bytes, device.describe().memory_bytes);
    assert_eq!(mesh.totals().compute_units, u64::from(device.describe().compute_units.unwrap()));
    assert_eq!(*member, Member::from(device.describe()));
    assert!(member.score.unwrap() > 0.0);
}

/// Axes whose sizes multiply to at most 240.
fn any_axes() -> impl Strategy<Value = Vec<(String, usize)>> {
    let names =
        prop::sample::subsequence(vec!["ep", "dp", "pp", "cp", "tp", "dp-shard"], 1..=6).prop_shuffle();
    (names, prop::collection::vec(1usize..=6, 6)).prop_map(|(names, sizes)| {
        let mut room = 240;
        let sized = names.into_iter().zip(sizes).map(|(name, size)| {
            let size = size.min(room);
            room /= size;
            (name.to_owned(), size)
        });
        sized.collect()
    })
}

/// Another shape for as many ranks.
fn another(axes: &[(String, usize)], rotate: usize) -> Vec<(String, usize)> {
    let mut sizes: Vec<usize> = axes.iter().map(|axis| axis.1).collect();
    sizes.rotate_left(rotate % axes.len());
    if rotate.is_multiple_of(2) && sizes.len() > 1 {
        let last = sizes.pop().unwrap();
        sizes[0] *= last;
    }
    axes.iter().map(|axis| axis.0.clone()).zip(sizes).collect()
}

proptest! {
    #[test]
    fn every_mesh_obeys_the_laws(axes in any_axes()) {
        let world = axes.iter().map(|axis| axis.1).product();
        check_laws(&Mesh::new(members(world)).axes(axes).unwrap());
    }

    #[test]
    fn a_reshaped_mesh_is_a_fresh_one_and_old_handles_fail(axes in any_axes(), rotate in 0usize..12) {
        let world = axes.iter().map(|axis| axis.1).product();
        let next = another(&axes, rotate);
        let mut mesh = Mesh::new(members(world)).axes(axes).unwrap();
        mesh.add_group("mine", [world - 1]).unwrap();
        let old: Vec<RankSet> = mesh.groups().collect();
        mesh.reshape(next.clone()).unwrap();
        check_laws(&mesh);
        let fresh = Mesh::new(members(world)).axes(next).unwrap();
        prop_assert_eq!(answers(&mesh), answers(&fresh));
        for group in old {
            let stale = matches!(group.ranks(), Err(LayoutError::Stale { generation: 0, current: 1, .. }));
            prop_assert!(stale, "{}", group.name());
        }
    }

    #[test]
    fn a_product_that_is_not_the_world_is_refused_with_a_size_that_fits(
        axes in any_axes(), more in 1usize..50,
    ) {
        let product: usize = axes.iter().map(|axis| axis.1).product();
        let refused = Mesh::new(members(product + more)).axes(axes.clone()).unwrap_err();
        let text = refused.to_string();
        let over = if more == 1 { format!("rank {product}") } else { format!("ranks {product} to {}", product + more - 1) };
        prop_assert!(text.contains(&format!("{over} would be left over")), "{}", text);
        // What is said to fit, fits.
        let (_, fits) = text.rsplit_once("; ").unwrap();
        if let Some((fits, _)) = fits.split_once(" would fit") {
            for one in fits.split(", or ") {
                let (name, size) = one.rsplit_once(' ').unwrap();
                let size: usize = size.parse().unwrap();
                let mut axes = axes.clone();
                match axes.iter_mut().find(|axis| axis.0 == name) {
                    Some(axis) => axis.1 = size,
                    None => axes.push(("another".into(), size)),
                }
                prop_assert!(Mesh::new(members(product + more)).axes(axes).is_ok(), "{}", text);
            }
        }
    }
}
