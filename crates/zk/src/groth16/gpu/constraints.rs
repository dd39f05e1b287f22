//! The constraints of a key on a GPU: their evaluation with a witness, and the quotient polynomial.
#![allow(unsafe_code)] // For kernels whose addresses are not checked.

use ark_bn254::Fr;
use ark_ff::{FftField, Field, Zero};
use ark_poly::{EvaluationDomain, Radix2EvaluationDomain};
use bytemuck::{Pod, Zeroable};
use evener_device::{Buffer, Device, Error, Kernel, Module, Program, Result, Stream};
use rayon::prelude::*;

use super::super::{ProvingKey, Reduction, SparseMatrix};
use crate::{
    dialect::Dialect,
    field::{self, Emitter, Fields, Limbs},
    ntt::{Ntt, Order, Root, Scale},
};

/// Threads of a workgroup.
const GROUP: u32 = 128;
/// Maximum number of terms that one thread adds up. A longer row has several segments.
const MAX_SEGMENT: usize = 256;
/// Rows of a part are a multiple of this: slices that begin at multiples of 2 KiB can be bound on every device.
const PART_ALIGNMENT: usize = 64;

/// The parameters of all kernels.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    count: u32,
    checked: u32,
    padding: [u32; 2],
}

/// The compiled kernels.
#[derive(Debug)]
struct Programs {
    add_terms: Program,
    add_segments: Program,
    multiply_sides: Program,
    quotient: Program,
}

/// Returns the kernels, in the order of [`Programs`].
fn kernels(emitter: Emitter) -> [Kernel; 4] {
    let arithmetic = field::source(emitter, Fields::Fr);
    let names = ["add_terms", "add_segments", "multiply_sides", "quotient"];
    let kernels = match emitter.dialect() {
        Dialect::CudaC => {
            let module = Module::new().constant("GROUP", GROUP);
            // SAFETY: a launch has `count` threads that do anything. Thread i accesses element i of the buffers with an
            // element for each row, elements i and i + 1 of `starts`, and the terms or segments between these two, whose
            // columns are less than the number of wires: `Matrix::upload` makes them so, and `SparseMatrix` has no others.
            // The launches of this module bind buffers of these lengths.
            let module = unsafe { module.cuda(arithmetic + include_str!("constraints.cu")) };
            names.map(|name| module.kernel(name))
        }
        Dialect::Wgsl => names.map(|name| {
            let mut parts = include_str!("constraints.wgsl").split("//! ");
            let shared = parts.next().unwrap_or_default().replace("ENTRY", name);
            let own = parts.find_map(|part| part.strip_prefix(name)).unwrap_or_default();
            let text = format!("const GROUP = {GROUP}u;\n{arithmetic}{shared}{own}");
            // SAFETY: as for CUDA C; the loops count up to a limit.
            unsafe { Kernel::new(name).wgsl_unchecked(emitter.features(), text) }
        }),
    };
    let [terms, segments, sides, quotient] = kernels.map(|kernel| kernel.params::<Params>().workgroup(GROUP));
    [
        terms.reads::<Limbs>().reads::<u32>().reads::<u32>().reads::<Limbs>().writes::<Limbs>(),
        segments.reads::<Limbs>().reads::<u32>().writes::<Limbs>(),
        sides.reads::<Limbs>().reads::<Limbs>().writes::<Limbs>().writes::<u32>(),
        quotient.writes::<Limbs>().reads::<Limbs>().reads::<Limbs>(),
    ]
}

/// A sparse matrix on the device, cut into parts whose terms can be bound to a kernel.
#[derive(Debug)]
struct Matrix {
    rows: usize,
    parts: Vec<Part>,
}

/// Some rows of a matrix.
#[derive(Debug)]
struct Part {
    rows: usize,
    segments: usize,
    /// Index of each segment's first term, and the number of all terms at the end.
    starts: Buffer<u32>,
    columns: Buffer<u32>,
    values: Buffer<Limbs>,
    /// Index of each row's first segment, and the number of all segments at the end; `None` if each row has one.
    row_starts: Option<Buffer<u32>>,
}

impl Matrix {
    fn upload(device: &Device, matrix: &SparseMatrix, max_terms: usize) -> Result<Matrix> {
        let mut parts = Vec::new();
        let mut first = 0;
        while first < matrix.rows() {
            // A part has at least one block of rows, as many blocks as fit, and the rows that are left at the end.
            let (mut end, mut terms) = (first, 0);
            while end < matrix.rows() {
                let next = (end + PART_ALIGNMENT).min(matrix.rows());
                let more: usize = (end..next).map(|row| matrix.row(row).len()).sum();
                if end > first && terms + more > max_terms {
                    break;
                }
                (end, terms) = (next, terms + more);
            }
            parts.push(Part::upload(device, matrix, first..end)?);
            first = end;
        }
        Ok(Matrix { rows: matrix.rows(), parts })
    }

    /// Queues the product with the values of all wires, and zeros after its rows. `segments` is scratch memory.
    fn multiply(
        &self,
        programs: &Programs,
        stream: &mut Stream,
        wires: &Buffer<Limbs>,
        segments: &Buffer<Limbs>,
        product: &Buffer<Limbs>,
    ) -> Result<()> {
        stream.zero(&product.slice(self.rows..)?)?;
        let mut first = 0;
        for part in &self.parts {
            let sums = product.slice(first..first + part.rows)?;
            let terms = match part.row_starts {
                Some(_) => segments.slice(..part.segments)?,
                None => sums.clone(),
            };
            let arguments =
                [wires.arg(), part.starts.arg(), part.columns.arg(), part.values.arg(), terms.arg()];
            launch(stream, &programs.add_terms, &arguments, part.segments, 0)?;
            if let Some(starts) = &part.row_starts {
                let arguments = [terms.arg(), starts.arg(), sums.arg()];
                launch(stream, &programs.add_segments, &arguments, part.rows, 0)?;
            }
            first += part.rows;
        }
        Ok(())
    }

    /// Returns the number of elements of scratch memory that [`multiply`](Self::multiply) needs.
    fn scratch(&self) -> usize {
        let with_segments = self.parts.iter().filter(|part| part.row_starts.is_some());
        with_segments.map(|part| part.segments).max().unwrap_or(0)
    }
}

impl Part {
    fn upload(device: &Device, matrix: &SparseMatrix, rows: std::ops::Range<usize>) -> Result<Part> {
        let (mut starts, mut row_starts) = (Vec::new(), Vec::new());
        let mut term = 0;
        for row in rows.clone() {
            row_starts.push(starts.len() as u32);
            let len = matrix.row(row).len();
            // A row without terms has one segment too.
            starts.extend((0..len.max(1)).step_by(MAX_SEGMENT).map(|first| (term + first) as u32));
            term += len;
        }
        let (rows_len, segments) = (rows.len(), starts.len());
        starts.push(term as u32);
        row_starts.push(segments as u32);
        let terms: Vec<&[(u32, Fr)]> = rows.map(|row| matrix.row(row)).collect();
        let columns: Vec<u32> = terms.par_iter().flat_map_iter(|row| row.iter().map(|term| term.0)).collect();
        let values: Vec<Limbs> =
            terms.par_iter().flat_map_iter(|row| row.iter().map(|term| term.1.into())).collect();
        let row_starts = (segments > rows_len).then(|| device.buffer_from(&row_starts)).transpose()?;
        Ok(Part {
            rows: rows_len,
            segments,
            starts: device.buffer_from(&starts)?,
            columns: device.buffer_from(&not_empty(columns))?,
            values: device.buffer_from(&not_empty(values))?,
            row_starts,
        })
    }
}

/// Adds an element that no row has, because some devices cannot bind empty buffers.
fn not_empty<T: Default>(mut elements: Vec<T>) -> Vec<T> {
    if elements.is_empty() {
        elements.push(T::default());
    }
    elements
}

fn launch(
    stream: &mut Stream,
    program: &Program,
    arguments: &[evener_device::Argument],
    count: usize,
    checked: usize,
) -> Result<()> {
    let params = Params { count: count as u32, checked: checked as u32, padding: [0; 2] };
    stream.launch_folded(&program.bind(arguments)?, program.kernel().groups_for(count as u64), &params)
}

/// The matrices of a key on a device, and what is needed for the quotient polynomial. All workers of the device share it.
#[derive(Debug)]
pub struct GpuConstraints {
    programs: Programs,
    a: Matrix,
    b: Matrix,
    c: Option<Matrix>,
    constraints: usize,
    domain: usize,
    ntt: Ntt,
    /// gʲ / N for each j in bit-reversed order, where g is the shift of the coset and N the size of the domain.
    to_coset: Buffer<Limbs>,
    /// 1 / (gʲ · N · Z) in bit-reversed order, for libsnark's reduction. Z is the vanishing polynomial on the coset.
    from_coset: Option<Buffer<Limbs>>,
}

/// The values of A, B and their product on the domain.
#[derive(Debug, Clone)]
pub(super) struct Sides {
    pub(super) a: Buffer<Limbs>,
    pub(super) b: Buffer<Limbs>,
    pub(super) c: Buffer<Limbs>,
}

impl GpuConstraints {
    /// Compiles the kernels, and copies the matrices of a key.
    pub(super) fn upload(device: &Device, key: &ProvingKey) -> Result<GpuConstraints> {
        let emitter = Emitter::for_device(device)?;
        let domain = key.domain();
        let ntt = Ntt::new(device, domain.ilog2())?;
        let [add_terms, add_segments, multiply_sides, quotient] =
            kernels(emitter).map(|kernel| device.compile(&kernel));
        let programs = Programs {
            add_terms: add_terms?,
            add_segments: add_segments?,
            multiply_sides: multiply_sides?,
            quotient: quotient?,
        };
        let max_terms = device.capabilities()?.max_binding_bytes / size_of::<Limbs>() as u64;
        let max_terms = usize::try_from(max_terms).unwrap_or(usize::MAX).min(1 << 30);
        let upload = |matrix: &SparseMatrix| Matrix::upload(device, matrix, max_terms);

        let unsupported = || Error::Unsupported {
            device: device.id().clone(),
            operation: "computing the quotient polynomial".into(),
            detail: format!("the field has no domain of {domain} elements"),
        };
        let shift = match key.reduction {
            Reduction::Circom => Fr::get_root_of_unity(2 * domain as u64).ok_or_else(unsupported)?,
            Reduction::Libsnark => Fr::GENERATOR,
        };
        let size = Fr::from(domain as u64);
        let reciprocal = size.inverse().ok_or_else(unsupported)?;
        let mut stream = device.stream()?;
        let to_coset = ntt.powers(&mut stream, domain, shift, reciprocal, Order::BitReversed)?;
        let from_coset = match key.reduction {
            Reduction::Circom => None,
            Reduction::Libsnark => {
                let roots = Radix2EvaluationDomain::<Fr>::new(domain).ok_or_else(unsupported)?;
                let vanishing = roots.evaluate_vanishing_polynomial(shift) * size;
                let (base, factor) = (shift.inverse(), vanishing.inverse());
                let (base, factor) = (base.unwrap_or(Fr::zero()), factor.unwrap_or(Fr::zero()));
                Some(ntt.powers(&mut stream, domain, base, factor, Order::BitReversed)?)
            }
        };
        // Other streams use the tables.
        stream.wait()?;
        Ok(GpuConstraints {
            programs,
            a: upload(&key.a)?,
            b: upload(&key.b)?,
            c: key.c.as_ref().map(upload).transpose()?,
            constraints: key.constraints(),
            domain,
            ntt,
            to_coset,
            from_coset,
        })
    }

    /// Number of elements of the domain.
    pub(super) fn domain(&self) -> usize {
        self.domain
    }

    /// Whether the constraints can be checked, for which the matrix C is needed.
    pub(super) fn can_check(&self) -> bool {
        self.c.is_some()
    }

    /// Returns the number of elements of scratch memory that [`evaluate`](Self::evaluate) needs.
    pub(super) fn scratch(&self) -> usize {
        let matrices = [Some(&self.a), Some(&self.b), self.c.as_ref()];
        matrices.into_iter().flatten().map(Matrix::scratch).max().unwrap_or(0).max(1)
    }

    /// Queues the evaluation of the constraints. If they can be checked, `failed` is the number of constraints that do not
    /// hold, and the first of them.
    pub(super) fn evaluate(
        &self,
        stream: &mut Stream,
        wires: &Buffer<Limbs>,
        scratch: &Buffer<Limbs>,
        failed: &Buffer<u32>,
        sides: &Sides,
    ) -> Result<()> {
        let Sides { a, b, c } = sides;
        self.a.multiply(&self.programs, stream, wires, scratch, a)?;
        self.b.multiply(&self.programs, stream, wires, scratch, b)?;
        let mut checked = 0;
        if let Some(matrix) = &self.c {
            matrix.multiply(&self.programs, stream, wires, scratch, c)?;
            checked = self.constraints;
        }
        stream.upload(&[0, u32::MAX], failed)?;
        let arguments = [a.arg(), b.arg(), c.arg(), failed.arg()];
        launch(stream, &self.programs.multiply_sides, &arguments, self.domain, checked)
    }

    /// Queues the computation of the quotient polynomial's scalars in place of A. They are in natural order for circom's
    /// reduction, and in bit-reversed order for libsnark's.
    pub(super) fn quotient(&self, stream: &mut Stream, sides: &Sides) -> Result<()> {
        let Sides { a, b, c } = sides;
        for values in [a, b, c] {
            self.ntt.to_bit_reversed(stream, values, Root::Inverse, Scale::After(&self.to_coset))?;
            self.ntt.from_bit_reversed(stream, values, Root::Forward, Scale::None)?;
        }
        let arguments = [a.arg(), b.arg(), c.arg()];
        launch(stream, &self.programs.quotient, &arguments, self.domain, 0)?;
        match &self.from_coset {
            Some(table) => self.ntt.to_bit_reversed(stream, a, Root::Inverse, Scale::After(table)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod test {
    use ark_bn254::FrConfig;
    use evener_device::Api;

    use super::*;
    use crate::field::test::{devices, noise};

    /// Rows without terms, short ones, and some with several segments.
    fn matrix(columns: usize) -> SparseMatrix {
        let lens = [3, 0, 1, MAX_SEGMENT, 7, MAX_SEGMENT + 1, 2, 3 * MAX_SEGMENT + 5];
        let mut values = noise::<FrConfig>(8 * 2000, 5).into_iter();
        let mut matrix = SparseMatrix::builder();
        for row in 0..150 {
            let len = if row < lens.len() || row == 135 { lens[row % lens.len()] } else { row % 4 };
            for (term, value) in values.by_ref().take(len).enumerate() {
                matrix.push(((row * 31 + term * 17) % columns) as u32, value);
            }
            matrix.end_row();
        }
        matrix.build(columns)
    }

    fn check(api: Api) {
        let columns = 77;
        let (matrix, vector) = (matrix(columns), noise::<FrConfig>(columns, 9));
        let mut expected = vec![Fr::zero(); 256];
        matrix.multiply(&vector, &mut expected);
        for device in devices(api) {
            let emitter = Emitter::for_device(&device).unwrap();
            let [add_terms, add_segments, multiply_sides, quotient] =
                kernels(emitter).map(|kernel| device.compile(&kernel).unwrap());
            let programs = Programs { add_terms, add_segments, multiply_sides, quotient };
            let in_memory: Vec<Limbs> = vector.iter().map(|it| (*it).into()).collect();
            let wires = device.buffer_from(&in_memory).unwrap();
            for (max_terms, parts) in [(1 << 20, 1), (300, 3)] {
                let uploaded = Matrix::upload(&device, &matrix, max_terms).unwrap();
                assert_eq!(uploaded.parts.len(), parts);
                let product = device.buffer_from(&vec![in_memory[0]; 256]).unwrap();
                let scratch = device.buffer_uninit(uploaded.scratch()).unwrap();
                let mut stream = device.stream().unwrap();
                uploaded.multiply(&programs, &mut stream, &wires, &scratch, &product).unwrap();
                let found = stream.download(&product).unwrap().wait().unwrap();
                let found: Vec<Fr> = found.into_iter().map(Fr::from).collect();
                assert_eq!(found, expected, "{parts} parts on {}", device.id());
            }
        }
    }

    #[test]
    #[ignore = "needs a Vulkan device"]
    fn matrices_with_long_and_empty_rows_are_multiplied_as_on_the_host_with_vulkan() {
        check(Api::Vulkan);
    }

    #[test]
    #[ignore = "needs a CUDA device"]
    fn matrices_with_long_and_empty_rows_are_multiplied_as_on_the_host_with_card() {
        check(Api::Cuda);
    }

    #[cfg(feature = "cuda")]
    #[test]
    #[ignore = "needs NVRTC"]
    fn the_kernels_compile_for_cards_old_and_new_with_nvrtc() {
        for emitter in [Emitter::CudaPtx, Emitter::CudaPlain] {
            for card in ["sm_75", "sm_90"] {
                for kernel in kernels(emitter) {
                    let compiled = evener_device::cuda::compile_kernel(card, &kernel);
                    assert!(!compiled.unwrap().is_empty(), "{emitter:?}, {card}, {}", kernel.name());
                }
            }
        }
    }
}
