//! `.zkey`: a Groth16 proving key of snarkjs.

use std::{
    io::{Cursor as Bytes, Read, Seek},
    path::Path,
    sync::Arc,
};

use ark_bn254::{Bn254, Fq, Fr, G1Affine, G2Affine};
use ark_ec::AffineRepr;
use ark_groth16::VerifyingKey as ArkVerifyingKey;
use rayon::prelude::*;

use super::{
    numbers::{Cursor, coefficient, g1, g2},
    open,
    sections::{FileKind, Sections},
};
use crate::{
    error::{Error, Result},
    groth16::{ProvingKey, Queries, Reduction, SparseMatrix},
};

static ZKEY: FileKind = FileKind {
    magic: b"zkey",
    versions: &[1],
    sections: &[
        (PROTOCOL, "protocol"),
        (HEADER, "Groth16 header"),
        (IC, "points IC"),
        (COEFFICIENTS, "coefficients"),
        (A, "points A"),
        (B1, "points B1"),
        (B2, "points B2"),
        (L, "points C"),
        (H, "points H"),
    ],
};
pub(super) const PROTOCOL: u32 = 1;
pub(super) const HEADER: u32 = 2;
pub(super) const IC: u32 = 3;
pub(super) const COEFFICIENTS: u32 = 4;
pub(super) const A: u32 = 5;
pub(super) const B1: u32 = 6;
pub(super) const B2: u32 = 7;
pub(super) const L: u32 = 8;
pub(super) const H: u32 = 9;

pub(super) const GROTH16: u32 = 1;
pub(super) const G1_BYTES: usize = 64;
pub(super) const G2_BYTES: usize = 128;
/// The bytes of a coefficient: matrix, constraint, signal and value.
pub(super) const COEFFICIENT_BYTES: usize = 12 + 32;
/// The largest domain of BN254 that has an odd coset.
const MAX_DOMAIN: u32 = 1 << 27;

impl ProvingKey {
    /// Reads a `.zkey` file of snarkjs. Fails if the key has no phase-2 contribution: see
    /// [`read_unsafe`](Self::read_unsafe).
    pub fn read(path: impl AsRef<Path>) -> Result<ProvingKey> {
        let path = path.as_ref();
        read(&path.display().to_string(), open(path)?)?.with_contribution(&path.display().to_string())
    }

    /// Reads a `.zkey` file of snarkjs, even without a phase-2 contribution, for tests and trials. Whoever made the first
    /// phase's file can forge proofs for such a key, and so can anyone else.
    pub fn read_unsafe(path: impl AsRef<Path>) -> Result<ProvingKey> {
        let path = path.as_ref();
        read(&path.display().to_string(), open(path)?)
    }

    /// Reads the contents of a `.zkey` file. Errors call it `name`. Fails if the key has no phase-2 contribution.
    pub fn from_zkey(name: &str, bytes: &[u8]) -> Result<ProvingKey> {
        read(name, Bytes::new(bytes))?.with_contribution(name)
    }

    fn with_contribution(self, name: &str) -> Result<ProvingKey> {
        match self.has_contribution() {
            true => Ok(self),
            false => Err(Error::UnsafeKey { file: name.to_owned() }),
        }
    }
}

/// The sizes and points of a key's header.
struct Header {
    wires: u32,
    public: u32,
    domain: u32,
    alpha_g1: G1Affine,
    beta_g1: G1Affine,
    beta_g2: G2Affine,
    gamma_g2: G2Affine,
    delta_g1: G1Affine,
    delta_g2: G2Affine,
}

fn read(name: &str, reader: impl Read + Seek) -> Result<ProvingKey> {
    let mut sections = Sections::open(name, reader, &ZKEY)?;
    let protocol = sections.read(PROTOCOL)?;
    match Cursor::new(&protocol).u32() {
        Some(GROTH16) if protocol.len() == 4 => {}
        found => {
            let known = match found {
                Some(2) => " (PLONK)",
                Some(10) => " (FFLONK)",
                _ => "",
            };
            let found = found.map_or("nothing".into(), |id| format!("protocol {id}{known}"));
            let detail = format!("{found} in {} bytes, and Groth16 is protocol 1 in 4 bytes", protocol.len());
            return Err(sections.error(PROTOCOL, detail));
        }
    }
    let header = read_header(&mut sections)?;
    let Header { wires, public, domain, .. } = header;
    // All lengths are checked before anything large is read.
    for (number, points, bytes) in [
        (IC, public + 1, G1_BYTES),
        (A, wires, G1_BYTES),
        (B1, wires, G1_BYTES),
        (B2, wires, G2_BYTES),
        (L, wires - public - 1, G1_BYTES),
        (H, domain, G1_BYTES),
    ] {
        sections.expect_len(number, u64::from(points), bytes as u64)?;
    }
    let (a, b, rows) = read_coefficients(&mut sections, &header)?;
    // Rows of public inputs follow the constraints: `1 · w_i` in A and nothing in B.
    let constraints = rows.saturating_sub(public as usize + 1);
    let ic = points(&mut sections, IC, G1_BYTES, g1)?;
    let queries = Queries {
        a: points(&mut sections, A, G1_BYTES, g1)?.into(),
        b_g1: points(&mut sections, B1, G1_BYTES, g1)?.into(),
        b_g2: points(&mut sections, B2, G2_BYTES, g2)?.into(),
        l: points(&mut sections, L, G1_BYTES, g1)?.into(),
        h: points(&mut sections, H, G1_BYTES, g1)?.into(),
    };
    let Header { alpha_g1, beta_g1, beta_g2, gamma_g2, delta_g1, delta_g2, .. } = header;
    let verifying: ArkVerifyingKey<Bn254> =
        ArkVerifyingKey { alpha_g1, beta_g2, gamma_g2, delta_g2, gamma_abc_g1: ic };
    Ok(ProvingKey {
        verifying: Arc::new(verifying.into()),
        beta_g1,
        delta_g1,
        queries,
        a,
        b,
        c: None,
        constraints,
        domain: domain as usize,
        reduction: Reduction::Circom,
    })
}

fn read_header<R: Read + Seek>(sections: &mut Sections<R>) -> Result<Header> {
    let bytes = sections.read(HEADER)?;
    let expected = 2 * 36 + 12 + 3 * G1_BYTES + 3 * G2_BYTES;
    let mut cursor = Cursor::new(&bytes);
    sections.expect_field::<Fq>(HEADER, &mut cursor, "base field")?;
    sections.expect_field::<Fr>(HEADER, &mut cursor, "scalar field")?;
    if bytes.len() != expected {
        let detail = format!("has {} bytes, and {expected} are expected", bytes.len());
        return Err(sections.error(HEADER, detail));
    }
    let short = || sections.error(HEADER, "is too short");
    let mut word = || cursor.u32().ok_or_else(short);
    let (wires, public, domain) = (word()?, word()?, word()?);
    if !domain.is_power_of_two() || domain > MAX_DOMAIN {
        let detail =
            format!("a domain of {domain} elements: it must be a power of two of at most {MAX_DOMAIN}");
        return Err(sections.error(HEADER, detail));
    }
    if public >= wires || public >= domain {
        let detail =
            format!("{public} public signals, with {wires} signals in all and a domain of {domain} elements");
        return Err(sections.error(HEADER, detail));
    }
    let at = |name: &str, detail: &str| sections.error(HEADER, format!("{name} {detail}"));
    let next_g1 = |cursor: &mut Cursor<'_>, name: &str| {
        g1(cursor.take(G1_BYTES).ok_or_else(short)?).map_err(|detail| at(name, detail))
    };
    let next_g2 = |cursor: &mut Cursor<'_>, name: &str| {
        let point = g2(cursor.take(G2_BYTES).ok_or_else(short)?).map_err(|detail| at(name, detail))?;
        match point.is_in_correct_subgroup_assuming_on_curve() {
            true => Ok(point),
            false => Err(at(name, "is not in the subgroup of prime order")),
        }
    };
    let header = Header {
        wires,
        public,
        domain,
        alpha_g1: next_g1(&mut cursor, "alpha 1")?,
        beta_g1: next_g1(&mut cursor, "beta 1")?,
        beta_g2: next_g2(&mut cursor, "beta 2")?,
        gamma_g2: next_g2(&mut cursor, "gamma 2")?,
        delta_g1: next_g1(&mut cursor, "delta 1")?,
        delta_g2: next_g2(&mut cursor, "delta 2")?,
    };
    let infinite = [
        ("alpha 1", header.alpha_g1.is_zero()),
        ("beta 1", header.beta_g1.is_zero()),
        ("beta 2", header.beta_g2.is_zero()),
        ("gamma 2", header.gamma_g2.is_zero()),
        ("delta 1", header.delta_g1.is_zero()),
        ("delta 2", header.delta_g2.is_zero()),
    ];
    match infinite.iter().find(|(_, is_infinite)| *is_infinite) {
        Some((name, _)) => Err(at(name, "is the point at infinity")),
        None => Ok(header),
    }
}

/// Reads the points of a section, whose length was checked.
fn points<R: Read + Seek, P: Send>(
    sections: &mut Sections<R>,
    number: u32,
    bytes_each: usize,
    point: fn(&[u8]) -> Result<P, &'static str>,
) -> Result<Vec<P>> {
    let bytes = sections.read(number)?;
    let points: Result<Vec<P>, (usize, &str)> = bytes
        .par_chunks(bytes_each)
        .enumerate()
        .map(|(index, bytes)| point(bytes).map_err(|detail| (index, detail)))
        .collect();
    points.map_err(|(index, detail)| sections.error(number, format!("point {index} {detail}")))
}

/// Reads the matrices A and B, and the number of rows that are not empty.
fn read_coefficients<R: Read + Seek>(
    sections: &mut Sections<R>,
    header: &Header,
) -> Result<(SparseMatrix, SparseMatrix, usize)> {
    let bytes = sections.read(COEFFICIENTS)?;
    let mut cursor = Cursor::new(&bytes);
    let Some(count) = cursor.u32() else {
        return Err(sections.error(COEFFICIENTS, "is too short"));
    };
    let expected = u64::from(count) * COEFFICIENT_BYTES as u64 + 4;
    if bytes.len() as u64 != expected {
        let detail = format!("has {} bytes, and {count} coefficients take {expected}", bytes.len());
        return Err(sections.error(COEFFICIENTS, detail));
    }
    let &Header { wires, domain, .. } = header;
    let entry = |(index, bytes): (usize, &[u8])| {
        let mut cursor = Cursor::new(bytes);
        let mut word = || cursor.u32().unwrap_or(u32::MAX);
        let (matrix, row, wire) = (word(), word(), word());
        let detail = match coefficient(&bytes[12..]) {
            Err(detail) => detail.to_owned(),
            Ok(_) if matrix > 1 => format!("is of matrix {matrix}, and there are A (0) and B (1)"),
            Ok(_) if row >= domain => format!("is of constraint {row}, and the domain has {domain} elements"),
            Ok(_) if wire >= wires => format!("is of signal {wire}, and there are {wires}"),
            Ok(value) => return Ok((matrix, row, wire, value)),
        };
        Err((index, detail))
    };
    let entries: Result<Vec<_>, (usize, String)> =
        bytes[4..].par_chunks(COEFFICIENT_BYTES).enumerate().map(entry).collect();
    let entries = entries
        .map_err(|(index, detail)| sections.error(COEFFICIENTS, format!("coefficient {index} {detail}")))?;
    let rows = entries.iter().map(|entry| entry.1 as usize + 1).max().unwrap_or(0);
    let matrix = |wanted: u32| {
        let own = entries.iter().filter(move |entry| entry.0 == wanted);
        SparseMatrix::from_entries(rows, wires as usize, own.map(|&(_, row, wire, value)| (row, wire, value)))
    };
    Ok((matrix(0), matrix(1), rows))
}
