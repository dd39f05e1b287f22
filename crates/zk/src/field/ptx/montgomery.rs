//! Field arithmetic as chains of multiply-adds with carry.
//!
//! A product of two 32-bit words fills two positions of the result. Products whose positions are both even, or both odd,
//! lie side by side: one chain of `mad.lo.cc`, `madc.hi.cc` adds a row of them, and its carry runs through without extra
//! additions. So the even and the odd products of a row have accumulators of their own, which are added at the end. The
//! assembler makes one wide multiply-add of each pair.

use super::{Carry, Code, Constant, Operand};
use crate::field::description::{FieldDescription, LIMBS};

/// `a + b`.
pub(super) fn add(field: &FieldDescription) -> Code {
    let mut code = Code::new(2 * LIMBS);
    let (a, b) = (code.input(0), code.input(1));
    let sum = add_words(&mut code, &a, &b);
    finish(code, field, sum)
}

/// `a + a`.
pub(super) fn double(field: &FieldDescription) -> Code {
    let mut code = Code::new(LIMBS);
    let a = code.input(0);
    let sum = add_words(&mut code, &a, &a);
    finish(code, field, sum)
}

/// `a − b`: subtracts, and adds the modulus if the difference is negative.
pub(super) fn subtract(field: &FieldDescription) -> Code {
    let mut code = Code::new(2 * LIMBS);
    let (a, b) = (code.input(0), code.input(1));
    let (difference, borrow) = subtract_words(&mut code, &a, &b);
    // A negative difference plus the modulus carries out of the last word.
    let raised = add_chain(&mut code, &difference, &field.modulus.map(Constant), Carry::InOut);
    code.outputs = difference
        .iter()
        .zip(raised)
        .map(|(positive, negative)| code.select_if_zero(borrow, *positive, negative))
        .collect();
    code
}

/// `a * b / 2^256`, the Montgomery product: each row of products is followed by a row of the reduction.
pub(super) fn multiply(field: &FieldDescription) -> Code {
    let mut code = Code::new(2 * LIMBS);
    let (a, b) = (code.input(0), code.input(1));
    let modulus = field.modulus.map(Constant);
    let mut even = [Constant(0); LIMBS];
    let mut odd = [Constant(0); LIMBS];
    for (row, &word) in b.iter().enumerate() {
        if row == 0 {
            multiply_row(&mut code, &mut odd, &a[1..], word);
            multiply_row(&mut code, &mut even, &a, word);
        } else {
            // The row before has moved everything down by one word: the accumulators have changed places.
            std::mem::swap(&mut even, &mut odd);
            even[0] = code.add(Carry::Out, even[0], odd[1]);
            accumulate_shifted(&mut code, &mut odd, &a[1..], word);
            accumulate_row(&mut code, &mut even, &a, word);
            odd[LIMBS - 1] = code.add(Carry::In, odd[LIMBS - 1], Constant(0));
        }
        let factor = code.multiply_low(even[0], Constant(field.negative_inverse));
        accumulate_row(&mut code, &mut odd, &modulus[1..], factor);
        accumulate_row(&mut code, &mut even, &modulus, factor);
        odd[LIMBS - 1] = code.add(Carry::In, odd[LIMBS - 1], Constant(0));
    }
    // The first word of `even` is zero: the result is `odd` plus the words of `even` above it.
    let result = add_shifted(&mut code, &odd, &even);
    finish(code, field, result)
}

/// `a * a / 2^256`: products of different words are computed once and doubled.
pub(super) fn square(field: &FieldDescription) -> Code {
    let mut code = Code::new(LIMBS);
    let a = code.input(0);
    let mut sums = Accumulators::default();
    for (row, &word) in a.iter().enumerate() {
        for first in [row + 1, row + 2] {
            let products = (first..LIMBS).step_by(2).map(|column| (row + column, word, a[column]));
            sums.add_chain(&mut code, &products.collect::<Vec<_>>());
        }
    }
    let mixed = sums.total(&mut code);
    let mut twice = [Constant(0); 2 * LIMBS];
    for position in 1..2 * LIMBS {
        let carry = if position == 1 { Carry::Out } else { Carry::InOut };
        twice[position] = code.add(carry, mixed[position], mixed[position]);
    }
    let mut wide = twice;
    for (index, &word) in a.iter().enumerate() {
        let (low, high) = (2 * index, 2 * index + 1);
        wide[low] = match index {
            // The mixed products begin at the second word.
            0 => code.multiply_low(word, word),
            _ => code.multiply_add_low(Carry::InOut, word, word, twice[low]),
        };
        let carry = match index {
            0 => Carry::Out,
            _ if high == 2 * LIMBS - 1 => Carry::In,
            _ => Carry::InOut,
        };
        wide[high] = code.multiply_add_high(carry, word, word, twice[high]);
    }
    let result = reduce_wide(&mut code, field, wide);
    finish(code, field, result)
}

/// The product in the quadratic extension with u² = −1, of (a0, a1) and (b0, b1). Three products are computed, and their
/// sums are reduced: two reductions instead of three.
pub(super) fn multiply_in_extension(field: &FieldDescription) -> Code {
    let mut code = Code::new(4 * LIMBS);
    let [a0, a1, b0, b1] = [0, 1, 2, 3].map(|element| code.input(element));
    let first = multiply_wide(&mut code, &a0, &b0);
    let second = multiply_wide(&mut code, &a1, &b1);
    // Sums of two elements are less than 2p, and their product is less than p * 2^256.
    let (a, b) = (add_words(&mut code, &a0, &a1), add_words(&mut code, &b0, &b1));
    let both = multiply_wide(&mut code, &a, &b);
    let (mixed, _) = subtract_wide(&mut code, &both, &first);
    let (mixed, _) = subtract_wide(&mut code, &mixed, &second);
    let (mut real, borrow) = subtract_wide(&mut code, &first, &second);
    // A negative difference is raised by p * 2^256, which does not change the result.
    let raised = add_chain(&mut code, &real[LIMBS..], &field.modulus.map(Constant), Carry::InOut);
    for (word, raised) in real[LIMBS..].iter_mut().zip(raised) {
        *word = code.select_if_zero(borrow, *word, raised);
    }
    let mut outputs = Vec::new();
    for wide in [real, mixed] {
        let result = reduce_wide(&mut code, field, wide);
        code = finish(code, field, result);
        outputs.append(&mut code.outputs);
    }
    code.outputs = outputs;
    code
}

/// `a * b` in full.
fn multiply_wide(code: &mut Code, a: &[Operand; LIMBS], b: &[Operand; LIMBS]) -> [Operand; 2 * LIMBS] {
    let mut sums = Accumulators::default();
    for (row, &word) in b.iter().enumerate() {
        for first in [0, 1] {
            let products = (first..LIMBS).step_by(2).map(|column| (row + column, a[column], word));
            sums.add_chain(code, &products.collect::<Vec<_>>());
        }
    }
    sums.total(code)
}

/// `a − b`, and a word that is zero if the difference is not negative.
fn subtract_wide(
    code: &mut Code,
    a: &[Operand; 2 * LIMBS],
    b: &[Operand; 2 * LIMBS],
) -> ([Operand; 2 * LIMBS], Operand) {
    let difference = std::array::from_fn(|index| {
        let carry = if index == 0 { Carry::Out } else { Carry::InOut };
        code.subtract(carry, a[index], b[index])
    });
    (difference, code.subtract(Carry::In, Constant(0), Constant(0)))
}

/// Returns a number of at most p * 2^256 divided by 2^256 modulo p, less than 2p.
fn reduce_wide(code: &mut Code, field: &FieldDescription, wide: [Operand; 2 * LIMBS]) -> [Operand; LIMBS] {
    let modulus = field.modulus.map(Constant);
    let (low, high) = wide.split_at(LIMBS);
    let mut even = [Constant(0); LIMBS];
    even.copy_from_slice(low);
    let mut odd = [Constant(0); LIMBS];
    for row in 0..LIMBS {
        if row == 0 {
            let factor = code.multiply_low(even[0], Constant(field.negative_inverse));
            multiply_row(code, &mut odd, &modulus[1..], factor);
            accumulate_row(code, &mut even, &modulus, factor);
        } else {
            std::mem::swap(&mut even, &mut odd);
            even[0] = code.add(Carry::Out, even[0], odd[1]);
            // The product leaves the carry flag to the chain that follows.
            let factor = code.multiply_low(even[0], Constant(field.negative_inverse));
            accumulate_shifted(code, &mut odd, &modulus[1..], factor);
            accumulate_row(code, &mut even, &modulus, factor);
        }
        odd[LIMBS - 1] = code.add(Carry::In, odd[LIMBS - 1], Constant(0));
    }
    let reduced = add_shifted(code, &odd, &even);
    add_words(code, &reduced, high)
}

/// `to[j], to[j + 1] = words[j] * factor` for even `j`.
fn multiply_row(code: &mut Code, to: &mut [Operand; LIMBS], words: &[Operand], factor: Operand) {
    for index in (0..LIMBS).step_by(2) {
        to[index] = code.multiply_low(words[index], factor);
        to[index + 1] = code.multiply_high(words[index], factor);
    }
}

/// `to += words[j] * factor` for even `j`, in one chain that leaves its carry in the flag.
fn accumulate_row(code: &mut Code, to: &mut [Operand; LIMBS], words: &[Operand], factor: Operand) {
    for index in (0..LIMBS).step_by(2) {
        let carry = if index == 0 { Carry::Out } else { Carry::InOut };
        to[index] = code.multiply_add_low(carry, words[index], factor, to[index]);
        to[index + 1] = code.multiply_add_high(Carry::InOut, words[index], factor, to[index + 1]);
    }
}

/// `to = (to >> 64) + words[j] * factor + carry flag` for even `j`. The word of `to` before the last one that is moved out
/// has been added elsewhere.
fn accumulate_shifted(code: &mut Code, to: &mut [Operand; LIMBS], words: &[Operand], factor: Operand) {
    for index in (0..LIMBS).step_by(2) {
        let above = |offset: usize| to.get(index + offset).copied().unwrap_or(Constant(0));
        let (low, high) = (above(2), above(3));
        let last = if index == LIMBS - 2 { Carry::In } else { Carry::InOut };
        to[index] = code.multiply_add_low(Carry::InOut, words[index], factor, low);
        to[index + 1] = code.multiply_add_high(last, words[index], factor, high);
    }
}

/// `a + (b >> 32)`, without a carry out.
fn add_shifted(code: &mut Code, a: &[Operand; LIMBS], b: &[Operand; LIMBS]) -> [Operand; LIMBS] {
    let mut above = [Constant(0); LIMBS];
    above[..LIMBS - 1].copy_from_slice(&b[1..]);
    add_words(code, a, &above)
}

/// `a + b`, without a carry out.
fn add_words(code: &mut Code, a: &[Operand], b: &[Operand]) -> [Operand; LIMBS] {
    add_chain(code, a, b, Carry::In)
}

fn add_chain(code: &mut Code, a: &[Operand], b: &[Operand], last: Carry) -> [Operand; LIMBS] {
    std::array::from_fn(|index| {
        let carry = match index {
            0 => Carry::Out,
            _ if index == LIMBS - 1 => last,
            _ => Carry::InOut,
        };
        code.add(carry, a[index], b[index])
    })
}

/// `a − b`, and a word that is zero if the difference is not negative.
fn subtract_words(code: &mut Code, a: &[Operand], b: &[Operand]) -> ([Operand; LIMBS], Operand) {
    let difference = std::array::from_fn(|index| {
        let carry = if index == 0 { Carry::Out } else { Carry::InOut };
        code.subtract(carry, a[index], b[index])
    });
    (difference, code.subtract(Carry::In, Constant(0), Constant(0)))
}

/// Subtracts the modulus from a value less than 2p if it is not less than p, and makes it the function's result.
fn finish(mut code: Code, field: &FieldDescription, value: [Operand; LIMBS]) -> Code {
    let (lowered, borrow) = subtract_words(&mut code, &value, &field.modulus.map(Constant));
    code.outputs =
        value.iter().zip(lowered).map(|(low, high)| code.select_if_zero(borrow, high, *low)).collect();
    code
}

/// Sums of products by position: those that begin at an even position, and those that begin at an odd one. `None` is a
/// word that nothing was added to.
#[derive(Default)]
struct Accumulators {
    even: [Option<Operand>; 2 * LIMBS],
    odd: [Option<Operand>; 2 * LIMBS],
}

impl Accumulators {
    /// Adds products whose positions increase by two, in one chain.
    fn add_chain(&mut self, code: &mut Code, products: &[(usize, Operand, Operand)]) {
        let Some(&(first, ..)) = products.first() else { return };
        let sums = if first % 2 == 0 { &mut self.even } else { &mut self.odd };
        let mut carry = Carry::Out;
        let mut runs = false;
        for (index, &(position, a, b)) in products.iter().enumerate() {
            let is_last = index == products.len() - 1;
            let (low, high) = (sums[position], sums[position + 1]);
            if low.is_none() && high.is_none() && !runs {
                sums[position] = Some(code.multiply_low(a, b));
                sums[position + 1] = Some(code.multiply_high(a, b));
                continue;
            }
            sums[position] = Some(code.multiply_add_low(carry, a, b, low.unwrap_or(Constant(0))));
            // The high half of a product is at most 2^32 − 2: alone it has room for a carry.
            let ends = is_last && high.is_none();
            let carry_high = if ends { Carry::In } else { Carry::InOut };
            sums[position + 1] = Some(code.multiply_add_high(carry_high, a, b, high.unwrap_or(Constant(0))));
            (carry, runs) = (Carry::InOut, true);
            if is_last && !ends {
                let next = sums[position + 2].unwrap_or(Constant(0));
                sums[position + 2] = Some(code.add(Carry::In, next, Constant(0)));
            }
        }
    }

    /// Returns the sum of both.
    fn total(self, code: &mut Code) -> [Operand; 2 * LIMBS] {
        let word = |sums: &[Option<Operand>; 2 * LIMBS], index: usize| sums[index].unwrap_or(Constant(0));
        std::array::from_fn(|index| {
            let carry = match index {
                0 => Carry::Out,
                _ if index == 2 * LIMBS - 1 => Carry::In,
                _ => Carry::InOut,
            };
            code.add(carry, word(&self.even, index), word(&self.odd, index))
        })
    }
}
