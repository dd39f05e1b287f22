//! `.r1cs`: the constraints of a circuit.

use std::{
    io::{Cursor as Bytes, Read, Seek},
    path::Path,
};

use ark_bn254::Fr;

use super::{
    numbers::{Cursor, scalar},
    open,
    sections::{FileKind, Sections},
};
use crate::{
    error::{Error, Result},
    groth16::{R1cs, SparseMatrix},
};

static R1CS: FileKind = FileKind {
    magic: b"r1cs",
    versions: &[1],
    sections: &[(HEADER, "header"), (CONSTRAINTS, "constraints"), (WIRE_LABELS, "wire labels")],
};
const HEADER: u32 = 1;
const CONSTRAINTS: u32 = 2;
/// The number of each wire's label. Only the length of this section is used.
const WIRE_LABELS: u32 = 3;
/// Gates that are no constraints of rank one; only PLONK has them.
const CUSTOM_GATES: [u32; 2] = [4, 5];

/// The bytes of a term: the wire and the coefficient.
const TERM: usize = 4 + 32;
/// The bytes of a wire's label.
const LABEL: u64 = 8;

impl R1cs {
    /// Reads an `.r1cs` file of circom.
    pub fn read(path: impl AsRef<Path>) -> Result<R1cs> {
        let path = path.as_ref();
        read(&path.display().to_string(), open(path)?)
    }

    /// Reads the contents of an `.r1cs` file. Errors call it `name`.
    pub fn from_r1cs(name: &str, bytes: &[u8]) -> Result<R1cs> {
        read(name, Bytes::new(bytes))
    }
}

fn read(name: &str, reader: impl Read + Seek) -> Result<R1cs> {
    let mut sections = Sections::open(name, reader, &R1CS)?;
    let header = sections.read(HEADER)?;
    let mut cursor = Cursor::new(&header);
    sections.expect_field::<Fr>(HEADER, &mut cursor, "field")?;
    let mut word = || cursor.u32().map(|word| word as usize);
    let counts = (word(), word(), word(), word());
    let (Some(wires), Some(outputs), Some(inputs), Some(private)) = counts else {
        return Err(sections.error(HEADER, "is too short"));
    };
    let (Some(_labels), Some(constraints)) = (cursor.u64(), cursor.u32()) else {
        return Err(sections.error(HEADER, "is too short"));
    };
    if cursor.rest() > 0 {
        return Err(sections.error(HEADER, format!("{} bytes follow its last field", cursor.rest())));
    }
    let constraints = constraints as usize;
    let public = outputs.saturating_add(inputs);
    if public.saturating_add(private).saturating_add(1) > wires {
        let detail = format!(
            "{outputs} outputs, {inputs} public and {private} private inputs and the constant 1 are more than {wires} wires"
        );
        return Err(sections.error(HEADER, detail));
    }
    // So a short file cannot announce a circuit of so many wires that a set-up would use up the memory.
    sections.expect_len(WIRE_LABELS, wires as u64, LABEL)?;
    if CUSTOM_GATES.iter().any(|&number| sections.len(number) > 4) {
        return Err(
            sections.error(CUSTOM_GATES[0], "the circuit has custom gates, which Groth16 cannot prove")
        );
    }

    let bytes = sections.read(CONSTRAINTS)?;
    // Each constraint has at least its three lengths.
    if bytes.len() / 12 < constraints {
        let detail = format!("has {} bytes, too few for {constraints} constraints", bytes.len());
        return Err(sections.error(CONSTRAINTS, detail));
    }
    let mut cursor = Cursor::new(&bytes);
    let mut matrices = [(); 3].map(|()| SparseMatrix::builder());
    for row in 0..constraints {
        for (matrix, letter) in matrices.iter_mut().zip(["A", "B", "C"]) {
            let fail =
                |detail: String| sections.error(CONSTRAINTS, format!("constraint {row}, {letter}: {detail}"));
            let short = || fail("the section ends within it".into());
            let terms = cursor.u32().ok_or_else(short)? as usize;
            let terms = terms.checked_mul(TERM).and_then(|bytes| cursor.take(bytes)).ok_or_else(short)?;
            for term in terms.chunks_exact(TERM) {
                let (wire, value) = term.split_at(4);
                let wire = limb(wire);
                if wire as usize >= wires {
                    return Err(fail(format!("wire {wire} of {wires}")));
                }
                let value = scalar(value).map_err(|detail| fail(format!("a coefficient {detail}")))?;
                matrix.push(wire, value);
            }
            matrix.end_row();
        }
    }
    if cursor.rest() > 0 {
        let detail = format!("{} bytes follow the last constraint", cursor.rest());
        return Err(sections.error(CONSTRAINTS, detail));
    }
    let [a, b, c] = matrices.map(|matrix| matrix.build(wires));
    R1cs::new(public, a, b, c).map_err(|error| match error {
        Error::Circuit { detail } => sections.error(HEADER, detail),
        other => other,
    })
}

fn limb(bytes: &[u8]) -> u32 {
    Cursor::new(bytes).u32().unwrap_or(u32::MAX)
}
