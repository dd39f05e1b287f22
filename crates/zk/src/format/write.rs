//! Writers of `.zkey` and `.wtns`.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use ark_bn254::{Fq, Fq2, Fr, G1Affine, G2Affine};
use ark_ec::AffineRepr;
use ark_ff::{BigInt, Field, PrimeField};

use super::{wtns, zkey};
use crate::{
    error::{Error, Result},
    groth16::{ProvingKey, Queries, Reduction, SparseMatrix, Witness},
};

/// The hash of the circuit and the number of contributions, at the beginning of a `.zkey`'s record of contributions.
const CONTRIBUTIONS: u32 = 10;
const CONTRIBUTIONS_BYTES: usize = 64 + 4;

impl ProvingKey {
    /// Writes a `.zkey` file, which snarkjs and other provers read. Fails for a key with libsnark's reduction, which the
    /// format cannot express: see [`Trapdoor::to_circom`](crate::groth16::Trapdoor::to_circom).
    ///
    /// The file has no record of contributions, so that `snarkjs zkey verify` refuses it.
    pub fn write_zkey(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if self.reduction() != Reduction::Circom {
            return Err(Error::Format {
                file: path.display().to_string(),
                part: "points H".into(),
                detail: "the key has libsnark's reduction, and a .zkey has circom's".into(),
            });
        }
        write(path, |file| {
            let sections = 10;
            file.header(b"zkey", 1, sections)?;
            file.section(zkey::PROTOCOL, 4)?;
            file.word(zkey::GROTH16)?;
            self.write_header(file)?;
            let Queries { a, b_g1, b_g2, l, h } = &self.queries;
            file.points_g1(zkey::IC, &self.verifying_key().ark().gamma_abc_g1)?;
            self.write_coefficients(file)?;
            file.points_g1(zkey::A, a)?;
            file.points_g1(zkey::B1, b_g1)?;
            file.section(zkey::B2, b_g2.len() * zkey::G2_BYTES)?;
            b_g2.iter().try_for_each(|point| file.g2(point))?;
            file.points_g1(zkey::L, l)?;
            file.points_g1(zkey::H, h)?;
            file.section(CONTRIBUTIONS, CONTRIBUTIONS_BYTES)?;
            file.0.write_all(&[0; CONTRIBUTIONS_BYTES])
        })
    }

    fn write_header(&self, file: &mut Sections) -> std::io::Result<()> {
        let key = self.verifying_key().ark();
        file.section(zkey::HEADER, 2 * 36 + 12 + 3 * zkey::G1_BYTES + 3 * zkey::G2_BYTES)?;
        file.modulus(Fq::MODULUS)?;
        file.modulus(Fr::MODULUS)?;
        for number in [self.wires(), self.public(), self.domain()] {
            file.count(number)?;
        }
        file.g1(&key.alpha_g1)?;
        file.g1(&self.beta_g1)?;
        file.g2(&key.beta_g2)?;
        file.g2(&key.gamma_g2)?;
        file.g1(&self.delta_g1)?;
        file.g2(&key.delta_g2)
    }

    fn write_coefficients(&self, file: &mut Sections) -> std::io::Result<()> {
        let count = self.a.len() + self.b.len();
        file.section(zkey::COEFFICIENTS, 4 + count * zkey::COEFFICIENT_BYTES)?;
        file.count(count)?;
        // The limbs of v·R are v·R², as `numbers::coefficient` reads it.
        let radix = Fr::from(2).pow([256]);
        let mut write = |number: u32, matrix: &SparseMatrix| {
            (0..matrix.rows()).try_for_each(|row| {
                matrix.row(row).iter().try_for_each(|&(wire, value)| {
                    file.word(number)?;
                    file.word(row as u32)?;
                    file.word(wire)?;
                    file.limbs(if value == Fr::ONE { radix.0 } else { (value * radix).0 })
                })
            })
        };
        write(0, &self.a)?;
        write(1, &self.b)
    }
}

impl Witness {
    /// Writes a `.wtns` file, which snarkjs and other provers read. It holds all values of the witness, the secret ones too.
    pub fn write_wtns(&self, path: impl AsRef<Path>) -> Result<()> {
        write(path.as_ref(), |file| {
            file.header(b"wtns", 2, 2)?;
            file.section(wtns::HEADER, 36 + 4)?;
            file.modulus(Fr::MODULUS)?;
            file.count(self.values().len())?;
            file.section(wtns::VALUES, self.values().len() * 32)?;
            self.values().iter().try_for_each(|value| file.limbs(value.into_bigint()))
        })
    }
}

/// Creates a file and writes it.
fn write(path: &Path, contents: impl FnOnce(&mut Sections) -> std::io::Result<()>) -> Result<()> {
    let fail = |error| Error::io(path, "cannot be written", error);
    let mut file = Sections(BufWriter::with_capacity(1 << 20, File::create(path).map_err(fail)?));
    contents(&mut file).and_then(|()| file.0.flush()).map_err(fail)
}

/// A file of numbered sections.
struct Sections(BufWriter<File>);

impl Sections {
    fn header(&mut self, magic: &[u8; 4], version: u32, sections: u32) -> std::io::Result<()> {
        self.0.write_all(magic)?;
        self.word(version)?;
        self.word(sections)
    }

    /// Begins a section of this many bytes.
    fn section(&mut self, number: u32, bytes: usize) -> std::io::Result<()> {
        self.word(number)?;
        self.0.write_all(&(bytes as u64).to_le_bytes())
    }

    fn word(&mut self, word: u32) -> std::io::Result<()> {
        self.0.write_all(&word.to_le_bytes())
    }

    /// Writes a number of elements. Fails if the format's 32 bits are too few for it.
    fn count(&mut self, count: usize) -> std::io::Result<()> {
        match u32::try_from(count) {
            Ok(count) => self.word(count),
            Err(_) => Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                format!("{count} elements, and the format has room for {} at most", u32::MAX),
            )),
        }
    }

    fn limbs(&mut self, number: BigInt<4>) -> std::io::Result<()> {
        number.0.iter().try_for_each(|limb| self.0.write_all(&limb.to_le_bytes()))
    }

    fn modulus(&mut self, modulus: BigInt<4>) -> std::io::Result<()> {
        self.word(32)?;
        self.limbs(modulus)
    }

    /// Writes a point in Montgomery form; zeros are the point at infinity.
    fn g1(&mut self, point: &G1Affine) -> std::io::Result<()> {
        let (x, y) = point.xy().unwrap_or_default();
        self.limbs(x.0)?;
        self.limbs(y.0)
    }

    fn g2(&mut self, point: &G2Affine) -> std::io::Result<()> {
        let (Fq2 { c0, c1, .. }, Fq2 { c0: y0, c1: y1, .. }) = point.xy().unwrap_or_default();
        [c0, c1, y0, y1].into_iter().try_for_each(|part| self.limbs(part.0))
    }

    fn points_g1(&mut self, number: u32, points: &[G1Affine]) -> std::io::Result<()> {
        self.section(number, points.len() * zkey::G1_BYTES)?;
        points.iter().try_for_each(|point| self.g1(point))
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::groth16::{Squares, Trapdoor};

    #[test]
    fn a_number_of_elements_that_the_format_cannot_express_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counts");
        write(&path, |file| file.count(u32::MAX as usize)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0xff; 4]);
        let error = write(&path, |file| file.count(1 << 32)).unwrap_err();
        assert!(error.to_string().contains("4294967296 elements"), "{error}");
        assert!(std::fs::read(&path).unwrap().is_empty(), "no part of a number is written");
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (zkey, wtns) = (folder.path().join("a.zkey"), folder.path().join("a.wtns"));
        let circuit = Squares::filling(5);
        let secrets = Trapdoor::from_seed(3);
        let key = secrets.set_up(&circuit.r1cs().unwrap(), &|_, _| ()).unwrap();
        assert!(key.write_zkey(&zkey).is_err(), "a key with libsnark's reduction is no .zkey");
        let key = secrets.to_circom(&key, &|_, _| ()).unwrap();
        key.write_zkey(&zkey).unwrap();
        let read = ProvingKey::read(&zkey).unwrap();
        assert_eq!(read.verifying_key(), key.verifying_key());
        let sizes = |key: &ProvingKey| (key.wires(), key.public(), key.constraints(), key.domain());
        assert_eq!(sizes(&read), sizes(&key));
        assert_eq!((&read.a, read.queries.h.to_vec()), (&key.a, key.queries.h.to_vec()));
        assert_eq!(read.queries.b_g2.to_vec(), key.queries.b_g2.to_vec());

        let witness = circuit.witness(Fr::from(9)).unwrap();
        witness.write_wtns(&wtns).unwrap();
        assert_eq!(Witness::read(&wtns).unwrap().values(), witness.values());
    }
}
