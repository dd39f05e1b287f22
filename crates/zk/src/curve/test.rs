//! The group law of every device and emitter against arkworks'.

use ark_bn254::{Fr, G1Affine, G1Projective, G2Affine, G2Projective};
use ark_ec::{AffineRepr, CurveGroup, PrimeGroup};
use ark_ff::Field;
use bytemuck::Pod;
use evener_device::{Api, Device, Kernel};

use super::*;
use crate::field::{
    Fields, Limbs,
    test::{devices, kernel_with},
};

/// What the test kernel computes from p (XYZZ) and q (affine) at an index.
const OPERATIONS: [&str; 6] = [
    "g1_add_affine(p, q)",
    "g1_add(p, g1_from_affine(q))",
    "g1_add(p, g1_double_affine(q))",
    "g1_double(p)",
    "g1_neg(p)",
    "g1_from_affine(g1_to_affine(p))",
];

fn kernel<X: Pod, A: Pod>(emitter: Emitter, group: Group, operation: &str) -> Kernel {
    let fields = if group == Group::G1 { Fields::Fq } else { Fields::Fq2 };
    let arithmetic = crate::field::source(emitter, fields) + &source(emitter, group);
    let body = match emitter.dialect() {
        Dialect::CudaC => {
            r#"extern "C" __global__ void operation(const G1Xyzz *ps, const G1Affine *qs, G1Xyzz *rs) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const G1Xyzz p = ps[i];
    const G1Affine q = qs[i];
    rs[i] = OPERATION;
}"#
        }
        Dialect::Wgsl => {
            "@group(0) @binding(0) var<storage, read> ps: array<G1Xyzz>;
@group(0) @binding(1) var<storage, read> qs: array<G1Affine>;
@group(0) @binding(2) var<storage, read_write> rs: array<G1Xyzz>;
@compute @workgroup_size(32)
fn operation(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let p = ps[i];
    let q = qs[i];
    rs[i] = OPERATION;
}"
        }
    };
    let mut body = body.replace("OPERATION", operation);
    if group == Group::G2 {
        body = body.replace("G1", "G2").replace("g1", "g2");
    }
    let kernel = Kernel::new("operation").reads::<X>().reads::<A>().writes::<X>().workgroup(32);
    kernel_with(kernel, emitter, arithmetic + &body)
}

/// Pairs of points: equal, opposite and infinite ones, then different ones. The first of a pair is also scaled, so that
/// its ZZ is not 1.
fn pairs<P: CurveGroup>() -> Vec<(P, P::Affine)> {
    let at = |number: u64| P::generator() * <P as PrimeGroup>::ScalarField::from(number);
    let zero = P::zero();
    let mut pairs = vec![
        (zero, zero),
        (zero, at(5)),
        (at(5), zero),
        (at(7), at(7)),
        (at(7), -at(7)),
        (at(14), at(7)),
        (-at(14), at(7)),
        (-at(1), at(1)),
    ];
    pairs.extend((1..=24).map(|n| (at(n * n * 1_000_003), at(n ^ 12_345))));
    assert_eq!(pairs.len(), 32);
    pairs.into_iter().map(|(p, q)| (p, q.into_affine())).collect()
}

/// Checks every operation of a group on a device. `scaled` gives the XYZZ coordinates of a point for some z.
fn check<P, X, A>(device: &Device, group: Group, scaled: fn(P, u64) -> X, affine: fn(&P::Affine) -> A)
where
    P: CurveGroup + From<X>,
    X: Pod,
    A: Pod,
{
    let pairs = pairs::<P>();
    let (ps, qs): (Vec<X>, Vec<A>) = (1..).zip(&pairs).map(|(z, (p, q))| (scaled(*p, z), affine(q))).unzip();
    let [ps, rs] = [0; 2].map(|_| device.buffer_from(&ps).unwrap());
    let qs = device.buffer_from(&qs).unwrap();
    for &emitter in Emitter::candidates(device).unwrap() {
        for operation in OPERATIONS {
            let program = device.compile(&kernel::<X, A>(emitter, group, operation)).unwrap();
            let bound = program.bind(&[ps.arg(), qs.arg(), rs.arg()]).unwrap();
            let mut stream = device.stream().unwrap();
            stream.launch(&bound, 1, &()).unwrap();
            let found = stream.download(&rs).unwrap().wait().unwrap();
            for (index, (found, (p, q))) in found.into_iter().zip(&pairs).enumerate() {
                let expected = match operation {
                    "g1_add_affine(p, q)" | "g1_add(p, g1_from_affine(q))" => *p + q,
                    "g1_add(p, g1_double_affine(q))" => *p + q + q,
                    "g1_double(p)" => p.double(),
                    "g1_neg(p)" => -*p,
                    "g1_from_affine(g1_to_affine(p))" => *p,
                    _ => unreachable!("{operation}"),
                };
                assert_eq!(
                    P::from(found).into_affine(),
                    expected.into_affine(),
                    "{emitter:?}, {group:?}, {operation}, pair {index} on {}",
                    device.id()
                );
            }
        }
    }
}

fn scaled_g1(point: G1Projective, z: u64) -> XyzzG1 {
    let z = ark_bn254::Fq::from(z);
    let Some((x, y)) = point.into_affine().xy() else { return XyzzG1::default() };
    let (zz, zzz) = (z.square(), z * z.square());
    let [x, y, zz, zzz] = [x * zz, y * zzz, zz, zzz].map(Limbs::from);
    XyzzG1 { x, y, zz, zzz }
}

fn scaled_g2(point: G2Projective, z: u64) -> XyzzG2 {
    let z = ark_bn254::Fq2::new(z.into(), (z + 1).into());
    let Some((x, y)) = point.into_affine().xy() else { return XyzzG2::default() };
    let (zz, zzz) = (z.square(), z * z.square());
    let [x, y, zz, zzz] = [x * zz, y * zzz, zz, zzz].map(|it| [it.c0.into(), it.c1.into()]);
    XyzzG2 { x, y, zz, zzz }
}

fn check_g1(api: Api) {
    for device in devices(api) {
        check::<G1Projective, XyzzG1, AffineG1>(&device, Group::G1, scaled_g1, |q| q.into());
    }
}

fn check_g2(api: Api) {
    for device in devices(api) {
        check::<G2Projective, XyzzG2, AffineG2>(&device, Group::G2, scaled_g2, |q| q.into());
    }
}

#[test]
fn points_survive_the_way_to_memory_and_back() {
    for number in [0u64, 1, 2, 1_000_003] {
        let (p, q) =
            (G1Projective::generator() * Fr::from(number), G2Projective::generator() * Fr::from(number));
        let (p, q) = (p.into_affine(), q.into_affine());
        assert_eq!(G1Affine::from(AffineG1::from(&p)), p);
        assert_eq!(G2Affine::from(AffineG2::from(&q)), q);
        assert_eq!(G1Projective::from(scaled_g1(p.into(), 77)), p);
        assert_eq!(G2Projective::from(scaled_g2(q.into(), 77)), q);
    }
    assert_eq!(AffineG1::from(&G1Affine::identity()), AffineG1::default());
}

#[test]
#[ignore = "needs a Vulkan device"]
fn points_of_g1_are_added_as_arkworks_does_with_vulkan() {
    check_g1(Api::Vulkan);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn points_of_g2_are_added_as_arkworks_does_with_vulkan() {
    check_g2(Api::Vulkan);
}

#[test]
#[ignore = "needs a CUDA device"]
fn points_of_g1_are_added_as_arkworks_does_with_card() {
    check_g1(Api::Cuda);
}

#[test]
#[ignore = "needs a CUDA device"]
fn points_of_g2_are_added_as_arkworks_does_with_card() {
    check_g2(Api::Cuda);
}
