//! Multi-scalar multiplications of every device and emitter against arkworks'.

use ark_bn254::{Fr, FrConfig, G1Projective, G2Projective};
use ark_ec::AffineRepr;
use ark_ff::{AdditiveGroup, Field};
use evener_device::{
    Api, Device, Direction,
    testing::{Fault, Faults, InjectedError},
};
use evener_schedule::Pool;

use super::*;
use crate::field::{
    Emitter, Limbs,
    test::{assert_not_in_reused_memory, devices, edge_values, noise},
};

/// Returns different points.
fn points<P: MsmGroup>(count: usize) -> Vec<P::Affine> {
    let first = P::generator() * Fr::from(7u64).inverse().unwrap();
    let step = first.double() + P::generator();
    let all: Vec<P> = std::iter::successors(Some(first), |last| Some(*last + step)).take(count).collect();
    P::normalize_batch(&all)
}

fn random(count: usize, seed: u64) -> Vec<Fr> {
    noise::<FrConfig>(count, seed)
}

/// Returns scalars that are distributed unevenly over the buckets.
fn skewed(count: usize) -> Vec<(&'static str, Vec<Fr>)> {
    let random = random(count, 3);
    let any = random.last().copied().unwrap_or(Fr::ONE);
    let some = |keep: fn(usize) -> bool| {
        random
            .iter()
            .enumerate()
            .map(|(index, scalar)| if keep(index) { *scalar } else { Fr::ZERO })
            .collect()
    };
    vec![
        ("zeros", vec![Fr::ZERO; count]),
        ("ones", vec![Fr::ONE; count]),
        ("all equal", vec![any; count]),
        ("r - 1", vec![-Fr::ONE; count]),
        ("nine of ten are zero", some(|index| index % 10 == 7)),
        (
            "one bucket",
            (0..count).map(|index| if index % 2 == 0 { Fr::from(3) } else { -Fr::from(3) }).collect(),
        ),
        ("powers of two", (0..count).map(|index| Fr::from(2).pow([index as u64 % 254])).collect()),
        ("edge values", edge_values::<FrConfig>().into_iter().cycle().take(count).collect()),
    ]
}

fn check<P: MsmGroup>(about: &str, bases: &MsmBases<P>, points: &[P::Affine], scalars: &[Fr]) {
    let found = bases.msm(scalars).unwrap().into_affine();
    assert_eq!(found, P::msm_on_host(points, scalars).into_affine(), "{about}, {} points", points.len());
}

/// Checks one emitter of a device: sizes, then skewed scalars, then bases that are equal, opposite or infinite.
fn check_emitter<P: MsmGroup>(device: &Device, emitter: Emitter, sizes: &[usize], tables: Tables) {
    let options = MsmOptions { emitter: Some(emitter), tables, ..MsmOptions::default() };
    let about = |what: &str| format!("{emitter:?}, {:?}, {tables:?} on {}: {what}", P::GROUP, device.id());
    let largest = *sizes.last().unwrap();
    let all = points::<P>(largest);
    for &size in sizes {
        let bases = MsmBases::<P>::upload_with(device, &all[..size], &options).unwrap();
        check(&about("random"), &bases, &all[..size], &random(size, size as u64));
        for (what, scalars) in skewed(size) {
            check(&about(what), &bases, &all[..size], &scalars);
        }
    }
    let size = largest.min(200);
    let opposite: Vec<P::Affine> = (0..size)
        .map(|index| if index % 2 == 0 { all[0] } else { (-all[0].into_group()).into_affine() })
        .collect();
    let infinite: Vec<P::Affine> =
        (0..size).map(|index| if index % 3 == 0 { P::Affine::default() } else { all[index] }).collect();
    let special =
        [("equal bases", vec![all[0]; size]), ("opposite bases", opposite), ("infinite bases", infinite)];
    for (what, points) in special {
        let bases = MsmBases::<P>::upload_with(device, &points, &options).unwrap();
        for (which, scalars) in skewed(size).into_iter().chain([("random", random(size, 1))]) {
            check(&about(&format!("{what}, {which}")), &bases, &points, &scalars);
        }
    }
}

#[test]
fn the_processor_computes_as_arkworks_does() {
    for size in [0, 1, 2, 31, 300] {
        let all = points::<G1Projective>(size);
        let bases = MsmBases::<G1Projective>::upload(&Device::cpu(), &all).unwrap();
        let scalars = random(size, 5);
        check("processor", &bases, &all, &scalars);
        skewed(size).iter().for_each(|(what, scalars)| check(what, &bases, &all, scalars));
        let sum: G1Projective = all.iter().zip(&scalars).map(|(point, scalar)| *point * scalar).sum();
        assert_eq!(bases.msm(&scalars).unwrap(), sum);
    }
}

#[test]
fn bases_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    let bases = MsmBases::<G2Projective>::upload(&Device::cpu(), &points::<G2Projective>(2)).unwrap();
    shared(&bases);
    let (one, other) = (random(2, 1), random(2, 2));
    std::thread::scope(|scope| {
        let there = scope.spawn(|| bases.msm(&one).unwrap());
        let here = bases.msm(&other).unwrap();
        let sum = [one[0] + other[0], one[1] + other[1]];
        assert_eq!(there.join().unwrap() + here, bases.msm(&sum).unwrap());
    });
}

#[test]
fn another_number_of_scalars_is_refused() {
    let bases = MsmBases::<G1Projective>::upload(&Device::cpu(), &points::<G1Projective>(3)).unwrap();
    let error = bases.msm(&random(2, 1)).unwrap_err();
    assert!(error.to_string().contains("2 scalars for 3 points"), "{error}");
    let pool = Pool::new([Device::cpu()]).unwrap();
    let error = msm_g1(&pool, &points::<G1Projective>(3), &random(4, 1)).unwrap_err();
    assert!(matches!(error, MsmError::Lengths { points: 3, scalars: 4 }), "{error}");
}

/// One multiplication over all devices of a pool is the same as on the processor.
fn check_pool<P: MsmGroup>(devices: &[Device], size: usize) {
    let pool = Pool::builder().devices(devices).keep_history_at(None).build().unwrap();
    for size in [0, 1, size] {
        let (points, scalars) = (points::<P>(size), random(size, 11));
        let found = msm::<P>(&pool, &points, &scalars).unwrap().into_affine();
        assert_eq!(found, P::msm_on_host(&points, &scalars).into_affine(), "{size} points over {devices:?}");
    }
}

#[test]
fn a_pool_of_processors_computes_as_arkworks_does() {
    check_pool::<G1Projective>(&[Device::cpu()], 3000);
    check_pool::<G2Projective>(&[Device::cpu()], 700);
}

/// Scalars that a device computed are multiplied wherever they begin, and one workspace serves both groups.
fn check_scalars_on_device(api: Api) {
    for device in devices(api) {
        let (all, scalars) = (points::<G1Projective>(100), random(103, 4));
        let in_memory: Vec<Limbs> = scalars.iter().map(|scalar| (*scalar).into()).collect();
        let buffer = device.buffer_from(&in_memory).unwrap().slice(3..).unwrap();
        let mut workspace = MsmWorkspace::new(&device).unwrap();
        let bases = MsmBases::<G1Projective>::upload(&device, &all).unwrap();
        let twisted = points::<G2Projective>(100);
        let twisted_bases = MsmBases::<G2Projective>::upload(&device, &twisted).unwrap();
        let first = bases.queue_device(&mut workspace, &buffer).unwrap();
        let second = twisted_bases.queue_device(&mut workspace, &buffer).unwrap();
        workspace.erase().unwrap();
        assert_eq!(first.wait().unwrap(), G1Projective::msm_on_host(&all, &scalars[3..]));
        assert_eq!(second.wait().unwrap(), G2Projective::msm_on_host(&twisted, &scalars[3..]));
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn scalars_on_the_device_are_multiplied_wherever_they_begin_with_vulkan() {
    check_scalars_on_device(Api::Vulkan);
}

#[test]
#[ignore = "needs a CUDA device"]
fn scalars_on_the_device_are_multiplied_wherever_they_begin_with_card() {
    check_scalars_on_device(Api::Cuda);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn g1_is_multiplied_as_arkworks_does_with_vulkan() {
    for device in devices(Api::Vulkan) {
        for &emitter in Emitter::candidates(&device).unwrap() {
            check_emitter::<G1Projective>(&device, emitter, &[0, 1, 2, 31, 1000], Tables::Never);
        }
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn g1_is_multiplied_in_passes_and_with_tables_with_vulkan() {
    for device in devices(Api::Vulkan) {
        let emitter = Emitter::candidates(&device).unwrap()[0];
        check_emitter::<G1Projective>(&device, emitter, &[1, 300], Tables::Always);
        let (all, scalars) = (points::<G1Projective>(1 << 12), random(1 << 12, 2));
        let options = MsmOptions { emitter: Some(emitter), max_points: Some(1500), ..MsmOptions::default() };
        let bases = MsmBases::<G1Projective>::upload_with(&device, &all, &options).unwrap();
        check("in passes", &bases, &all, &scalars);
        let mut host = device.host_buffer::<Limbs>(1 << 12, Direction::Upload).unwrap();
        host.as_mut_slice().iter_mut().zip(&scalars).for_each(|(to, from)| *to = (*from).into());
        let found = bases.msm_shared(&host.share()).unwrap();
        assert_eq!(found, G1Projective::msm_on_host(&all, &scalars));
    }
}

/// Ranges of points, resident or in host memory, with tables and without.
fn check_ranges<P: MsmGroup>(device: &Device, count: usize, tables: &[Tables]) {
    let (all, scalars) = (points::<P>(count), random(count, 8));
    let in_memory: Vec<Limbs> = scalars.iter().map(|scalar| (*scalar).into()).collect();
    let buffer = device.buffer_from(&in_memory).unwrap();
    let point_bytes = size_of::<P::DevicePoint>() as u64;
    let kernels = MsmKernels::<P>::compile(device).unwrap();
    let limits = [None, Some(count as u64 * point_bytes / 2), Some(0)];
    for (&tables, max_resident_bytes) in tables.iter().flat_map(|tables| limits.map(|limit| (tables, limit)))
    {
        if tables == Tables::Always && max_resident_bytes.is_some() {
            continue;
        }
        for max_points in [None, Some(count / 3)] {
            let options = MsmOptions { tables, max_points, max_resident_bytes, ..MsmOptions::default() };
            let bases = MsmBases::upload_for(&kernels, &all, &options).unwrap();
            if let Some(limit) = max_resident_bytes {
                assert!(
                    bases.resident_bytes() <= limit + limit / 64,
                    "{} of {limit}",
                    bases.resident_bytes()
                );
            }
            let mut workspace = MsmWorkspace::new(device).unwrap();
            for range in [0..count, 0..0, 0..1, 5..count, 0..count - 7, 77..2 * count / 3, count - 1..count] {
                let found = bases.queue_device_range(&mut workspace, range.clone(), &buffer).unwrap();
                let expected = P::msm_on_host(&all[range.clone()], &scalars[range.clone()]);
                let about = format!("{range:?} of {count} with {options:?} on {}", device.id());
                assert_eq!(found.wait().unwrap(), expected, "{about}");
            }
            assert!(bases.queue_device_range(&mut workspace, 0..count + 1, &buffer).is_err());
        }
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn ranges_of_points_that_fit_or_not_are_multiplied_with_vulkan() {
    check_ranges::<G1Projective>(&devices(Api::Vulkan)[0], 5000, &[Tables::Never]);
}

#[test]
#[ignore = "needs a CUDA device"]
fn ranges_of_points_that_fit_or_not_are_multiplied_with_card() {
    let card = &devices(Api::Cuda)[0];
    check_ranges::<G1Projective>(card, 50_000, &[Tables::Never, Tables::Always]);
    check_ranges::<G2Projective>(card, 10_000, &[Tables::Never, Tables::Always]);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn every_width_of_windows_gives_the_same_sum_with_vulkan() {
    let device = &devices(Api::Vulkan)[0];
    let (points, scalars) = (points::<G1Projective>(40), random(40, 9));
    for window_bits in [4, 5, 9, 11, 13] {
        let options = MsmOptions { window_bits: Some(window_bits), ..MsmOptions::default() };
        let bases = MsmBases::<G1Projective>::upload_with(device, &points, &options).unwrap();
        check(&format!("windows of {window_bits} bits"), &bases, &points, &scalars);
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn g2_is_multiplied_as_arkworks_does_with_vulkan() {
    for device in devices(Api::Vulkan) {
        // Compiling the group law of G2 from 32-bit products takes software Vulkan minutes.
        let emitter = Emitter::candidates(&device).unwrap()[0];
        check_emitter::<G2Projective>(&device, emitter, &[0, 1, 2, 31, 200], Tables::Never);
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_pool_with_a_gpu_computes_as_arkworks_does_with_vulkan() {
    let gpu = devices(Api::Vulkan).remove(0);
    check_pool::<G1Projective>(std::slice::from_ref(&gpu), 2000);
    check_pool::<G1Projective>(&[gpu, Device::cpu()], 2000);
}

/// Scalars of a pool and of bases, neither of which stay in memory.
fn check_secrets(gpu: &Device) {
    let (points, scalars) = (points::<G1Projective>(1000), random(1000, 4));
    let pool = Pool::builder().devices([gpu]).keep_history_at(None).build().unwrap();
    let expected = msm_g1(&pool, &points, &scalars).unwrap();
    drop(pool);
    // Workers that have just ended a run drop their memory a moment later.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_not_in_reused_memory(gpu, &scalars);
    let bases = MsmBases::<G1Projective>::upload(gpu, &points).unwrap();
    assert_eq!(bases.msm(&scalars).unwrap(), expected);
    drop(bases);
    assert_not_in_reused_memory(gpu, &scalars);

    // Nor after an error in any operation.
    let (faulty, faults) = Faults::wrap(gpu);
    let bases = MsmBases::<G1Projective>::upload(&faulty, &points).unwrap();
    let operations = || {
        let before = faults.operations();
        assert_eq!(bases.msm(&scalars).unwrap(), expected);
        faults.operations() - before
    };
    let (first, later) = (operations(), operations());
    for operation in (1..=first.max(later)).step_by(3) {
        faults.at(faults.operations() + operation, Fault::Fail(InjectedError::OutOfMemory));
        let failed = bases.msm(&scalars).is_err();
        assert!(failed || operation > later, "operation {operation} of {later}");
        assert_not_in_reused_memory(&faulty, &scalars);
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn no_scalar_stays_in_memory_that_is_used_again_with_vulkan() {
    check_secrets(&devices(Api::Vulkan)[0]);
}

#[test]
#[ignore = "needs a CUDA device"]
fn no_scalar_stays_in_memory_that_is_used_again_with_card() {
    check_secrets(&devices(Api::Cuda)[0]);
}

#[test]
#[ignore = "needs a CUDA device"]
fn g1_is_multiplied_as_arkworks_does_with_card() {
    for device in devices(Api::Cuda) {
        for &emitter in Emitter::candidates(&device).unwrap() {
            for tables in [Tables::Never, Tables::Always] {
                check_emitter::<G1Projective>(
                    &device,
                    emitter,
                    &[0, 1, 2, 31, 1000, 1 << 10, 1 << 14],
                    tables,
                );
            }
        }
        let sizes: Vec<usize> = (10..=20).map(|log| 1 << log).collect();
        check_emitter::<G1Projective>(&device, Emitter::CudaPtx, &sizes, Tables::Auto);
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn g2_is_multiplied_as_arkworks_does_with_card() {
    for device in devices(Api::Cuda) {
        for &emitter in Emitter::candidates(&device).unwrap() {
            for tables in [Tables::Never, Tables::Always] {
                check_emitter::<G2Projective>(&device, emitter, &[0, 1, 2, 31, 1000, 1 << 12], tables);
            }
        }
        check_emitter::<G2Projective>(&device, Emitter::CudaPtx, &[1 << 18], Tables::Auto);
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn every_width_of_windows_gives_the_same_sum_with_card() {
    let device = &devices(Api::Cuda)[0];
    let (points, scalars) = (points::<G1Projective>(4000), random(4000, 9));
    for window_bits in 4..=22 {
        for tables in [Tables::Never, Tables::Always] {
            // One set of buckets for each window would be more than the kernels can scan.
            if window_bits > 19 && tables == Tables::Never {
                continue;
            }
            let options = MsmOptions { window_bits: Some(window_bits), tables, ..MsmOptions::default() };
            let bases = MsmBases::<G1Projective>::upload_with(device, &points, &options).unwrap();
            check(&format!("windows of {window_bits} bits, {tables:?}"), &bases, &points, &scalars);
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn partitions_of_a_card_and_the_processor_compute_as_arkworks_does_with_card() {
    let card = devices(Api::Cuda).remove(0);
    check_pool::<G1Projective>(&[card.clone(), Device::cpu()], 1 << 16);
    check_pool::<G2Projective>(std::slice::from_ref(&card), 1 << 14);
    let mut parts = card.split(&[16, 40, 76]).unwrap();
    parts.push(Device::cpu());
    check_pool::<G1Projective>(&parts, 1 << 18);
}
