//! The methods of numbers that devices have.

use crate::{infer::Types, ir::Ty};

/// The type of a method's value and of its arguments, after the receiver.
pub(super) fn signature(types: &mut Types, name: &str, receiver: &Ty) -> Option<(&'static str, Vec<Ty>, Ty)> {
    let same = |count: usize| (vec![receiver.clone(); count], receiver.clone());
    let known = types.known(receiver);
    let (name, (arguments, value)) = match name {
        "abs" => ("abs", same(0)),
        "sqrt" => ("sqrt", same(0)),
        "floor" => ("floor", same(0)),
        "ceil" => ("ceil", same(0)),
        "trunc" => ("trunc", same(0)),
        "round" => ("round", same(0)),
        "fract" => ("fract", same(0)),
        "recip" => ("recip", same(0)),
        "exp" => ("exp", same(0)),
        "exp2" => ("exp2", same(0)),
        "ln" => ("ln", same(0)),
        "log2" => ("log2", same(0)),
        "log10" => ("log10", same(0)),
        "sin" => ("sin", same(0)),
        "cos" => ("cos", same(0)),
        "tan" => ("tan", same(0)),
        "tanh" => ("tanh", same(0)),
        "atan" => ("atan", same(0)),
        "signum" => ("signum", same(0)),
        "powf" => ("powf", same(1)),
        "atan2" => ("atan2", same(1)),
        "hypot" => ("hypot", same(1)),
        "copysign" => ("copysign", same(1)),
        "mul_add" => ("mul_add", same(2)),
        "powi" => ("powi", (vec![Ty::I32], receiver.clone())),
        "min" => ("min", same(1)),
        "max" => ("max", same(1)),
        "clamp" => ("clamp", same(2)),
        "wrapping_add" => ("wrapping_add", same(1)),
        "wrapping_sub" => ("wrapping_sub", same(1)),
        "wrapping_mul" => ("wrapping_mul", same(1)),
        "wrapping_neg" => ("wrapping_neg", same(0)),
        "saturating_add" => ("saturating_add", same(1)),
        "saturating_sub" => ("saturating_sub", same(1)),
        "saturating_mul" => ("saturating_mul", same(1)),
        "abs_diff" if !known.is_signed() => ("abs_diff", same(1)),
        "rem_euclid" => ("rem_euclid", same(1)),
        "pow" => ("pow", (vec![Ty::U32], receiver.clone())),
        "wrapping_shl" => ("wrapping_shl", (vec![Ty::U32], receiver.clone())),
        "wrapping_shr" => ("wrapping_shr", (vec![Ty::U32], receiver.clone())),
        "rotate_left" => ("rotate_left", (vec![Ty::U32], receiver.clone())),
        "rotate_right" => ("rotate_right", (vec![Ty::U32], receiver.clone())),
        "count_ones" => ("count_ones", (vec![], Ty::U32)),
        "leading_zeros" => ("leading_zeros", (vec![], Ty::U32)),
        "trailing_zeros" => ("trailing_zeros", (vec![], Ty::U32)),
        "is_nan" => ("is_nan", (vec![], Ty::Bool)),
        "to_bits" if known == Ty::F32 => ("to_bits", (vec![], Ty::U32)),
        "to_bits" if known == Ty::F64 => ("to_bits", (vec![], Ty::U64)),
        "clone" => ("clone", same(0)),
        _ => return None,
    };
    Some((name, arguments, value))
}
