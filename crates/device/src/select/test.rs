use proptest::prelude::*;

use super::*;
use crate::{
    describe::{Api, Description},
    fake,
};

const FIRST_UUID: &str = "GPU-11112222-3333-4444-5555-666677778888";
const SECOND_UUID: &str = "GPU-1111222f-3333-4444-5555-666677778888";

/// Two identical NVIDIA cards through CUDA and Vulkan, an integrated Radeon, software Vulkan, a processor.
fn machine() -> Inventory {
    let card = |id: &str, api, name: &str, kind, pci: Option<&str>, uuid: Option<&str>, units| {
        fake::device(Description {
            api,
            kind,
            name: name.into(),
            pci: pci.map(Into::into),
            uuid: uuid.map(Into::into),
            compute_units: Some(units),
            ..fake::description(id)
        })
    };
    let (h200, first, second) = ("NVIDIA H200", Some("0000:01:00.0"), Some("0000:02:00.0"));
    let views = vec![
        card("cuda:0", Api::Cuda, h200, DeviceKind::Discrete, first, Some(FIRST_UUID), 132),
        card("cuda:1", Api::Cuda, h200, DeviceKind::Discrete, second, Some(SECOND_UUID), 132),
        card("vulkan:0", Api::Vulkan, h200, DeviceKind::Discrete, first, None, 132),
        card("vulkan:1", Api::Vulkan, h200, DeviceKind::Discrete, second, None, 132),
        card("vulkan:2", Api::Vulkan, "AMD Radeon", DeviceKind::Integrated, Some("0000:c4:00.0"), None, 12),
        card("vulkan:3", Api::Vulkan, "llvmpipe", DeviceKind::Software, None, None, 2),
        card("cpu", Api::Cpu, "Some Processor", DeviceKind::Cpu, None, None, 64),
    ];
    Inventory::each_once(views, Vec::new())
}

fn selected(selection: &str) -> String {
    let devices = machine().select(selection).unwrap();
    devices.iter().map(|device| device.id().as_str()).collect::<Vec<_>>().join(" ")
}

fn refused(selection: &str) -> (String, String, String) {
    match machine().select(selection).unwrap_err() {
        Error::Selection { asked, detail, available } => (asked, detail, available),
        other => panic!("{selection}: {other}"),
    }
}

/// A machine with a card, and two hosts with a card and a processor each.
fn cluster() -> Inventory {
    let device = |host: Option<&str>, id: &str, api, kind| {
        let prefix = host.map(|host| format!("{host}/")).unwrap_or_default();
        let host = host.map(str::to_owned);
        fake::device(Description {
            api,
            kind,
            host,
            name: format!("NVIDIA {id}"),
            pci: (kind != DeviceKind::Cpu).then(|| "0000:01:00.0".into()),
            compute_units: Some(16),
            ..fake::description(&format!("{prefix}{id}"))
        })
    };
    let views = [None, Some("box"), Some("lab3")].into_iter().flat_map(|host| {
        let card = |id, api| device(host, id, api, DeviceKind::Discrete);
        let cpu = device(host, "cpu", Api::Cpu, DeviceKind::Cpu);
        [card("cuda:0", Api::Cuda), card("vulkan:0", Api::Vulkan), cpu]
    });
    Inventory::each_once(views.collect(), Vec::new())
}

fn ids_of(inventory: &Inventory, selection: &str) -> String {
    let devices = inventory.select(selection).unwrap();
    devices.iter().map(|device| device.id().as_str()).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_term_after_a_host_means_its_devices_only() {
    let all = cluster();
    assert_eq!(ids_of(&all, "box/cuda:0"), "box/cuda:0");
    assert_eq!(ids_of(&all, "box/gpu"), "box/cuda:0");
    assert_eq!(ids_of(&all, "BOX/vulkan"), "box/vulkan:0");
    assert_eq!(ids_of(&all, "box/all,lab3/cpu[8]"), "box/cuda:0 box/cpu lab3/cpu/a");
    assert_eq!(ids_of(&all, "cpu,lab3/nvidia"), "cpu lab3/cuda:0 lab3/cpu");
    assert_eq!(ids_of(&all, "gpu"), "cuda:0 box/cuda:0 lab3/cuda:0");
    assert_eq!(ids_of(&all, "gpu,-box/gpu"), "cuda:0 lab3/cuda:0");
    assert_eq!(ids_of(&all, "cpu"), "cpu", "an id of this machine");
    assert!(all.select("box/software").is_err());
    assert!(all.select("lab4/gpu").is_err());
}

#[test]
fn a_host_that_must_be_named_is_in_no_group() {
    let named = cluster().with_named_only("box");
    assert_eq!(ids_of(&named, "all"), "cuda:0 cpu lab3/cuda:0 lab3/cpu");
    assert_eq!(ids_of(&named, "all,box/gpu"), "cuda:0 cpu lab3/cuda:0 lab3/cpu box/cuda:0");
    assert_eq!(ids_of(&named, "cpu,box/cpu"), "cpu box/cpu");
    let default: Vec<_> = named.default_devices().iter().map(|device| device.id().to_string()).collect();
    assert_eq!(default, ["cuda:0", "cpu", "lab3/cuda:0", "lab3/cpu"]);
}

#[test]
fn hosts_are_found_in_a_selection() {
    let hosts = |selection: &str| machine().hosts_in(selection, |name| name == "known").unwrap().join(" ");
    assert_eq!(hosts("all,gpu-box/gpu,-gpu-box/cuda:1,lab3/cpu[8]"), "gpu-box lab3");
    assert_eq!(hosts("known/h200,unknown/h200"), "known");
    assert_eq!(hosts("cpu[1,1],cpu/a,cuda:0[40,92],cuda:0/b,cuda:7/a,H200/PCIe"), "");
    assert!(machine().hosts_in("cpu[", |_| false).is_err());
    let (all, is_host) = (cluster(), |_: &str| true);
    assert!(all.hosts_in("box/gpu,lab3/cpu", is_host).unwrap().is_empty(), "they are in the inventory");
}

#[test]
fn software_devices_are_not_default_devices() {
    let ids: Vec<_> = machine().default_devices().iter().map(|device| device.id().to_string()).collect();
    assert_eq!(ids, ["cuda:0", "cuda:1", "vulkan:2", "cpu"]);
    let software = fake::device(Description { kind: DeviceKind::Software, ..fake::description("vulkan:0") });
    assert_eq!(Inventory::each_once(vec![software], Vec::new()).default_devices().len(), 1);
}

#[test]
fn ids_come_in_the_order_asked_for_and_once() {
    assert_eq!(selected("cpu,cuda:1, CUDA:0 ,cpu"), "cpu cuda:1 cuda:0");
}

#[test]
fn apis_and_groups_select_all_of_their_devices() {
    assert_eq!(selected("cuda"), "cuda:0 cuda:1");
    assert_eq!(selected("gpu"), "cuda:0 cuda:1 vulkan:2");
    assert_eq!(selected("software"), "vulkan:3");
    assert_eq!(selected("all"), "cuda:0 cuda:1 vulkan:2 vulkan:3 cpu");
    assert_eq!(selected("cpu,all"), "cpu cuda:0 cuda:1 vulkan:2 vulkan:3");
}

#[test]
fn an_api_that_is_not_preferred_can_still_be_asked_for() {
    assert_eq!(selected("vulkan:0"), "vulkan:0");
    assert_eq!(selected("vulkan"), "vulkan:0 vulkan:1 vulkan:2 vulkan:3");
    assert_eq!(selected("all,vulkan:1"), "cuda:0 vulkan:1 vulkan:2 vulkan:3 cpu");
    assert_eq!(selected("vulkan:1,gpu"), "vulkan:1 cuda:0 vulkan:2");
    assert_eq!(selected("cuda,vulkan,-vulkan:0,-vulkan:1,-software"), "cuda:0 cuda:1 vulkan:2");
}

#[test]
fn a_leading_minus_starts_from_the_default() {
    assert_eq!(selected("-cpu"), "cuda:0 cuda:1 vulkan:2");
    assert_eq!(selected("-gpu"), "cpu");
    assert_eq!(selected("-radeon,-cuda:0"), "cuda:1 cpu");
    assert_eq!(selected("gpu,-cuda"), "vulkan:2");
    assert_eq!(selected("-metal"), "cuda:0 cuda:1 vulkan:2 cpu");
}

#[test]
fn names_addresses_and_uuids_find_devices() {
    assert_eq!(selected("h200"), "cuda:0 cuda:1");
    assert_eq!(selected("Radeon"), "vulkan:2");
    assert_eq!(selected("02:00.0"), "cuda:1");
    assert_eq!(selected("0000:C4:00.0"), "vulkan:2");
    assert_eq!(selected(FIRST_UUID), "cuda:0");
    assert_eq!(selected("1111222F"), "cuda:1");
    assert_eq!(selected("gpu-11112222-33"), "cuda:0");
}

#[test]
fn an_ambiguous_uuid_prefix_is_refused() {
    let twins = vec![
        fake::device(Description { uuid: Some("GPU-aaaabbbbcc01".into()), ..fake::description("cuda:0") }),
        fake::device(Description { uuid: Some("GPU-aaaabbbbcc02".into()), ..fake::description("cuda:1") }),
    ];
    let inventory = Inventory::each_once(twins, Vec::new());
    let why = inventory.select("aaaabbbb").unwrap_err().to_string();
    assert!(why.contains("cuda:0 or cuda:1"), "{why}");
    assert_eq!(inventory.select("aaaabbbbcc02").unwrap().len(), 1);
}

#[test]
fn a_split_device_is_replaced_by_its_partitions() {
    assert_eq!(selected("cuda:0[40,88]"), "cuda:0/a cuda:0/b");
    assert_eq!(selected("all,cuda:0[40,80]"), "cuda:0/a cuda:0/b cuda:1 vulkan:2 vulkan:3 cpu");
    assert_eq!(selected("cuda:0[40,80],cuda"), "cuda:0/a cuda:0/b cuda:1");
    assert_eq!(selected("cpu[8,8],-cpu/a"), "cpu/b");
    assert_eq!(selected("cpu[8,8],cuda:1,-cpu"), "cuda:1");
    assert_eq!(selected("cpu[16,8],cpu/a[8,8]"), "cpu/a/a cpu/a/b cpu/b");
    assert_eq!(selected("02:00.0[8]"), "cuda:1/a");
}

#[test]
fn a_partition_that_came_out_larger_says_what_was_asked_for() {
    let devices = machine().select("cuda:0[40,81]").unwrap();
    let asked: Vec<_> = devices.iter().map(|device| device.describe().rounded_from).collect();
    assert_eq!(asked, [None, Some(81)]);
}

#[test]
fn the_same_hardware_twice_is_an_error() {
    for (selection, says) in [
        ("cuda:0,vulkan:0", "cuda:0 and vulkan:0"),
        ("cuda,vulkan", "cuda:0 and vulkan:0"),
        ("cuda:0,cuda:0[8,8]", "cuda:0 and cuda:0/a"),
        ("cuda:0[8,8],cuda:0", "cuda:0/a and cuda:0"),
        ("cuda:0[8,8],vulkan:0", "cuda:0/a and vulkan:0"),
        ("cuda:0[8,8],vulkan:0[8,8]", "cuda:0/a and vulkan:0/a"),
        ("cpu[8],cpu[8]", "already split"),
    ] {
        let (_, detail, _) = refused(selection);
        assert!(detail.contains(says), "{selection}: {detail}");
    }
}

#[test]
fn a_term_without_a_match_is_refused_with_the_available_devices() {
    let (asked, _, available) = refused("cpu,cuda:7");
    assert_eq!(asked, "cuda:7");
    assert_eq!(available.lines().count(), 7);
    assert!(available.contains("cuda:0     NVIDIA H200 (discrete)\n"), "{available}");
    assert!(available.contains("vulkan:0   NVIDIA H200 (discrete), the same as cuda:0\n"), "{available}");
    for selection in ["metal", "nonsense", "-nonsense", "09:00.0", "12345678"] {
        assert_eq!(refused(selection).0, selection);
    }
    assert!(refused("cuda:0/a").1.contains("`cuda:0[…]`"));
}

#[test]
fn impossible_selections_are_refused() {
    assert!(refused("cpu,cuda:0[8").1.contains("brackets"));
    assert!(refused("cuda[8,8]").1.contains("cuda:0 or cuda:1"));
    assert_eq!(refused("-all").1, "it excludes every device");
    assert!(matches!(machine().select("cpu[65]"), Err(Error::Split { .. })));
}

#[test]
fn every_view_in_one_list_is_still_each_device_once() {
    let all = machine();
    let views: Vec<Device> = all.views().cloned().collect();
    let inventory = Inventory::from_parts(views, Vec::new());
    assert_eq!(inventory.devices().len(), 7);
    assert_eq!(inventory.default_devices().len(), 4);
    assert_eq!(inventory.select("all").unwrap().len(), 5);
}

proptest! {
    #[test]
    fn no_selection_uses_hardware_twice(
        terms in prop::collection::vec(
            prop::sample::select(vec![
                "cuda:0", "cuda:1", "vulkan:0", "vulkan:2", "cpu", "cuda", "vulkan", "gpu", "all", "software",
                "-cpu", "-cuda:0", "-gpu", "-vulkan", "h200", "01:00.0", "cuda:0[8,8]", "vulkan:0[8]",
                "cpu[8,8]", "cpu/a[8]", "cpu/a", "-cpu/b",
            ]),
            1..6,
        )
    ) {
        if let Ok(devices) = machine().select(&terms.join(",")) {
            prop_assert!(!devices.is_empty());
            for (index, device) in devices.iter().enumerate() {
                for other in &devices[..index] {
                    let (a, b) = (other.id().as_str(), device.id().as_str());
                    prop_assert_ne!(a, b);
                    let is_part = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
                    prop_assert!(!is_part(a, b) && !is_part(b, a));
                    let is_twin = same_hardware(other.describe(), device.describe());
                    prop_assert!(!is_twin, "{} and {}", a, b);
                }
            }
        }
    }

    #[test]
    fn any_text_selects_or_is_refused(selection in any::<String>()) {
        let _ = machine().select(&selection);
    }
}
