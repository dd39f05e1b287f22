//! Field arithmetic in plain CUDA C and in WGSL, as straight-line code over 32-bit words.
//!
//! Products are computed row by row (CIOS), with 64-bit integers if the language has them, otherwise with 32-bit ones. The
//! rows are written out, or one row is the body of a loop: drivers inline every call, so that a kernel with many products
//! is compiled ten times as fast with loops, and some drivers unroll them again.

use std::fmt::{self, Write};

use super::description::{FieldDescription, LIMBS};

/// How a language writes words, and products of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Words {
    /// CUDA C with `unsigned long long`.
    CudaC,
    /// WGSL with `u64`.
    WgslU64,
    /// WGSL with `u32` alone.
    WgslU32,
}

use Words::{CudaC, WgslU32, WgslU64};

/// How the rows of a product are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// One after the other.
    WrittenOut,
    /// As a loop, in WGSL.
    Loop,
}

/// Functions that the arithmetic in 32-bit words calls.
const WGSL_U32_FUNCTIONS: &str = "
// a * b + c + d, low word first. It does not overflow.
fn zk_multiply_add(a: u32, b: u32, c: u32, d: u32) -> vec2<u32> {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let low = a0 * b0;
    let first = a0 * b1 + (low >> 16u);
    let second = a1 * b0 + (first & 0xffffu);
    let product = (second << 16u) | (low & 0xffffu);
    let sum = product + c;
    let total = sum + d;
    let high = a1 * b1 + (first >> 16u) + (second >> 16u);
    return vec2<u32>(total, high + u32(sum < c) + u32(total < d));
}
// a + b + carry, and the carry out.
fn zk_add_carry(a: u32, b: u32, carry: u32) -> vec2<u32> {
    let sum = a + b;
    let total = sum + carry;
    return vec2<u32>(total, u32(sum < a) + u32(total < sum));
}
// a - b - borrow, and the borrow out.
fn zk_subtract_borrow(a: u32, b: u32, borrow: u32) -> vec2<u32> {
    let difference = a - b;
    return vec2<u32>(difference - borrow, u32(a < b) + u32(difference < borrow));
}
";

impl Words {
    /// Writes what all fields share.
    pub(super) fn write_shared(self, text: &mut String) -> fmt::Result {
        match self {
            WgslU32 => text.write_str(WGSL_U32_FUNCTIONS),
            // Inlined products would take half a minute to compile in a large kernel.
            CudaC => {
                text.write_str("#ifndef ZK_PLAIN_INLINE\n#define ZK_PLAIN_INLINE __noinline__\n#endif\n")
            }
            WgslU64 => Ok(()),
        }
    }

    /// Writes the type of an element, and functions that need no carries: constants, comparison, loads and stores.
    pub(super) fn write_type(self, text: &mut String, field: &FieldDescription) -> fmt::Result {
        let (prefix, kind) = (field.prefix, field.type_name);
        if self == CudaC {
            writeln!(text, "struct __align__(16) {kind} {{ unsigned l[8]; }};")?;
            writeln!(
                text,
                "static __device__ __forceinline__ {kind} {prefix}_load(const {kind} *from) {{\n    \
                 const uint4 low = ((const uint4 *)from)[0], high = ((const uint4 *)from)[1];\n    \
                 return {kind}{{ {{ low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w }} }};\n}}\n\
                 static __device__ __forceinline__ void {prefix}_store({kind} *to, const {kind} a) {{\n    \
                 ((uint4 *)to)[0] = make_uint4(a.l[0], a.l[1], a.l[2], a.l[3]);\n    \
                 ((uint4 *)to)[1] = make_uint4(a.l[4], a.l[5], a.l[6], a.l[7]);\n}}"
            )?;
        } else {
            writeln!(text, "struct {kind} {{ lo: vec4<u32>, hi: vec4<u32> }}")?;
        }
        for (name, value) in [("zero", [0; LIMBS]), ("one", field.one)] {
            writeln!(text, "{} {{", self.function(field, name, &[]))?;
            self.write_result(text, field, |limb| self.constant(value[limb]))?;
        }
        let any_of = |word: &dyn Fn(usize) -> String| (0..LIMBS).map(word).collect::<Vec<_>>().join(" | ");
        let zero = self.constant(0);
        let (of_one, of_two) = match self {
            CudaC => (format!("const {kind} a"), format!("const {kind} a, const {kind} b")),
            _ => (format!("a: {kind}"), format!("a: {kind}, b: {kind}")),
        };
        let is_zero = any_of(&|limb| self.limb("a", limb));
        let is_equal = any_of(&|limb| format!("({} ^ {})", self.limb("a", limb), self.limb("b", limb)));
        for (name, arguments, words) in [("is_zero", of_one, is_zero), ("eq", of_two, is_equal)] {
            let signature = match self {
                CudaC => format!("static __device__ __forceinline__ bool {prefix}_{name}({arguments})"),
                _ => format!("fn {prefix}_{name}({arguments}) -> bool"),
            };
            writeln!(text, "{signature} {{ return ({words}) == {zero}; }}")?;
        }
        Ok(())
    }

    /// Writes `add`, `sub`, `double`, `mul` and `sqr`.
    pub(super) fn write_functions(
        self,
        text: &mut String,
        field: &FieldDescription,
        rows: Rows,
    ) -> fmt::Result {
        let (a, b) = (|limb| self.limb("a", limb), |limb| self.limb("b", limb));
        for (name, arguments) in [("add", &["a", "b"][..]), ("double", &["a"])] {
            writeln!(text, "{} {{", self.function(field, name, arguments))?;
            self.write_carry(text)?;
            for limb in 0..LIMBS {
                let (first, second) = (a(limb), if name == "add" { b(limb) } else { a(limb) });
                self.write_add(text, limb, &format!("s{limb}"), &first, &second)?;
            }
            self.write_reduced(text, field, "s")?;
        }
        writeln!(text, "{} {{", self.function(field, "sub", &["a", "b"]))?;
        self.write_carry(text)?;
        for limb in 0..LIMBS {
            self.write_subtract(text, limb, &format!("d{limb}"), &a(limb), &b(limb))?;
        }
        // All ones if the difference is negative.
        self.write_value(text, "mask", &self.borrow_mask())?;
        for limb in 0..LIMBS {
            let masked = format!("({} & mask)", self.constant(field.modulus[limb]));
            self.write_add(text, limb, &format!("s{limb}"), &format!("d{limb}"), &masked)?;
        }
        self.write_result(text, field, |limb| format!("s{limb}"))?;
        self.write_product(text, field, rows)?;
        writeln!(text, "{} {{", self.function(field, "sqr", &["a"]))?;
        writeln!(text, "    return {}_mul(a, a);\n}}", field.prefix)
    }

    /// Writes `mul`: for each word of `b`, adds a row of products, then as many moduli as make the first word zero.
    fn write_product(self, text: &mut String, field: &FieldDescription, rows: Rows) -> fmt::Result {
        let signature = self.function(field, "mul", &["a", "b"]);
        writeln!(text, "{} {{", signature.replace("__forceinline__", "ZK_PLAIN_INLINE"))?;
        self.write_carry(text)?;
        for limb in 0..LIMBS {
            self.write_variable(text, &format!("t{limb}"), &self.constant(0))?;
        }
        self.write_variable(text, "m", &self.constant(0))?;
        self.write_variable(text, "top", &self.constant(0))?;
        match rows {
            Rows::WrittenOut => {
                for row in 0..LIMBS {
                    self.write_row(text, field, &self.limb("b", row))?;
                }
            }
            Rows::Loop => {
                // The words of `b` move down, so that no array is indexed by a variable.
                writeln!(text, "    var left = b;\n    for (var row = 0u; row < {LIMBS}u; row++) {{")?;
                writeln!(text, "    let word = left.lo.x;")?;
                writeln!(text, "    left.lo = vec4<u32>(left.lo.yzw, left.hi.x);")?;
                writeln!(text, "    left.hi = vec4<u32>(left.hi.yzw, 0u);")?;
                self.write_row(text, field, "word")?;
                writeln!(text, "    }}")?;
            }
        }
        self.write_reduced(text, field, "t")
    }

    fn write_row(self, text: &mut String, field: &FieldDescription, word: &str) -> fmt::Result {
        for limb in 0..LIMBS {
            let (to, a) = (format!("t{limb}"), self.limb("a", limb));
            self.write_multiply_add(text, limb == 0, &to, &a, word, &to)?;
        }
        writeln!(text, "    top = {};", self.carry())?;
        writeln!(text, "    m = t0 * {};", self.constant(field.negative_inverse))?;
        for limb in 0..LIMBS {
            let to = if limb == 0 { String::new() } else { format!("t{}", limb - 1) };
            let modulus = self.constant(field.modulus[limb]);
            self.write_multiply_add(text, limb == 0, &to, "m", &modulus, &format!("t{limb}"))?;
        }
        // The modulus has two bits less than its words: the sum does not overflow.
        writeln!(text, "    t{} = top + {};", LIMBS - 1, self.carry())
    }

    /// Writes the end of a function: subtracts the modulus from the words, if they are not less, and returns them.
    fn write_reduced(self, text: &mut String, field: &FieldDescription, words: &str) -> fmt::Result {
        for limb in 0..LIMBS {
            let modulus = self.constant(field.modulus[limb]);
            self.write_subtract(text, limb, &format!("r{limb}"), &format!("{words}{limb}"), &modulus)?;
        }
        self.write_value(text, "mask", &self.borrow_mask())?;
        self.write_result(text, field, |limb| format!("((r{limb} & ~mask) | ({words}{limb} & mask))"))
    }

    fn write_result(
        self,
        text: &mut String,
        field: &FieldDescription,
        word: impl Fn(usize) -> String,
    ) -> fmt::Result {
        let words: Vec<String> = (0..LIMBS).map(word).collect();
        let kind = field.type_name;
        match self {
            CudaC => writeln!(text, "    return {kind}{{ {{ {} }} }};\n}}", words.join(", ")),
            _ => {
                let (low, high) = words.split_at(LIMBS / 2);
                writeln!(
                    text,
                    "    return {kind}(vec4<u32>({}), vec4<u32>({}));\n}}",
                    low.join(", "),
                    high.join(", ")
                )
            }
        }
    }

    fn function(self, field: &FieldDescription, name: &str, arguments: &[&str]) -> String {
        let (prefix, kind) = (field.prefix, field.type_name);
        match self {
            CudaC => {
                let arguments: Vec<_> = arguments.iter().map(|name| format!("const {kind} {name}")).collect();
                format!("static __device__ __forceinline__ {kind} {prefix}_{name}({})", arguments.join(", "))
            }
            _ => {
                let arguments: Vec<_> = arguments.iter().map(|name| format!("{name}: {kind}")).collect();
                format!("fn {prefix}_{name}({}) -> {kind}", arguments.join(", "))
            }
        }
    }

    fn limb(self, element: &str, limb: usize) -> String {
        match self {
            CudaC => format!("{element}.l[{limb}]"),
            _ => {
                let half = if limb < LIMBS / 2 { "lo" } else { "hi" };
                format!("{element}.{half}.{}", ["x", "y", "z", "w"][limb % 4])
            }
        }
    }

    fn constant(self, value: u32) -> String {
        format!("0x{value:08x}u")
    }

    /// Declares the variable that the carry is in: the upper half of the last sum, or the second word of it.
    fn write_carry(self, text: &mut String) -> fmt::Result {
        match self {
            CudaC => writeln!(text, "    unsigned long long x = 0;"),
            WgslU64 => writeln!(text, "    var x: u64 = 0lu;"),
            WgslU32 => writeln!(text, "    var x = vec2<u32>(0u, 0u);"),
        }
    }

    fn carry(self) -> &'static str {
        match self {
            CudaC => "(unsigned)(x >> 32)",
            WgslU64 => "u32(x >> 32u)",
            WgslU32 => "x.y",
        }
    }

    /// All ones if the last subtraction borrowed.
    fn borrow_mask(self) -> String {
        match self {
            CudaC => "(unsigned)(x >> 32)".into(),
            WgslU64 => "u32(x >> 32u)".into(),
            WgslU32 => "0u - x.y".into(),
        }
    }

    fn write_value(self, text: &mut String, name: &str, value: &str) -> fmt::Result {
        match self {
            CudaC => writeln!(text, "    const unsigned {name} = {value};"),
            _ => writeln!(text, "    let {name}: u32 = {value};"),
        }
    }

    fn write_variable(self, text: &mut String, name: &str, value: &str) -> fmt::Result {
        match self {
            CudaC => writeln!(text, "    unsigned {name} = {value};"),
            _ => writeln!(text, "    var {name}: u32 = {value};"),
        }
    }

    /// Declares `to` as `a + b` and the carry of the limb before.
    fn write_add(self, text: &mut String, limb: usize, to: &str, a: &str, b: &str) -> fmt::Result {
        match (self, limb) {
            (CudaC, 0) => write!(text, "    x = (unsigned long long){a} + {b};")?,
            (CudaC, _) => write!(text, "    x = (unsigned long long){a} + {b} + (x >> 32);")?,
            (WgslU64, 0) => write!(text, "    x = u64({a}) + u64({b});")?,
            (WgslU64, _) => write!(text, "    x = u64({a}) + u64({b}) + (x >> 32u);")?,
            (WgslU32, 0) => write!(text, "    x = zk_add_carry({a}, {b}, 0u);")?,
            (WgslU32, _) => write!(text, "    x = zk_add_carry({a}, {b}, x.y);")?,
        }
        self.write_value(text, to, self.low())
    }

    /// Declares `to` as `a − b` less the borrow of the limb before.
    fn write_subtract(self, text: &mut String, limb: usize, to: &str, a: &str, b: &str) -> fmt::Result {
        match (self, limb) {
            (CudaC, 0) => write!(text, "    x = (unsigned long long){a} - {b};")?,
            (CudaC, _) => write!(text, "    x = (unsigned long long){a} - {b} - (x >> 63);")?,
            (WgslU64, 0) => write!(text, "    x = u64({a}) - u64({b});")?,
            (WgslU64, _) => write!(text, "    x = u64({a}) - u64({b}) - (x >> 63u);")?,
            (WgslU32, 0) => write!(text, "    x = zk_subtract_borrow({a}, {b}, 0u);")?,
            (WgslU32, _) => write!(text, "    x = zk_subtract_borrow({a}, {b}, x.y);")?,
        }
        self.write_value(text, to, self.low())
    }

    /// Sets `to`, unless it is empty, to the low word of `a * b + c` plus the carry before; `first` has none.
    fn write_multiply_add(
        self,
        text: &mut String,
        first: bool,
        to: &str,
        a: &str,
        b: &str,
        c: &str,
    ) -> fmt::Result {
        match (self, first) {
            (CudaC, true) => write!(text, "    x = (unsigned long long){a} * {b} + {c};")?,
            (CudaC, false) => write!(text, "    x = (unsigned long long){a} * {b} + {c} + (x >> 32);")?,
            (WgslU64, true) => write!(text, "    x = u64({a}) * u64({b}) + u64({c});")?,
            (WgslU64, false) => write!(text, "    x = u64({a}) * u64({b}) + u64({c}) + (x >> 32u);")?,
            (WgslU32, true) => write!(text, "    x = zk_multiply_add({a}, {b}, {c}, 0u);")?,
            (WgslU32, false) => write!(text, "    x = zk_multiply_add({a}, {b}, {c}, x.y);")?,
        }
        if to.is_empty() { writeln!(text) } else { writeln!(text, " {to} = {};", self.low()) }
    }

    fn low(self) -> &'static str {
        match self {
            CudaC => "(unsigned)x",
            WgslU64 => "u32(x)",
            WgslU32 => "x.x",
        }
    }
}
