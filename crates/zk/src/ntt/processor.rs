//! Transforms and tables of powers on the processor.

use ark_bn254::Fr;
use ark_ff::Field;
use ark_poly::{EvaluationDomain, Radix2EvaluationDomain};
use evener_device::{BoxError, Kernel, Launch};
use rayon::prelude::*;

use super::kernels::{Flags, Params, PowerParams};
use crate::field::Limbs;

/// Returns the kernel that computes a whole transform.
pub(super) fn transform() -> Kernel {
    Kernel::new("ntt_transform").writes::<Limbs>().reads::<Limbs>().params::<Params>().rust(run_transform)
}

/// Returns the kernel that computes a table of powers.
pub(super) fn powers() -> Kernel {
    Kernel::new("ntt_powers").reads::<Limbs>().writes::<Limbs>().params::<PowerParams>().rust(run_powers)
}

fn run_transform(launch: &mut Launch<'_>) -> Result<(), BoxError> {
    let params = launch.params::<Params>()?;
    let flags = Flags::from_bits(params.flags);
    let scales: Vec<Fr> = match flags.contains(Flags::SCALE_BEFORE) || flags.contains(Flags::SCALE_AFTER) {
        true => launch.read::<Limbs>(1)?.par_iter().map(|limbs| Fr::from(*limbs)).collect(),
        false => Vec::new(),
    };
    let data = launch.write::<Limbs>(0)?;
    let mut elements: Vec<Fr> = data.par_iter().map(|limbs| Fr::from(*limbs)).collect();
    let scale = |elements: &mut [Fr]| {
        elements.par_iter_mut().zip(&scales).for_each(|(element, scale)| *element *= scale);
    };
    if flags.contains(Flags::SCALE_BEFORE) {
        scale(&mut elements);
    }
    if flags.contains(Flags::TIME) {
        reverse_bits(&mut elements);
    }
    let domain = Radix2EvaluationDomain::<Fr>::new(elements.len()).ok_or("no roots of this order")?;
    domain.fft_in_place(&mut elements);
    if flags.contains(Flags::INVERSE) {
        // The inverse root gives the same values at the negative indices.
        elements[1..].reverse();
    }
    if !flags.contains(Flags::TIME) && !flags.contains(Flags::NATURAL) {
        reverse_bits(&mut elements);
    }
    if flags.contains(Flags::SCALE_AFTER) {
        scale(&mut elements);
    }
    if flags.contains(Flags::FACTOR_AFTER) {
        let factor = Fr::from(params.factor);
        elements.par_iter_mut().for_each(|element| *element *= factor);
    }
    data.par_iter_mut().zip(elements).for_each(|(limbs, element)| *limbs = element.into());
    Ok(())
}

fn run_powers(launch: &mut Launch<'_>) -> Result<(), BoxError> {
    /// Powers that a thread computes one after the other.
    const RUN: usize = 1 << 10;
    let params = launch.params::<PowerParams>()?;
    let [factor, base] = [0, 1].map(|index| launch.read::<Limbs>(0).map(|squares| Fr::from(squares[index])));
    let (factor, base) = (factor?, base?);
    let out = launch.write::<Limbs>(1)?;
    let mut powers = vec![factor; out.len()];
    powers.par_chunks_mut(RUN).enumerate().for_each(|(index, run)| {
        let mut power = factor * base.pow([(index * RUN) as u64]);
        for element in run {
            *element = power;
            power *= base;
        }
    });
    if params.reversed != 0 {
        reverse_bits(&mut powers);
    }
    out.par_iter_mut().zip(powers).for_each(|(limbs, power)| *limbs = power.into());
    Ok(())
}

/// Moves each element to the index whose bits are those of its own in reverse.
fn reverse_bits(elements: &mut [Fr]) {
    let bits = elements.len().ilog2();
    if bits == 0 {
        return;
    }
    for index in 0..elements.len() {
        let other = index.reverse_bits() >> (usize::BITS - bits);
        if index < other {
            elements.swap(index, other);
        }
    }
}
