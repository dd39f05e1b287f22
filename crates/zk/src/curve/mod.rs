//! The groups G1 and G2 of BN254 on every device: points in memory, and generated code for the group law.
//!
//! # Points
//! An affine point is (x, y) in Montgomery form; infinity is (0, 0), which is not on either curve. A point in XYZZ
//! coordinates is (X, Y, ZZ, ZZZ) with x = X / ZZ, y = Y / ZZZ and ZZ³ = ZZZ²; it is infinity if ZZ is 0. A mixed addition
//! takes 8 products and 2 squares, fewer than in Jacobian coordinates.
//!
//! # Generated code
//! [`source`] returns the group law in the language of an [`Emitter`], to be placed behind
//! [`field::source`](crate::field::source). The names are the same in all languages; `g1` and `G1` stand for `g2` and `G2`
//! too:
//!
//! | function | result |
//! | --- | --- |
//! | `g1_affine(x, y)`, `g1_xyzz(x, y, zz, zzz)` | constructors of `G1Affine { x; y; }` and `G1Xyzz { x; y; zz; zzz; }` |
//! | `g1_infinity()` | infinity, as `G1Xyzz` |
//! | `g1_is_infinity(p)`, `g1_affine_is_infinity(q)` | `bool` |
//! | `g1_neg(p)`, `g1_affine_neg(q)` | −p, −q |
//! | `g1_from_affine(q)`, `g1_to_affine(p)` | q in XYZZ coordinates; p in affine ones, with one inversion |
//! | `g1_add_affine(p, q)` | p + q, with p in XYZZ coordinates and q affine |
//! | `g1_add(p, q)`, `g1_double(p)`, `g1_double_affine(q)` | p + q, 2p, 2q |
//!
//! All functions take and return values, and are right for all points: equal, opposite and infinite ones too.
//!
//! In CUDA C, `g1_add_affine` and `g1_add` are always inlined, and those of G2 are functions that are called; the macros
//! `ZK_G1_INLINE` and `ZK_G2_INLINE` (`__forceinline__` or `__noinline__`) change that. Doublings are always called.
//!
//! In Rust, the points of a buffer are [`AffineG1`], [`AffineG2`], [`XyzzG1`] and [`XyzzG2`].

mod point;
#[cfg(test)]
mod test;

pub use self::point::{AffineG1, AffineG2, XyzzG1, XyzzG2};
use crate::{dialect::Dialect, field::Emitter};

/// The notation of the group law, over a field `F` with functions `f_*`.
const GROUP_LAW: &str = include_str!("group_law.txt");

/// A group of points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Group {
    /// The points over `Fq`.
    G1,
    /// The points of the twist, over `Fq2`.
    G2,
}

/// Returns the group law as source code. It follows the source of [`Fields::Fq`](crate::field::Fields::Fq) for G1, and of
/// [`Fields::Fq2`](crate::field::Fields::Fq2) for G2.
pub fn source(emitter: Emitter, group: Group) -> String {
    let dialect = emitter.dialect();
    let (kind, prefix, field_kind, field_prefix, inline) = match group {
        Group::G1 => ("G1", "g1", "Fq", "fq", "__forceinline__"),
        Group::G2 => ("G2", "g2", "Fq2", "fq2", "__noinline__"),
    };
    let coordinates = ["x", "y", "zz", "zzz"].map(|name| (field_kind, name));
    let mut text =
        dialect.structure(&format!("{kind}Affine"), &format!("{prefix}_affine"), &coordinates[..2]);
    text += &dialect.structure(&format!("{kind}Xyzz"), &format!("{prefix}_xyzz"), &coordinates);
    if dialect == Dialect::CudaC {
        text += &format!("#ifndef ZK_{kind}_INLINE\n#define ZK_{kind}_INLINE {inline}\n#endif\n");
    }
    let notation = GROUP_LAW
        .replace("@G", kind)
        .replace("@g", prefix)
        .replace("@F", field_kind)
        .replace("@f", field_prefix);
    text + &dialect.translate(&notation)
}
