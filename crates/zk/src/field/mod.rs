//! The fields of BN254 on every device: elements in memory, and code generators for their arithmetic.
//!
//! # Elements
//! An element is in Montgomery form, x · 2^256 mod p, as four 64-bit limbs, the least significant first, less than p. That
//! is arkworks' own representation, so that [`Limbs`] are copied to and from `Fr` and `Fq` without conversion.
//!
//! # Generated code
//! [`source`] returns the arithmetic as source code in the language of an [`Emitter`]. The names are the same in all
//! languages; `fq_` stands for any of the prefixes:
//!
//! | function | result |
//! | --- | --- |
//! | `fq_zero()`, `fq_one()` | 0 and 1 |
//! | `fq_add(a, b)`, `fq_sub(a, b)`, `fq_mul(a, b)` | a + b, a − b, a · b |
//! | `fq_neg(a)`, `fq_double(a)`, `fq_sqr(a)` | −a, 2a, a² |
//! | `fq_is_zero(a)`, `fq_eq(a, b)` | `bool` |
//! | `fq_inv(a)` | 1 / a by exponentiation (about 380 products), and 0 for 0 |
//! | `fq_load(pointer)`, `fq_store(pointer, a)` | CUDA C only: 16-byte accesses |
//!
//! The prefixes are `fq` (type `Fq`), `fr` (type `Fr`), and `fq2` (type `Fq2 { Fq c0; Fq c1; }`, with u² = −1; the
//! constructor is `fq2(c0, c1)`, and `fq2_conjugate(a)` is c0 − c1·u). Arguments and results are values, always reduced.
//!
//! In CUDA C an element is `struct { unsigned l[8]; }`, aligned to 16 bytes; a kernel takes `const Fq *`. Products of `Fq`
//! and `Fr` in PTX are inlined, unless the macro `ZK_PTX_INLINE` is defined as `__noinline__` (by
//! [`Module::define`](evener_device::Module::define)). Those of `Fq2`, and those in plain C, are functions that are called,
//! unless the macros `ZK_FQ2_INLINE` and `ZK_PLAIN_INLINE` are defined as `__forceinline__`. In WGSL an element is
//! `struct { lo: vec4<u32>, hi: vec4<u32> }`, and a buffer of them is `array<Fq>`. Rust declares the same buffers with
//! [`Kernel::reads`](evener_device::Kernel::reads)`::<`[`Limbs`]`>()`.

mod choose;
mod description;
mod ptx;
#[cfg(test)]
pub(crate) mod test;
mod words;

use ark_bn254::{Fq, Fr};
use ark_ff::{BigInt, PrimeField};
use bytemuck::{Pod, Zeroable};
use evener_device::{Buffer, Device, Features, Result, Stream};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

pub use self::description::FieldDescription;
use self::words::{Rows, Words};
use crate::dialect::Dialect;

/// An element of `Fq` or `Fr` as it is in memory: Montgomery form, less than the modulus.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct Limbs(pub [u64; 4]);

impl zeroize::DefaultIsZeroes for Limbs {}

impl Limbs {
    /// Whether the limbs are less than the modulus of `Fr`, as those of every element are.
    pub fn is_reduced_fr(&self) -> bool {
        BigInt(self.0) < Fr::MODULUS
    }

    /// Whether the limbs are less than the modulus of `Fq`, as those of every element are.
    pub fn is_reduced_fq(&self) -> bool {
        BigInt(self.0) < Fq::MODULUS
    }
}

impl From<Fr> for Limbs {
    fn from(element: Fr) -> Self {
        Limbs(element.0.0)
    }
}

impl From<Fq> for Limbs {
    fn from(element: Fq) -> Self {
        Limbs(element.0.0)
    }
}

/// The limbs must be less than the modulus: what a device computed, or what was made from an `Fr`.
impl From<Limbs> for Fr {
    fn from(limbs: Limbs) -> Self {
        Fr::new_unchecked(BigInt(limbs.0))
    }
}

/// The limbs must be less than the modulus: what a device computed, or what was made from an `Fq`.
impl From<Limbs> for Fq {
    fn from(limbs: Limbs) -> Self {
        Fq::new_unchecked(BigInt(limbs.0))
    }
}

/// Copies elements to the beginning of a device buffer, several threads at a time and without a copy of all of them in host
/// memory. Returns when they may change again.
pub fn upload<T: Copy + Into<Limbs> + Sync>(
    device: &Device,
    stream: &mut Stream,
    elements: &[T],
    to: &Buffer<Limbs>,
) -> Result<()> {
    /// Elements that a thread copies at once.
    const SHARE: usize = 4096;
    let staging = device.staging_buffer::<Limbs>(elements.len())?;
    let upload = stream.upload_staged(staging, elements.len(), to, |_, piece, memory| {
        let shares = memory.par_chunks_mut(SHARE).zip(elements[piece].par_chunks(SHARE));
        shares.for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| *to = (*from).into()));
        Ok(())
    })?;
    upload.wait().map(drop)
}

/// A generator of field arithmetic: a language, and the instructions that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Emitter {
    /// CUDA C with inline PTX: chains of multiply-adds with carry.
    CudaPtx,
    /// CUDA C with 64-bit products.
    CudaPlain,
    /// WGSL with 64-bit integers, as straight-line code.
    WgslU64,
    /// WGSL with 64-bit integers, with a loop in each product: short code, for drivers that compile slowly.
    WgslU64Loop,
    /// WGSL with 32-bit integers alone, with a loop in each product.
    WgslU32,
}

impl Emitter {
    /// All generators.
    pub const ALL: [Emitter; 5] =
        [Emitter::CudaPtx, Emitter::CudaPlain, Emitter::WgslU64, Emitter::WgslU64Loop, Emitter::WgslU32];

    /// The features that a device needs for the generated WGSL.
    pub fn features(self) -> Features {
        match self {
            Emitter::WgslU64 | Emitter::WgslU64Loop => Features::INT64,
            Emitter::CudaPtx | Emitter::CudaPlain | Emitter::WgslU32 => Features::empty(),
        }
    }

    pub(crate) fn dialect(self) -> Dialect {
        match self {
            Emitter::CudaPtx | Emitter::CudaPlain => Dialect::CudaC,
            Emitter::WgslU64 | Emitter::WgslU64Loop | Emitter::WgslU32 => Dialect::Wgsl,
        }
    }

    fn words(self) -> Words {
        match self {
            Emitter::CudaPtx | Emitter::CudaPlain => Words::CudaC,
            Emitter::WgslU64 | Emitter::WgslU64Loop => Words::WgslU64,
            Emitter::WgslU32 => Words::WgslU32,
        }
    }
}

/// The fields whose arithmetic a kernel uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fields {
    /// `Fr`.
    Fr,
    /// `Fq`.
    Fq,
    /// `Fq` and `Fq2`.
    Fq2,
    /// All of them.
    All,
}

/// Returns the arithmetic of some fields as source code. A module's source begins with it; it may contain it once.
pub fn source(emitter: Emitter, fields: Fields) -> String {
    let mut text = String::new();
    // Writing to a `String` does not fail.
    let _ = emitter.words().write_shared(&mut text);
    if matches!(fields, Fields::Fr | Fields::All) {
        prime_field(&mut text, emitter, &FieldDescription::fr());
    }
    if matches!(fields, Fields::Fq | Fields::Fq2 | Fields::All) {
        prime_field(&mut text, emitter, &FieldDescription::fq());
    }
    if matches!(fields, Fields::Fq2 | Fields::All) {
        text += &quadratic_extension(emitter);
    }
    text
}

fn prime_field(text: &mut String, emitter: Emitter, field: &FieldDescription) {
    let words = emitter.words();
    let written = words.write_type(text, field).and_then(|()| match emitter {
        Emitter::CudaPtx => ptx::write_functions(text, field),
        Emitter::CudaPlain | Emitter::WgslU64 => words.write_functions(text, field, Rows::WrittenOut),
        Emitter::WgslU64Loop | Emitter::WgslU32 => words.write_functions(text, field, Rows::Loop),
    });
    debug_assert!(written.is_ok(), "writing to a `String` does not fail");
    let (prefix, kind) = (field.prefix, field.type_name);
    *text += &emitter.dialect().translate(&format!(
        "inline fn {prefix}_neg({kind} a) -> {kind} {{\n    return {prefix}_sub({prefix}_zero(), a);\n}}\n"
    ));
    *text += &inversion(emitter.dialect(), field);
}

/// The inverse by Fermat's theorem: a^(p − 2).
fn inversion(dialect: Dialect, field: &FieldDescription) -> String {
    let (prefix, kind) = (field.prefix, field.type_name);
    let exponent: Vec<String> =
        field.inversion_exponent().iter().map(|limb| format!("0x{limb:08x}u")).collect();
    let exponent = exponent.join(", ");
    let loop_body = format!(
        "        r = {prefix}_sqr(r);\n        \
         if (((exponent[bit >> 5] >> (bit & 31)) & 1u) != 0u) {{ r = {prefix}_mul(r, a); }}\n    \
         }}\n    return r;\n}}\n"
    );
    match dialect {
        Dialect::CudaC => format!(
            "static __device__ __noinline__ {kind} {prefix}_inv(const {kind} a) {{\n    \
             const unsigned exponent[8] = {{ {exponent} }};\n    \
             {kind} r = {prefix}_one();\n    \
             #pragma unroll 1\n    \
             for (int bit = 253; bit >= 0; bit--) {{\n{loop_body}"
        ),
        Dialect::Wgsl => format!(
            "fn {prefix}_inv(a: {kind}) -> {kind} {{\n    \
             var exponent = array<u32, 8>({exponent});\n    \
             var r = {prefix}_one();\n    \
             for (var left = 254u; left > 0u; left--) {{\n        let bit = left - 1u;\n{}",
            loop_body.replace("bit >> 5", "bit >> 5u").replace("bit & 31", "bit & 31u")
        ),
    }
}

/// Fq2 = Fq[u] / (u² + 1).
fn quadratic_extension(emitter: Emitter) -> String {
    const PRODUCT: &str = "
// Three products instead of four (Karatsuba).
ZK_FQ2_INLINE fn fq2_mul(Fq2 a, Fq2 b) -> Fq2 {
    let Fq first = fq_mul(a.c0, b.c0);
    let Fq second = fq_mul(a.c1, b.c1);
    let Fq both = fq_mul(fq_add(a.c0, a.c1), fq_add(b.c0, b.c1));
    return fq2(fq_sub(first, second), fq_sub(fq_sub(both, first), second));
}
";
    const SQUARE: &str = "
// (c0 + c1) (c0 - c1) and 2 c0 c1.
ZK_FQ2_INLINE fn fq2_sqr(Fq2 a) -> Fq2 {
    let Fq real = fq_mul(fq_add(a.c0, a.c1), fq_sub(a.c0, a.c1));
    return fq2(real, fq_double(fq_mul(a.c0, a.c1)));
}
";
    // The same with one product in the code.
    const LOOP_PRODUCTS: &str = "
fn fq2_mul(a: Fq2, b: Fq2) -> Fq2 {
    var x = a.c0;
    var y = b.c0;
    var real = fq_zero();
    var sum = fq_zero();
    for (var i = 0u; i < 3u; i++) {
        let product = fq_mul(x, y);
        if (i == 0u) { real = product; sum = product; x = a.c1; y = b.c1; }
        if (i == 1u) {
            real = fq_sub(real, product);
            sum = fq_add(sum, product);
            x = fq_add(a.c0, a.c1);
            y = fq_add(b.c0, b.c1);
        }
        if (i == 2u) { sum = fq_sub(product, sum); }
    }
    return fq2(real, sum);
}
fn fq2_sqr(a: Fq2) -> Fq2 {
    var x = fq_add(a.c0, a.c1);
    var y = fq_sub(a.c0, a.c1);
    var real = fq_zero();
    var product = fq_zero();
    for (var i = 0u; i < 2u; i++) {
        product = fq_mul(x, y);
        if (i == 0u) { real = product; x = a.c0; y = a.c1; }
    }
    return fq2(real, fq_double(product));
}
";
    const FUNCTIONS: &str = "
inline fn fq2_zero() -> Fq2 {
    return fq2(fq_zero(), fq_zero());
}
inline fn fq2_one() -> Fq2 {
    return fq2(fq_one(), fq_zero());
}
inline fn fq2_add(Fq2 a, Fq2 b) -> Fq2 {
    return fq2(fq_add(a.c0, b.c0), fq_add(a.c1, b.c1));
}
inline fn fq2_sub(Fq2 a, Fq2 b) -> Fq2 {
    return fq2(fq_sub(a.c0, b.c0), fq_sub(a.c1, b.c1));
}
inline fn fq2_neg(Fq2 a) -> Fq2 {
    return fq2(fq_neg(a.c0), fq_neg(a.c1));
}
inline fn fq2_conjugate(Fq2 a) -> Fq2 {
    return fq2(a.c0, fq_neg(a.c1));
}
inline fn fq2_double(Fq2 a) -> Fq2 {
    return fq2(fq_double(a.c0), fq_double(a.c1));
}
inline fn fq2_is_zero(Fq2 a) -> bool {
    return fq_is_zero(a.c0) && fq_is_zero(a.c1);
}
inline fn fq2_eq(Fq2 a, Fq2 b) -> bool {
    return fq_eq(a.c0, b.c0) && fq_eq(a.c1, b.c1);
}
call fn fq2_inv(Fq2 a) -> Fq2 {
    let Fq norm = fq_inv(fq_add(fq_sqr(a.c0), fq_sqr(a.c1)));
    return fq2(fq_mul(a.c0, norm), fq_neg(fq_mul(a.c1, norm)));
}
";
    let dialect = emitter.dialect();
    let products = match emitter {
        Emitter::WgslU64Loop | Emitter::WgslU32 => LOOP_PRODUCTS.to_owned(),
        Emitter::CudaPlain | Emitter::WgslU64 => dialect.translate(PRODUCT) + &dialect.translate(SQUARE),
        Emitter::CudaPtx => {
            let mut text = String::new();
            let written = ptx::write_extension_product(&mut text, &FieldDescription::fq());
            debug_assert!(written.is_ok(), "writing to a `String` does not fail");
            text + &dialect.translate(SQUARE)
        }
    };
    let mut text = dialect.structure("Fq2", "fq2", &[("Fq", "c0"), ("Fq", "c1")]);
    if dialect == Dialect::CudaC {
        text += "#ifndef ZK_FQ2_INLINE\n#define ZK_FQ2_INLINE __noinline__\n#endif\n";
    }
    text + &products + &dialect.translate(FUNCTIONS)
}

#[cfg(all(test, feature = "cuda"))]
mod with_nvrtc {
    use evener_device::cuda::compile_for;

    use super::*;
    use crate::curve::{self, Group};

    #[test]
    #[ignore = "needs NVRTC"]
    fn the_arithmetic_compiles_for_cards_old_and_new() {
        let kernel = r#"
extern "C" __global__ void additions(G1Xyzz *p, const G1Affine *q, G2Xyzz *r, const G2Affine *s, Fr *t) {
    const unsigned i = threadIdx.x;
    p[i] = g1_add(g1_add_affine(p[i], q[i]), p[i + 1]);
    r[i] = g2_add(g2_add_affine(r[i], s[i]), r[i + 1]);
    fr_store(t + i, fr_inv(fr_sqr(fr_load(t + i))));
}"#;
        for emitter in [Emitter::CudaPtx, Emitter::CudaPlain] {
            let text = [
                &source(emitter, Fields::All),
                &curve::source(emitter, Group::G1),
                &curve::source(emitter, Group::G2),
                kernel,
            ]
            .map(|part: &str| part.to_owned())
            .concat();
            for card in ["sm_75", "sm_90"] {
                let compiled = compile_for(card, "additions", &text);
                assert!(compiled.is_ok(), "{emitter:?}, {card}: {}", compiled.unwrap_err());
            }
        }
    }
}
