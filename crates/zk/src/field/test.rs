//! The arithmetic of every device and emitter against arkworks', and values for tests.
#![allow(unsafe_code)]

use std::collections::HashSet;

use ark_bn254::{Fq, Fq2, FqConfig, Fr, FrConfig};
use ark_ff::{AdditiveGroup, BigInt, BigInteger, Field, Fp, MontBackend, MontConfig};
use bytemuck::Pod;
use evener_device::{Api, Device, Direction, Inventory, Kernel};

use super::*;

/// Returns values at which carries and reductions go wrong first: as numbers, and as limbs in Montgomery form.
pub(crate) fn edge_values<C: MontConfig<4>>() -> Vec<Fp<MontBackend<C, 4>, 4>> {
    type F<C> = Fp<MontBackend<C, 4>, 4>;
    let modulus = C::MODULUS;
    let mut below = modulus;
    below.sub_with_borrow(&BigInt::from(1u64));
    let ones = |count: usize| std::array::from_fn(|limb| if limb < count { u64::MAX } else { 0 });
    let limbs = [
        below.0,
        ones(1),
        ones(2),
        ones(3),
        [u64::MAX, u64::MAX, u64::MAX, modulus.0[3] - 1],
        [0, 0, 0, modulus.0[3]],
        [1, 0, 0, 0],
        [u64::from(u32::MAX), 0, 0, 0],
        [0, u64::MAX << 32, 0, 1 << 32],
        [0, modulus.0[1], modulus.0[2], modulus.0[3]],
    ];
    let mut values: Vec<F<C>> = limbs.into_iter().map(|limbs| F::<C>::new_unchecked(BigInt(limbs))).collect();
    values.extend([F::<C>::ZERO, F::<C>::ONE, -F::<C>::ONE, F::<C>::ONE.double(), -F::<C>::ONE.double()]);
    // 2^256 − 1, reduced.
    values.push(F::<C>::from(2u64).pow([256]) - F::<C>::ONE);
    values
}

/// Fails if memory of a device that is used again, on the device or for copies, has one of these elements.
pub(crate) fn assert_not_in_reused_memory(device: &Device, secrets: &[Fr]) {
    let (len, mut stream) = (secrets.len(), device.stream().unwrap());
    let mut reused_memory_has = |elements: HashSet<Limbs>| {
        let buffers: Vec<Buffer<Limbs>> = (0..8).map(|_| device.buffer_uninit(len).unwrap()).collect();
        let hosts = [Direction::Upload, Direction::Download].map(|direction| {
            (0..4).map(|_| device.host_buffer::<Limbs>(len, direction).unwrap()).collect::<Vec<_>>()
        });
        let mut in_hosts = hosts.iter().flatten().flat_map(|host| host.as_slice());
        let mut in_buffers =
            buffers.iter().flat_map(|buffer| stream.download(buffer).unwrap().wait().unwrap());
        in_hosts.any(|it| elements.contains(it)) || in_buffers.any(|it| elements.contains(&it))
    };
    let secrets = secrets.iter().map(|secret| (*secret).into()).collect();
    assert!(!reused_memory_has(secrets), "{}", device.id());
    // Memory is used again, so the test can fail.
    let other = Limbs([7; 4]);
    drop(device.buffer_from(&vec![other; len]).unwrap());
    assert!(reused_memory_has(HashSet::from([other])), "{}", device.id());
}

/// Returns pseudorandom elements.
pub(crate) fn noise<C: MontConfig<4>>(count: usize, seed: u64) -> Vec<Fp<MontBackend<C, 4>, 4>> {
    let step = Fp::<MontBackend<C, 4>, 4>::from(seed + 3).pow([u64::MAX, seed, u64::MAX]);
    let one = Fp::<MontBackend<C, 4>, 4>::ONE;
    std::iter::successors(Some(step), |last| Some(last.square() + step + one)).take(count).collect()
}

/// Returns the devices of an API.
pub(crate) fn devices(api: Api) -> Vec<Device> {
    let inventory = Inventory::discover_all_apis();
    let found: Vec<Device> =
        inventory.devices().iter().filter(|device| device.describe().api == api).cloned().collect();
    assert!(!found.is_empty(), "no {api} device");
    found
}

/// Returns every emitter that a device can run, also those that it would never choose.
fn emitters(device: &Device) -> Vec<Emitter> {
    let candidates = Emitter::candidates(device).unwrap();
    let features = device.capabilities().unwrap().features;
    let speaks = |emitter: &Emitter| emitter.dialect() == candidates[0].dialect();
    Emitter::ALL.into_iter().filter(speaks).filter(|it| features.contains(it.features())).collect()
}

/// Sets a kernel's body in the language of an emitter. The test launches it within its buffers.
pub(crate) fn kernel_with(kernel: Kernel, emitter: Emitter, text: String) -> Kernel {
    match emitter.dialect() {
        // SAFETY: the tests launch one thread per element.
        Dialect::CudaC => unsafe { kernel.cuda(text) },
        // SAFETY: as above; the loops have fixed trip counts.
        Dialect::Wgsl => unsafe { kernel.wgsl_unchecked(emitter.features(), text) },
    }
}

/// Runs a statement over `a`, `b` and `rs[i]` for each pair of elements. `E` is an element in memory.
fn evaluate<E: Pod>(
    device: &Device,
    emitter: Emitter,
    kind: &str,
    fields: Fields,
    statement: &str,
    pairs: &[(E, E)],
) -> Vec<E> {
    let body = match emitter.dialect() {
        Dialect::CudaC => format!(
            "extern \"C\" __global__ void expression(const {kind} *as, const {kind} *bs, {kind} *rs) {{
                const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
                const {kind} a = as[i];
                const {kind} b = bs[i];
                {statement}
            }}"
        ),
        Dialect::Wgsl => format!(
            "@group(0) @binding(0) var<storage, read> as_: array<{kind}>;
            @group(0) @binding(1) var<storage, read> bs: array<{kind}>;
            @group(0) @binding(2) var<storage, read_write> rs: array<{kind}>;
            @compute @workgroup_size(1)
            fn expression(@builtin(global_invocation_id) id: vec3<u32>) {{
                let i = id.x;
                let a = as_[i];
                let b = bs[i];
                {statement}
            }}"
        ),
    };
    let kernel = Kernel::new("expression").reads::<E>().reads::<E>().writes::<E>().workgroup(1);
    let kernel = kernel_with(kernel, emitter, source(emitter, fields) + &body);
    let (a, b): (Vec<E>, Vec<E>) = pairs.iter().copied().unzip();
    let [a, b, r] = [&a, &b, &a].map(|elements| device.buffer_from(elements).unwrap());
    let bound = device.compile(&kernel).unwrap().bind(&[a.arg(), b.arg(), r.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    stream.launch(&bound, pairs.len() as u32, &()).unwrap();
    stream.download(&r).unwrap().wait().unwrap()
}

/// A statement over `a`, `b` and `rs[i]`, and what it computes.
type Operation<F> = (&'static str, fn(F, F) -> F);

/// The operations, as statements and as functions of arkworks' elements. `f_` stands for the prefix.
fn operations<F: Field>() -> [Operation<F>; 10] {
    [
        ("rs[i] = f_add(a, b);", |a, b| a + b),
        ("rs[i] = f_sub(a, b);", |a, b| a - b),
        ("rs[i] = f_mul(a, b);", |a, b| a * b),
        ("rs[i] = f_sqr(a);", |a, _| a.square()),
        ("rs[i] = f_neg(a);", |a, _| -a),
        ("rs[i] = f_double(a);", |a, _| a.double()),
        ("rs[i] = f_inv(a);", |a, _| a.inverse().unwrap_or(F::ZERO)),
        ("rs[i] = f_add(f_zero(), f_one());", |_, _| F::ONE),
        ("if (f_eq(a, b)) { rs[i] = f_one(); } else { rs[i] = f_zero(); }", |a, b| F::from(a == b)),
        ("if (f_is_zero(a)) { rs[i] = f_one(); } else { rs[i] = f_zero(); }", |a, _| F::from(a.is_zero())),
    ]
}

fn check<F: Field, E: Pod + PartialEq + std::fmt::Debug>(
    api: Api,
    (kind, prefix, fields): (&str, &str, Fields),
    values: &[F],
    memory: fn(F) -> E,
) {
    let pairs: Vec<(F, F)> = values.iter().flat_map(|a| values.iter().map(|b| (*a, *b))).collect();
    let in_memory: Vec<(E, E)> = pairs.iter().map(|(a, b)| (memory(*a), memory(*b))).collect();
    for device in devices(api) {
        for emitter in emitters(&device) {
            for (statement, expected) in operations::<F>() {
                let statement = statement.replace("f_", &format!("{prefix}_"));
                let found = evaluate(&device, emitter, kind, fields, &statement, &in_memory);
                for (found, (a, b)) in found.iter().zip(&pairs) {
                    let about = format!("{emitter:?} on {}: {statement} of {a} and {b}", device.id());
                    assert_eq!(*found, memory(expected(*a, *b)), "{about}");
                }
            }
        }
    }
}

fn check_all(api: Api) {
    let values = |edges: Vec<Fq>| edges.into_iter().chain(noise::<FqConfig>(15, 7)).collect::<Vec<_>>();
    let base = values(edge_values::<FqConfig>());
    check(api, ("Fq", "fq", Fields::Fq), &base, Limbs::from);
    let scalars: Vec<Fr> = edge_values::<FrConfig>().into_iter().chain(noise::<FrConfig>(15, 7)).collect();
    check(api, ("Fr", "fr", Fields::Fr), &scalars, Limbs::from);
    let pairs = base.iter().zip(base.iter().rev().skip(3).step_by(2));
    let mut extension: Vec<Fq2> = pairs.map(|(c0, c1)| Fq2::new(*c0, *c1)).collect();
    extension.extend([Fq2::ZERO, Fq2::ONE, Fq2::new(Fq::ZERO, -Fq::ONE)]);
    let memory = |element: Fq2| [Limbs::from(element.c0), Limbs::from(element.c1)];
    check(api, ("Fq2", "fq2", Fields::Fq2), &extension, memory);
}

#[test]
fn elements_survive_the_way_to_memory_and_back() {
    for element in edge_values::<FrConfig>() {
        assert_eq!(Fr::from(Limbs::from(element)), element);
    }
    for element in edge_values::<FqConfig>() {
        assert_eq!(Fq::from(Limbs::from(element)), element);
    }
}

#[test]
fn an_upload_copies_every_element() {
    // More than one piece of staging memory.
    let device = Device::cpu();
    let elements = noise::<FrConfig>(300_000, 1);
    let (mut stream, buffer) = (device.stream().unwrap(), device.buffer(elements.len() + 1).unwrap());
    upload(&device, &mut stream, &elements, &buffer).unwrap();
    let found = stream.download(&buffer).unwrap().wait().unwrap();
    assert!(found[..elements.len()].iter().zip(&elements).all(|(found, it)| Fr::from(*found) == *it));
    assert_eq!(found[elements.len()], Limbs::default());
    assert!(upload(&device, &mut stream, &elements, &buffer.slice(1..9).unwrap()).is_err(), "too long");
}

#[test]
#[ignore = "needs a Vulkan device"]
fn fields_compute_as_arkworks_does_with_vulkan() {
    check_all(Api::Vulkan);
}

#[test]
#[ignore = "needs a CUDA device"]
fn fields_compute_as_arkworks_does_with_card() {
    check_all(Api::Cuda);
}

fn choose(api: Api) {
    for device in devices(api) {
        let candidates = Emitter::candidates(&device).unwrap();
        let emitter = Emitter::for_device(&device).unwrap();
        assert!(candidates.contains(&emitter), "{emitter:?} on {}", device.id());
        assert_eq!(Emitter::for_device(&device).unwrap(), emitter, "the choice is kept");
        // Another one can be forced, and the fastest one is last, for the other tests of this process.
        let others = candidates.iter().filter(|&&other| other != emitter);
        for &forced in others.chain([&emitter]) {
            forced.use_on(&device).unwrap();
            assert_eq!(Emitter::for_device(&device).unwrap(), forced);
        }
        let foreign = Emitter::ALL.into_iter().find(|other| !candidates.contains(other)).unwrap();
        assert!(matches!(foreign.use_on(&device), Err(evener_device::Error::Unsupported { .. })));
        assert_eq!(Emitter::for_device(&device).unwrap(), emitter);
    }
}

#[test]
fn the_processor_has_no_emitter() {
    let cpu = Device::cpu();
    for result in [Emitter::for_device(&cpu).map(drop), Emitter::CudaPlain.use_on(&cpu)] {
        assert!(matches!(result, Err(evener_device::Error::Unsupported { .. })));
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn an_emitter_is_chosen_and_kept_with_vulkan() {
    choose(Api::Vulkan);
}

#[test]
#[ignore = "needs a CUDA device"]
fn an_emitter_is_chosen_and_kept_with_card() {
    choose(Api::Cuda);
}
