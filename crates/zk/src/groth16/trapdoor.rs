//! Keys from known secrets, for measurements and tests.

use ark_bn254::{Bn254, Fr, G1Affine, G1Projective, G2Projective};
use ark_ec::{CurveGroup, PrimeGroup, scalar_mul::BatchMulPreprocessing};
use ark_ff::{FftField, Field, UniformRand, Zero};
use ark_groth16::{ProvingKey as ArkProvingKey, VerifyingKey as ArkVerifyingKey};
use ark_poly::{EvaluationDomain, Radix2EvaluationDomain};
use ark_std::rand::{SeedableRng, rngs::StdRng};
use rayon::prelude::*;

use super::{ProvingKey, Queries, R1cs, Reduction, SparseMatrix, randomness::seeded_generator};
use crate::error::{Error, Result};

/// Points that are computed between two reports of progress.
const PIECE: usize = 1 << 14;

/// The secrets of a set-up. Everyone who knows them can forge proofs for its keys, so they are for measurements and tests.
///
/// [`set_up`](Self::set_up) makes the key from the matrices themselves, on all threads. With the same secrets it is the key
/// of arkworks, bit by bit.
#[derive(Clone, Copy)]
pub struct Trapdoor {
    /// The point at which the polynomials of the circuit are evaluated.
    pub tau: Fr,
    /// The factor of B in the verified equation.
    pub alpha: Fr,
    /// The factor of A in the verified equation.
    pub beta: Fr,
    /// The divisor of the public part.
    pub gamma: Fr,
    /// The divisor of the private part.
    pub delta: Fr,
}

impl std::fmt::Debug for Trapdoor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Trapdoor(…)")
    }
}

impl Trapdoor {
    /// Takes secrets from the operating system.
    pub fn random() -> Result<Trapdoor> {
        Ok(Trapdoor::draw(&mut seeded_generator()?))
    }

    /// Derives secrets from a number. The same number gives the same secrets.
    pub fn from_seed(seed: u64) -> Trapdoor {
        Trapdoor::draw(&mut StdRng::seed_from_u64(seed))
    }

    fn draw(random: &mut StdRng) -> Trapdoor {
        let [tau, alpha, beta, gamma, delta] = [(); 5].map(|()| Fr::rand(random));
        Trapdoor { tau, alpha, beta, gamma, delta }
    }

    /// Makes the key for constraints, with libsnark's reduction. Calls `progress` with the number of points that are
    /// computed, and of all points. Fails if the constraints are too many for BN254, or if a divisor is zero.
    pub fn set_up(&self, r1cs: &R1cs, progress: &dyn Fn(u64, u64)) -> Result<ProvingKey> {
        let (wires, public, constraints) = (r1cs.wires(), r1cs.public(), r1cs.constraints());
        let domain = domain_of(constraints + public + 1)?;
        let lagrange = domain.evaluate_all_lagrange_coefficients(self.tau);
        let at_tau = |matrix: &SparseMatrix| {
            let mut sums = vec![Fr::zero(); wires];
            for (row, factor) in lagrange[..matrix.rows()].iter().enumerate() {
                for (wire, value) in matrix.row(row) {
                    sums[*wire as usize] += *factor * value;
                }
            }
            sums
        };
        let (mut a, (b, c)) =
            rayon::join(|| at_tau(r1cs.a()), || rayon::join(|| at_tau(r1cs.b()), || at_tau(r1cs.c())));
        for (wire, value) in a[..=public].iter_mut().enumerate() {
            *value += lagrange[constraints + wire];
        }
        let combined = |divisor: Fr, wires: std::ops::Range<usize>| -> Result<Vec<Fr>> {
            let factor = inverse(divisor)?;
            let scalar = |wire: usize| factor * (self.beta * a[wire] + self.alpha * b[wire] + c[wire]);
            Ok(wires.into_par_iter().map(scalar).collect())
        };
        let (ic, l) = (combined(self.gamma, 0..public + 1)?, combined(self.delta, public + 1..wires)?);
        let vanishing = domain.evaluate_vanishing_polynomial(self.tau) * inverse(self.delta)?;
        let powers = std::iter::successors(Some(vanishing), |last| Some(self.tau * last));
        let h: Vec<Fr> = powers.take(domain.size() - 1).collect();

        let total = ic.len() + a.len() + 2 * b.len() + l.len() + h.len();
        let g1 = Multiples::<G1Projective>::new(total);
        let g2 = Multiples::<G2Projective>::new(b.len());
        let mut done = Done { done: 0, total: total as u64, progress };
        let point_g1 = |scalar: Fr| (G1Projective::generator() * scalar).into_affine();
        let point_g2 = |scalar: Fr| (G2Projective::generator() * scalar).into_affine();
        let key = ArkProvingKey::<Bn254> {
            vk: ArkVerifyingKey {
                alpha_g1: point_g1(self.alpha),
                beta_g2: point_g2(self.beta),
                gamma_g2: point_g2(self.gamma),
                delta_g2: point_g2(self.delta),
                gamma_abc_g1: g1.of(&ic, &mut done),
            },
            beta_g1: point_g1(self.beta),
            delta_g1: point_g1(self.delta),
            a_query: g1.of(&a, &mut done),
            b_g1_query: g1.of(&b, &mut done),
            b_g2_query: g2.of(&b, &mut done),
            h_query: g1.of(&h, &mut done),
            l_query: g1.of(&l, &mut done),
        };
        ProvingKey::from_ark(key, r1cs)
    }

    /// Makes the key with circom's reduction from one that these secrets made with libsnark's: a `.zkey` holds such a key,
    /// and both have the same verification key. Calls `progress` as [`set_up`](Self::set_up) does.
    pub fn to_circom(&self, key: &ProvingKey, progress: &dyn Fn(u64, u64)) -> Result<ProvingKey> {
        let domain = domain_of(key.domain())?;
        let shift = Fr::get_root_of_unity(2 * key.domain() as u64).ok_or_else(|| too_large(key.domain()))?;
        let coset = domain.get_coset(shift).ok_or_else(|| too_large(key.domain()))?;
        // Z is −2 on the whole coset, since ω^n = −1 there.
        let factor = domain.evaluate_vanishing_polynomial(self.tau) * inverse(-Fr::from(2) * self.delta)?;
        let h: Vec<Fr> = coset
            .evaluate_all_lagrange_coefficients(self.tau)
            .into_par_iter()
            .map(|value| value * factor)
            .collect();
        let mut done = Done { done: 0, total: h.len() as u64, progress };
        let h: Vec<G1Affine> = Multiples::<G1Projective>::new(h.len()).of(&h, &mut done);
        let queries = Queries { h: h.into(), ..key.queries.clone() };
        Ok(ProvingKey { queries, reduction: Reduction::Circom, ..key.clone() })
    }
}

impl ProvingKey {
    /// Returns the key for `ark-groth16`, whose reduction is libsnark's; `None` for a key with circom's.
    pub fn to_ark(&self) -> Option<ArkProvingKey<Bn254>> {
        let Queries { a, b_g1, b_g2, l, h } = &self.queries;
        (self.reduction == Reduction::Libsnark).then(|| ArkProvingKey {
            vk: self.verifying.ark().clone(),
            beta_g1: self.beta_g1,
            delta_g1: self.delta_g1,
            a_query: a.to_vec(),
            b_g1_query: b_g1.to_vec(),
            b_g2_query: b_g2.to_vec(),
            h_query: h.to_vec(),
            l_query: l.to_vec(),
        })
    }
}

fn domain_of(size: usize) -> Result<Radix2EvaluationDomain<Fr>> {
    Radix2EvaluationDomain::new(size).ok_or_else(|| too_large(size))
}

fn too_large(size: usize) -> Error {
    Error::Circuit { detail: format!("a domain of {size} elements is too large for BN254") }
}

fn inverse(divisor: Fr) -> Result<Fr> {
    divisor.inverse().ok_or_else(|| Error::Circuit { detail: "a secret of the set-up is zero".into() })
}

/// The number of points that are computed.
struct Done<'a> {
    done: u64,
    total: u64,
    progress: &'a dyn Fn(u64, u64),
}

/// A table of multiples of a group's generator.
struct Multiples<P: CurveGroup<ScalarField = Fr>>(BatchMulPreprocessing<P>);

impl<P: CurveGroup<ScalarField = Fr>> Multiples<P> {
    /// Makes the table for about this many products.
    fn new(products: usize) -> Self {
        Multiples(BatchMulPreprocessing::new(P::generator(), products))
    }

    /// Returns the generator times each scalar.
    fn of(&self, scalars: &[Fr], done: &mut Done<'_>) -> Vec<P::MulBase> {
        let mut points = Vec::with_capacity(scalars.len());
        for piece in scalars.chunks(PIECE) {
            points.append(&mut self.0.batch_mul(piece));
            done.done += piece.len() as u64;
            (done.progress)(done.done, done.total);
        }
        points
    }
}

#[cfg(test)]
mod test {
    use ark_groth16::Groth16;

    use super::*;
    use crate::groth16::Squares;

    #[test]
    fn the_key_is_that_of_arkworks_for_the_same_secrets() {
        let r1cs = Squares::filling(6).r1cs().unwrap();
        let secrets = Trapdoor::from_seed(7);
        // arkworks draws tau, and nothing else, from this generator.
        let tau = domain_of(1 << 6).unwrap().sample_element_outside_domain(&mut StdRng::seed_from_u64(8));
        let expected = Groth16::<Bn254>::generate_parameters_with_qap(
            &r1cs,
            secrets.alpha,
            secrets.beta,
            secrets.gamma,
            secrets.delta,
            G1Projective::generator(),
            G2Projective::generator(),
            &mut StdRng::seed_from_u64(8),
        );
        let key = Trapdoor { tau, ..secrets }.set_up(&r1cs, &|_, _| ()).unwrap();
        assert_eq!(key.to_ark().unwrap(), expected.unwrap());
    }

    #[test]
    fn progress_counts_every_point_once() {
        let seen = std::sync::Mutex::new(Vec::new());
        let r1cs = Squares::filling(5).r1cs().unwrap();
        let tell = |done, total| seen.lock().unwrap().push((done, total));
        let key = Trapdoor::from_seed(1).set_up(&r1cs, &tell).unwrap();
        Trapdoor::from_seed(1).to_circom(&key, &tell).unwrap();
        let seen = seen.into_inner().unwrap();
        let is_rising = |pair: &[(u64, u64)]| pair[0].1 != pair[1].1 || pair[0].0 < pair[1].0;
        assert!(seen.windows(2).all(is_rising), "{seen:?}");
        assert_eq!(seen.iter().filter(|(done, total)| done == total).count(), 2, "{seen:?}");
    }
}
