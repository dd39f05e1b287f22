//! Transforms on every device and with every emitter against arkworks'.

use ark_bn254::FrConfig;
use ark_poly::{EvaluationDomain, Radix2EvaluationDomain};
use evener_device::{
    Api,
    testing::{Fault, Faults, InjectedError},
};
use evener_schedule::Pool;
use rayon::prelude::*;

use super::*;
use crate::field::test::{assert_not_in_reused_memory, devices, edge_values, noise};

/// The transforms of a device: one for the processor, and one per emitter for others.
fn transforms(device: &Device, log_capacity: u32) -> Vec<(String, Ntt)> {
    if device.describe().api == Api::Cpu {
        return vec![(device.id().to_string(), Ntt::new(device, log_capacity).unwrap())];
    }
    Emitter::candidates(device)
        .unwrap()
        .iter()
        .map(|&emitter| {
            let ntt = Ntt::with_emitter(device, log_capacity, emitter).unwrap();
            (format!("{emitter:?} on {}", device.id()), ntt)
        })
        .collect()
}

fn values(len: usize) -> Vec<Fr> {
    let edges = edge_values::<FrConfig>().into_iter().take(len / 2);
    let mut values: Vec<Fr> = edges.collect();
    values.extend(noise::<FrConfig>(len - values.len(), len as u64));
    values
}

fn run(ntt: &Ntt, from: &[Fr], work: impl FnOnce(&mut Stream, &Buffer<Limbs>)) -> Vec<Fr> {
    let limbs: Vec<Limbs> = from.par_iter().map(|element| Limbs::from(*element)).collect();
    let (mut stream, data) = (ntt.device().stream().unwrap(), ntt.device().buffer_from(&limbs).unwrap());
    work(&mut stream, &data);
    stream.download(&data).unwrap().wait().unwrap().into_par_iter().map(Fr::from).collect()
}

fn reversed(elements: &[Fr]) -> Vec<Fr> {
    let bits = elements.len().ilog2();
    let at = |index: usize| if bits == 0 { 0 } else { index.reverse_bits() >> (usize::BITS - bits) };
    (0..elements.len()).map(|index| elements[at(index)]).collect()
}

/// Checks every transform of 2^`log_len` elements.
fn check(about: &str, ntt: &Ntt, log_len: u32) {
    let len = 1 << log_len;
    let input = values(len);
    let shift = Fr::from(7u64);
    let domain = Radix2EvaluationDomain::<Fr>::new(len).unwrap();
    let coset = domain.get_coset(shift).unwrap();
    let (forward, inverse) = (domain.fft(&input), domain.ifft(&input));
    let (coset_forward, coset_inverse) = (coset.fft(&input), coset.ifft(&input));
    let same = |what: &str, found: Vec<Fr>, expected: &[Fr]| {
        assert!(found == expected, "{about}: {what} of 2^{log_len} elements");
    };
    same("ntt", run(ntt, &input, |stream, data| ntt.ntt(stream, data).unwrap()), &forward);
    same("intt", run(ntt, &input, |stream, data| ntt.intt(stream, data).unwrap()), &inverse);
    let found = run(ntt, &input, |stream, data| ntt.coset_ntt(stream, data, shift).unwrap());
    same("coset_ntt", found, &coset_forward);
    let found = run(ntt, &input, |stream, data| ntt.coset_intt(stream, data, shift).unwrap());
    same("coset_intt", found, &coset_inverse);
    let found = run(ntt, &input, |stream, data| {
        ntt.to_bit_reversed(stream, data, Root::Forward, Scale::None).unwrap();
    });
    same("to_bit_reversed", found, &reversed(&forward));
    let found = run(ntt, &reversed(&input), |stream, data| {
        ntt.from_bit_reversed(stream, data, Root::Forward, Scale::None).unwrap();
    });
    same("from_bit_reversed", found, &forward);
    let found = run(ntt, &reversed(&input), |stream, data| {
        let scale = Scale::AfterBy(reciprocal(len));
        ntt.from_bit_reversed(stream, data, Root::Inverse, scale).unwrap();
    });
    same("the inverse from_bit_reversed", found, &inverse);
    // Values on the domain to values on the coset: what Groth16 does, without a permutation.
    let found = run(ntt, &input, |stream, data| {
        let table = ntt.powers(stream, len, shift, reciprocal(len), Order::BitReversed).unwrap();
        ntt.to_bit_reversed(stream, data, Root::Inverse, Scale::After(&table)).unwrap();
        ntt.from_bit_reversed(stream, data, Root::Forward, Scale::None).unwrap();
    });
    same("the way to the coset", found, &coset.fft(&inverse));
    let found = run(ntt, &input, |stream, data| {
        ntt.to_bit_reversed(stream, data, Root::Forward, Scale::None).unwrap();
        let table = ntt.powers(stream, len, Fr::from(1u64), reciprocal(len), Order::BitReversed).unwrap();
        ntt.from_bit_reversed(stream, data, Root::Inverse, Scale::Before(&table)).unwrap();
    });
    same("the way there and back", found, &input);
}

fn check_all(devices: &[Device], log_lens: impl Iterator<Item = u32> + Clone) {
    let log_capacity = log_lens.clone().max().unwrap();
    for device in devices {
        for (about, ntt) in transforms(device, log_capacity) {
            log_lens.clone().for_each(|log_len| check(&about, &ntt, log_len));
            // A table of exactly the transform's size.
            let (about, ntt) = (format!("{about}, small"), Ntt::new(device, 5).unwrap());
            check(&about, &ntt, 5);
        }
    }
}

#[test]
fn transforms_are_arkworks_on_the_processor() {
    check_all(&[Device::cpu()], 0..=12);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn transforms_are_arkworks_with_vulkan() {
    check_all(&devices(Api::Vulkan), 0..=14);
}

#[test]
#[ignore = "needs a CUDA device"]
fn transforms_are_arkworks_with_card() {
    check_all(&devices(Api::Cuda), 0..=17);
}

#[test]
#[ignore = "needs a CUDA device"]
fn large_transforms_are_arkworks_with_card() {
    for device in devices(Api::Cuda) {
        let ntt = Ntt::new(&device, 24).unwrap();
        for log_len in 18..=22 {
            check(&device.id().to_string(), &ntt, log_len);
        }
        let input = values(1 << 24);
        let found = run(&ntt, &input, |stream, data| {
            ntt.ntt(stream, data).unwrap();
            ntt.intt(stream, data).unwrap();
        });
        assert!(found == input, "2^24 elements on {} and back", device.id());
    }
}

#[test]
fn passes_cover_every_stage_with_even_radices() {
    for log_n in 1..=MAX_LOG_LEN {
        let passes = passes(log_n, false);
        assert_eq!(passes.len() as u32, log_n.div_ceil(MAX_LOG_RADIX));
        assert_eq!(passes.iter().map(|pass| pass.log_radix).sum::<u32>(), log_n);
        assert!(passes.iter().all(|pass| (1..=MAX_LOG_RADIX).contains(&pass.log_radix)), "{passes:?}");
        assert!(passes[..passes.len() - 1].iter().all(|pass| pass.log_radix % 2 == 0), "{passes:?}");
        assert!(log_n == 1 || passes.iter().all(|pass| pass.log_radix > 1), "{passes:?}");
    }
}

#[test]
fn a_length_that_is_no_power_of_two_or_too_long_is_refused() {
    let device = Device::cpu();
    let (ntt, mut stream) = (Ntt::new(&device, 4).unwrap(), device.stream().unwrap());
    for len in [0, 3, 24, 32] {
        let data = device.buffer::<Limbs>(len).unwrap();
        assert!(matches!(ntt.ntt(&mut stream, &data), Err(Error::Unsupported { .. })), "{len}");
    }
    let (data, table) = (device.buffer(16).unwrap(), device.buffer(8).unwrap());
    let refused = ntt.in_natural_order(&mut stream, &data, Root::Forward, Scale::Before(&table));
    assert!(matches!(refused, Err(Error::Unsupported { .. })));
    assert!(matches!(Ntt::new(&device, MAX_LOG_LEN + 1), Err(Error::Unsupported { .. })));
}

fn pool(devices: &[Device]) -> Pool {
    Pool::builder().devices(devices).keep_history_at(None).build().unwrap()
}

/// Polynomials of several sizes, transformed one by one and as a batch.
fn check_pool(pool: &Pool, log_lens: &[u32]) {
    let shift = Fr::from(11u64);
    let domain = |len| Radix2EvaluationDomain::<Fr>::new(len).unwrap();
    let coset = |len| domain(len).get_coset(shift).unwrap();
    let inputs: Vec<Vec<Fr>> = log_lens.iter().map(|log_len| values(1 << log_len)).collect();
    type Reference<'a> = &'a dyn Fn(&[Fr]) -> Vec<Fr>;
    let transforms: [(Transform, Reference<'_>); 4] = [
        (Transform::Ntt, &|input| domain(input.len()).fft(input)),
        (Transform::Intt, &|input| domain(input.len()).ifft(input)),
        (Transform::CosetNtt(shift), &|input| coset(input.len()).fft(input)),
        (Transform::CosetIntt(shift), &|input| coset(input.len()).ifft(input)),
    ];
    for (transform, reference) in transforms {
        let mut batch = inputs.clone();
        transform_batch(pool, transform, &mut batch).unwrap();
        for (input, found) in inputs.iter().zip(&batch) {
            assert!(*found == reference(input), "{transform:?} of {} elements in a batch", input.len());
        }
        for input in &inputs {
            let mut found = input.clone();
            match transform {
                Transform::Ntt => ntt(pool, &mut found),
                Transform::Intt => intt(pool, &mut found),
                Transform::CosetNtt(shift) => coset_ntt(pool, &mut found, shift),
                Transform::CosetIntt(shift) => coset_intt(pool, &mut found, shift),
            }
            .unwrap();
            assert!(found == reference(input), "{transform:?} of {} elements", input.len());
        }
    }
}

#[test]
fn polynomials_over_a_pool_are_transformed_as_arkworks_does_in_order() {
    let log_lens = [0, 1, 7, 3, 10, 10, 2, 9, 12, 5];
    check_pool(&pool(&[Device::cpu()]), &log_lens);
    check_pool(&pool(&Device::cpu().split(&[1, 1]).unwrap()), &log_lens);
    transform_batch::<Vec<Fr>>(&pool(&[Device::cpu()]), Transform::Ntt, &mut []).unwrap();
}

#[test]
fn polynomials_over_a_pool_that_cannot_be_transformed_are_refused_and_unchanged() {
    let pool = pool(&[Device::cpu()]);
    let mut batch = vec![values(8), values(8)[..5].to_vec()];
    let error = transform_batch(&pool, Transform::Ntt, &mut batch).unwrap_err();
    assert!(matches!(error, NttError::Length { index: 1, len: 5 }), "{error}");
    assert_eq!(batch[0], values(8));
    assert!(matches!(ntt(&pool, &mut []), Err(NttError::Length { index: 0, len: 0 })));
    let mut polynomial = values(8);
    for shifted in [coset_ntt, coset_intt] {
        assert!(matches!(shifted(&pool, &mut polynomial, Fr::from(0u64)), Err(NttError::ZeroShift)));
    }
    assert_eq!(polynomial, values(8));
}

/// A GPU that is lost, and one that has too little memory, at some operation.
fn check_pool_with_faults(gpu: &Device) {
    for (operation, error) in [(25, InjectedError::Lost), (40, InjectedError::OutOfMemory)] {
        let (faulty, faults) = Faults::wrap(gpu);
        faults.at(operation, Fault::Fail(error));
        check_pool(&pool(&[faulty]), &[6; 6]);
        assert!(faults.operations() > operation, "the GPU was used");
    }
}

/// Coefficients and values of a polynomial, neither of which stay in memory.
fn check_secrets(gpu: &Device) {
    let coefficients = noise::<FrConfig>(1 << 10, 8);
    let mut transformed = coefficients.clone();
    let own = pool(std::slice::from_ref(gpu));
    ntt(&own, &mut transformed).unwrap();
    drop(own);
    // Workers that have just ended a run drop their memory a moment later.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_not_in_reused_memory(gpu, &coefficients);
    assert_not_in_reused_memory(gpu, &transformed);
    assert_not_in_reused_memory(gpu, &after_first_pass(&coefficients));
}

/// What the first pass leaves in the temporary buffer.
fn after_first_pass(coefficients: &[Fr]) -> Vec<Fr> {
    let radix = 1 << passes(coefficients.len().ilog2(), false)[0].log_radix;
    let columns = coefficients.len() / radix;
    let (of_column, root) =
        (Radix2EvaluationDomain::<Fr>::new(radix).unwrap(), root_of_unity(coefficients.len().ilog2()));
    let column = |first: usize| {
        let column: Vec<Fr> = coefficients.iter().skip(first).step_by(columns).copied().collect();
        let sums = of_column.fft(&column).into_iter().enumerate();
        sums.map(move |(index, sum)| sum * root.pow([(first * index) as u64])).collect::<Vec<_>>()
    };
    (0..columns).flat_map(column).collect()
}

#[test]
#[ignore = "needs a Vulkan device"]
fn no_element_stays_in_memory_that_is_used_again_with_vulkan() {
    check_secrets(&devices(Api::Vulkan)[0]);
}

#[test]
#[ignore = "needs a CUDA device"]
fn no_element_stays_in_memory_that_is_used_again_with_card() {
    check_secrets(&devices(Api::Cuda)[0]);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn polynomials_over_gpus_and_the_processor_are_transformed_as_arkworks_does_with_vulkan() {
    let gpu = devices(Api::Vulkan).remove(0);
    check_pool(&pool(std::slice::from_ref(&gpu)), &[0, 1, 9, 4, 12]);
    check_pool(&pool(&[gpu.clone(), Device::cpu()]), &[10; 24]);
    check_pool_with_faults(&gpu);
}

#[test]
#[ignore = "needs a CUDA device"]
fn polynomials_over_gpus_and_the_processor_are_transformed_as_arkworks_does_with_card() {
    let card = devices(Api::Cuda).remove(0);
    check_pool(&pool(std::slice::from_ref(&card)), &[0, 1, 9, 4, 16, 20]);
    let mut parts = card.split(&[16, 40, 76]).unwrap();
    parts.push(Device::cpu());
    check_pool(&pool(&parts), &[14; 40]);
    check_pool_with_faults(&card);
}
