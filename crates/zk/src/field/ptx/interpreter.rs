//! Runs the instructions in Rust and compares the results with arkworks', without a card.

use ark_bn254::{Fq, Fq2, FqConfig, Fr, FrConfig};
use ark_ff::{AdditiveGroup, BigInt, Field, Fp, MontBackend, MontConfig};
use proptest::prelude::*;

use super::{super::description::join, *};
use crate::field::{
    description::split,
    test::{edge_values, noise},
};

impl Code {
    fn run(&self, inputs: &[u32]) -> Vec<u32> {
        assert_eq!(inputs.len(), self.inputs);
        let mut registers = inputs.to_vec();
        let mut flag: Option<bool> = None;
        for Instruction { operation, carry, operands } in &self.instructions {
            let [a, b, c] = operands.map(|operand| {
                u64::from(match operand {
                    Operand::Register(register) => registers[register],
                    Operand::Constant(value) => value,
                })
            });
            let carry_in = match carry {
                Carry::InOut | Carry::In => u64::from(flag.expect("a chain begins with a write of the flag")),
                Carry::None | Carry::Out => 0,
            };
            let (word, carry_out) = match operation {
                Operation::Subtract => {
                    let wide = a.wrapping_sub(b).wrapping_sub(carry_in);
                    (wide as u32, wide >> 32 != 0)
                }
                Operation::SelectIfZero => ((if c == 0 { a } else { b }) as u32, false),
                _ => {
                    let wide = carry_in
                        + match operation {
                            Operation::Add => a + b,
                            Operation::MultiplyLow => (a * b) & 0xffff_ffff,
                            Operation::MultiplyHigh => (a * b) >> 32,
                            Operation::MultiplyAddLow => ((a * b) & 0xffff_ffff) + c,
                            _ => ((a * b) >> 32) + c,
                        };
                    (wide as u32, wide >> 32 != 0)
                }
            };
            match carry {
                Carry::Out | Carry::InOut => flag = Some(carry_out),
                // A subtraction that ends a chain turns the borrow into a mask.
                Carry::In if *operation == Operation::Subtract => flag = None,
                Carry::In => {
                    assert!(!carry_out, "a carry is lost");
                    flag = None;
                }
                Carry::None => {}
            }
            registers.push(word);
        }
        let word = |operand: &Operand| match *operand {
            Operand::Register(register) => registers[register],
            Operand::Constant(value) => value,
        };
        self.outputs.iter().map(word).collect()
    }

    /// Runs a function of two elements of the extension.
    fn run_on_extension(&self, a: Fq2, b: Fq2) -> Fq2 {
        let words: Vec<u32> = [a.c0, a.c1, b.c0, b.c1].iter().flat_map(|it| split(it.0.0)).collect();
        let found: [u32; 2 * LIMBS] = self.run(&words).try_into().unwrap();
        let [c0, c1] = [0, LIMBS].map(|at| {
            let limbs: [u32; LIMBS] = found[at..at + LIMBS].try_into().unwrap();
            Fq::new_unchecked(BigInt(join(limbs)))
        });
        Fq2::new(c0, c1)
    }

    fn run_on<C: MontConfig<4>>(&self, inputs: &[Fp<MontBackend<C, 4>, 4>]) -> Fp<MontBackend<C, 4>, 4> {
        let words: Vec<u32> = inputs.iter().flat_map(|input| split(input.0.0)).collect();
        let limbs: [u32; LIMBS] = self.run(&words).try_into().unwrap();
        Fp::new_unchecked(BigInt(join(limbs)))
    }
}

fn check<C: MontConfig<4>>(
    field: &FieldDescription,
    a: Fp<MontBackend<C, 4>, 4>,
    b: Fp<MontBackend<C, 4>, 4>,
) {
    for (name, arguments, code) in functions(field) {
        let expected = match name {
            "add" => a + b,
            "sub" => a - b,
            "double" => a.double(),
            "mul" => a * b,
            "sqr" => a.square(),
            _ => unreachable!("{name}"),
        };
        let found = code.run_on(&[a, b][..arguments.len()]);
        assert_eq!(found.0, expected.0, "{}_{name}({a}, {b})", field.prefix);
    }
}

#[test]
fn the_instructions_compute_what_arkworks_computes_for_edge_values() {
    fn every_pair<C: MontConfig<4>>(field: &FieldDescription) {
        let values = edge_values::<C>();
        for a in &values {
            values.iter().for_each(|b| check(field, *a, *b));
        }
    }
    every_pair::<FqConfig>(&FieldDescription::fq());
    every_pair::<FrConfig>(&FieldDescription::fr());
}

#[test]
fn products_in_the_extension_are_arkworks() {
    let code = montgomery::multiply_in_extension(&FieldDescription::fq());
    let edges = edge_values::<FqConfig>();
    let mut values: Vec<Fq2> =
        edges.iter().flat_map(|c0| edges.iter().step_by(3).map(|c1| Fq2::new(*c0, *c1))).collect();
    values.extend(noise::<FqConfig>(60, 5).chunks(2).map(|pair| Fq2::new(pair[0], pair[1])));
    for a in &values {
        for b in &values {
            assert_eq!(code.run_on_extension(*a, *b), a * b, "{a} * {b}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_instructions_compute_what_arkworks_computes_for_random_values(
        a in any::<[u64; 4]>(), b in any::<[u64; 4]>(),
    ) {
        use ark_ff::PrimeField;
        let bytes = |limbs: [u64; 4]| limbs.map(u64::to_le_bytes).concat();
        check(
            &FieldDescription::fq(),
            Fq::from_le_bytes_mod_order(&bytes(a)),
            Fq::from_le_bytes_mod_order(&bytes(b)),
        );
        check(
            &FieldDescription::fr(),
            Fr::from_le_bytes_mod_order(&bytes(a)),
            Fr::from_le_bytes_mod_order(&bytes(b)),
        );
    }
}

#[test]
fn a_product_needs_as_few_wide_multiplications_as_there_are() {
    let wide = |code: Code| {
        let is_high =
            |it: &&Instruction| matches!(it.operation, Operation::MultiplyHigh | Operation::MultiplyAddHigh);
        code.instructions.iter().filter(is_high).count()
    };
    let field = FieldDescription::fq();
    assert_eq!(wide(montgomery::multiply(&field)), 2 * LIMBS * LIMBS);
    assert_eq!(wide(montgomery::multiply_in_extension(&field)), 5 * LIMBS * LIMBS);
    assert_eq!(wide(montgomery::square(&field)), LIMBS * (LIMBS + 1) / 2 + LIMBS * LIMBS);
}
