//! Functions that kernels call where a language has no operator with Rust's meaning. Those that Rust would panic in record
//! a failure: the iteration is then done again at home, where it panics.

/// A helper in WGSL.
pub(super) fn wgsl(name: &str, ty: &str) -> String {
    if name == "at" {
        return "fn at(index: u64, len: u64) -> u32 {\n    if (index >= len) { failed = failed | 1u; return 0u; }\n    return u32(index);\n}\n".into();
    }
    let is_signed = ty.starts_with('i');
    let bits = if ty.ends_with("64") { 64 } else { 32 };
    let unsigned = if bits == 64 { "u64" } else { "u32" };
    let lit = |value: u64| match ty {
        "i32" => format!("{value}i"),
        "u32" => format!("{value}u"),
        "i64" => format!("{value}li"),
        "u64" => format!("{value}lu"),
        "f64" => format!("{value}.0lf"),
        _ => format!("{value}.0f"),
    };
    let (zero, one) = (lit(0), lit(1));
    let most = match ty {
        "i32" => lit(i32::MAX as u64),
        "u32" => lit(u64::from(u32::MAX)),
        "i64" => lit(i64::MAX as u64),
        _ => lit(u64::MAX),
    };
    let least = if is_signed { format!("(-{most} - {one})") } else { zero.clone() };
    let fail = "failed = failed | 1u;";
    let two = |body: String| format!("fn {name}_{ty}(a: {ty}, b: {ty}) -> {ty} {{\n{body}}}\n");
    let single = |body: String| format!("fn {name}_{ty}(a: {ty}) -> {ty} {{\n{body}}}\n");
    let shift = |body: String| format!("fn {name}_{ty}(a: {ty}, b: u32) -> {ty} {{\n{body}}}\n");
    let max_shift = bits - 1;
    let overflows_add = match is_signed {
        true => format!("(a >= {zero} && b > {most} - a) || (a < {zero} && b < {least} - a)"),
        false => format!("b > {most} - a"),
    };
    let overflows_sub = match is_signed {
        true => format!("(b >= {zero} && a < {least} + b) || (b < {zero} && a > {most} + b)"),
        false => "b > a".to_owned(),
    };
    // The magnitudes are unsigned, so that the smallest value has one too.
    let magnitude = |x: &str| match is_signed {
        true => format!("select({unsigned}({x}), {unsigned}(0) - {unsigned}({x}), {x} < {zero})"),
        false => x.to_owned(),
    };
    let overflows_mul = match is_signed {
        true => {
            let limit = if bits == 64 { "9223372036854775807lu" } else { "2147483647u" };
            format!(
                "    let m = {};\n    let n = {};\n    var limit = {limit};\n    if ((a < {zero}) != (b < {zero})) {{ limit = limit + {unsigned}(1); }}\n    let is_over = m != {unsigned}(0) && n > limit / max(m, {unsigned}(1));\n",
                magnitude("a"),
                magnitude("b")
            )
        }
        false => format!("    let is_over = a != {zero} && b > {most} / max(a, {one});\n"),
    };
    match name {
        "add" => two(format!("    if ({overflows_add}) {{ {fail} }}\n    return a + b;\n")),
        "sub" => two(format!("    if ({overflows_sub}) {{ {fail} }}\n    return a - b;\n")),
        "mul" => two(format!("{overflows_mul}    if (is_over) {{ {fail} }}\n    return a * b;\n")),
        "div" | "rem" => {
            let sign = if name == "div" { "/" } else { "%" };
            let over = if is_signed { format!(" || (a == {least} && b == -{one})") } else { String::new() };
            two(format!("    if (b == {zero}{over}) {{ {fail} return {zero}; }}\n    return a {sign} b;\n"))
        }
        "rem_euclid" => {
            let over = if is_signed { format!(" || (a == {least} && b == -{one})") } else { String::new() };
            let fix = if is_signed { format!("    if (r < {zero}) {{ r = select(r - b, r + b, b >= {zero}); }}\n") } else { String::new() };
            two(format!("    if (b == {zero}{over}) {{ {fail} return {zero}; }}\n    var r = a % b;\n{fix}    return r;\n"))
        }
        "neg" if is_signed => single(format!("    if (a == {least}) {{ {fail} }}\n    return {zero} - a;\n")),
        "neg" => single(format!("    if (a != {zero}) {{ {fail} }}\n    return {zero} - a;\n")),
        "wrapping_neg" => single(format!("    return {zero} - a;\n")),
        "abs" if ty.starts_with('f') => single("    return abs(a);\n".into()),
        "abs" => single(format!("    if (a == {least}) {{ {fail} }}\n    return select(a, {zero} - a, a < {zero});\n")),
        "wrapping_abs" => single(format!("    return select(a, {zero} - a, a < {zero});\n")),
        "shl" | "shr" => {
            let sign = if name == "shl" { "<<" } else { ">>" };
            shift(format!("    if (b > {max_shift}u) {{ {fail} }}\n    return a {sign} (b & {max_shift}u);\n"))
        }
        "wrapping_shl" => shift(format!("    return a << (b & {max_shift}u);\n")),
        "wrapping_shr" => shift(format!("    return a >> (b & {max_shift}u);\n")),
        "rotate_left" | "rotate_right" => {
            let (there, back) = if name == "rotate_left" { ("<<", ">>") } else { (">>", "<<") };
            shift(format!(
                "    let n = b & {max_shift}u;\n    let x = {unsigned}(a);\n    return {ty}((x {there} n) | (x {back} (({bits}u - n) & {max_shift}u)));\n"
            ))
        }
        "wrapping_add" => two("    return a + b;\n".into()),
        "wrapping_sub" => two("    return a - b;\n".into()),
        "wrapping_mul" => two("    return a * b;\n".into()),
        "saturating_add" => {
            let bound = if is_signed { format!("select({most}, {least}, a < {zero})") } else { most.clone() };
            two(format!("    if ({overflows_add}) {{ return {bound}; }}\n    return a + b;\n"))
        }
        "saturating_sub" => {
            let bound = if is_signed { format!("select({most}, {least}, a < {zero})") } else { zero.clone() };
            two(format!("    if ({overflows_sub}) {{ return {bound}; }}\n    return a - b;\n"))
        }
        "saturating_mul" => {
            let bound = if is_signed { format!("select({most}, {least}, (a < {zero}) != (b < {zero}))") } else { most.clone() };
            two(format!("{overflows_mul}    if (is_over) {{ return {bound}; }}\n    return a * b;\n"))
        }
        "abs_diff" => two("    if (a > b) { return a - b; }\n    return b - a;\n".into()),
        "pow" => {
            let over = overflows_mul.replace("let is_over", "is_over");
            format!(
                "fn {name}_{ty}(base: {ty}, exponent: u32) -> {ty} {{\n    var result = {one};\n    var a = base;\n    var e = exponent;\n    loop {{\n        if (e == 0u || failed != 0u) {{ break; }}\n        if ((e & 1u) == 1u) {{ result = pow_step_{ty}(result, a); }}\n        e = e >> 1u;\n        if (e != 0u) {{ a = pow_step_{ty}(a, a); }}\n    }}\n    return result;\n}}\nfn pow_step_{ty}(a: {ty}, b: {ty}) -> {ty} {{\n    var is_over = false;\n{over}    if (is_over) {{ {fail} }}\n    return a * b;\n}}\n"
            )
        }
        "wrapping_pow" => format!(
            "fn {name}_{ty}(base: {ty}, exponent: u32) -> {ty} {{\n    var result = {one};\n    var a = base;\n    var e = exponent;\n    loop {{\n        if (e == 0u) {{ break; }}\n        if ((e & 1u) == 1u) {{ result = result * a; }}\n        e = e >> 1u;\n        a = a * a;\n    }}\n    return result;\n}}\n"
        ),
        "signum" if ty.starts_with('i') => single(format!("    return select(select({zero}, {one}, a > {zero}), -{one}, a < {zero});\n")),
        "count_ones" | "leading_zeros" | "trailing_zeros" => {
            let of = |x: &str| match name {
                "count_ones" => format!("countOneBits({x})"),
                "leading_zeros" => format!("countLeadingZeros({x})"),
                _ => format!("countTrailingZeros({x})"),
            };
            let body = match (bits, name) {
                (32, _) => format!("    return {};\n", of("u32(a)")),
                (_, "count_ones") => format!("    let x = u64(a);\n    return {} + {};\n", of("u32(x >> 32u)"), of("u32(x & 4294967295lu)")),
                (_, "leading_zeros") => format!("    let x = u64(a);\n    let high = u32(x >> 32u);\n    return select({}, 32u + {}, high == 0u);\n", of("high"), of("u32(x & 4294967295lu)")),
                _ => format!("    let x = u64(a);\n    let low = u32(x & 4294967295lu);\n    return select({}, 32u + {}, low == 0u);\n", of("low"), of("u32(x >> 32u)")),
            };
            format!("fn {name}_{ty}(a: {ty}) -> u32 {{\n{body}}}\n")
        }
        "clamp" => {
            let bad = if ty.starts_with('f') { "!(low <= high)" } else { "low > high" };
            format!("fn {name}_{ty}(a: {ty}, low: {ty}, high: {ty}) -> {ty} {{\n    if ({bad}) {{ {fail} return a; }}\n    if (a < low) {{ return low; }}\n    if (a > high) {{ return high; }}\n    return a;\n}}\n")
        }
        "min" | "max" => {
            let sign = if name == "min" { "<" } else { ">" };
            let nan = if ty == "f32" { "    if (is_nan_bits(a)) { return b; }\n    if (is_nan_bits(b)) { return a; }\n" } else { "" };
            let own = if ty == "f32" { NAN_BITS.replace("NAME", &format!("{name}_")) } else { String::new() };
            let nan = nan.replace("is_nan_bits", &format!("{name}_is_nan"));
            format!("{own}{}", two(format!("{nan}    if (b {sign} a) {{ return b; }}\n    return a;\n")))
        }
        "from_f32" => {
            let (low, high) = match ty {
                "i32" => ("-2147483648.0f", "2147483648.0f"),
                "u32" => ("0.0f", "4294967296.0f"),
                "i64" => ("-9223372036854775808.0f", "9223372036854775808.0f"),
                _ => ("0.0f", "18446744073709551616.0f"),
            };
            format!("fn {name}_{ty}(a: f32) -> {ty} {{\n    if ((bitcast<u32>(a) & 2147483647u) > 2139095040u) {{ return {zero}; }}\n    if (a <= {low}) {{ return {least}; }}\n    if (a >= {high}) {{ return {most}; }}\n    return {ty}(a);\n}}\n")
        }
        "from_f64" => {
            let (low, high) = match ty {
                "i32" => ("-2147483648.0lf", "2147483648.0lf"),
                "u32" => ("0.0lf", "4294967296.0lf"),
                "i64" => ("-9223372036854775808.0lf", "9223372036854775808.0lf"),
                _ => ("0.0lf", "18446744073709551616.0lf"),
            };
            format!("fn {name}_{ty}(a: f64) -> {ty} {{\n    if (!(a <= 0.0lf) && !(a >= 0.0lf)) {{ return {zero}; }}\n    if (a <= {low}) {{ return {least}; }}\n    if (a >= {high}) {{ return {most}; }}\n    return {ty}(a);\n}}\n")
        }
        "from_bits" => format!("fn from_bits_{ty}(a: u32) -> {ty} {{ return bitcast<{ty}>(a); }}\n"),
        "to_bits" => format!("fn to_bits_{ty}(a: {ty}) -> u32 {{ return bitcast<u32>(a); }}\n"),
        "is_nan" => format!("fn is_nan_{ty}(a: {ty}) -> bool {{ return (bitcast<u32>(a) & 2147483647u) > 2139095040u; }}\n"),
        // Mesa 22.3 compares a widened number with a constant wrongly (`i64(-1) < 0` is false), unless an operation that it
        // cannot remove is between the two.
        "widen" => "fn widen_i32(a: i32) -> i64 { return i64(a) ^ i64(u64(p.zero)); }\n".into(),
        // Exclusive or with a zero that no compiler knows: the product has its own rounding.
        "rounded" if ty == "f32" => "fn rounded_f32(a: f32) -> f32 { return bitcast<f32>(bitcast<u32>(a) ^ p.zero); }\n".into(),
        "rounded" => "fn rounded_f64(a: f64) -> f64 { return select(a, 0.0lf, p.zero != 0u); }\n".into(),
        "floor" | "ceil" | "trunc" => single(format!("    return {name}(a);\n")),
        "round" => single(format!(
            "    let whole = trunc(a);\n    if (abs(a - whole) >= {}) {{ return whole + sign(a); }}\n    return whole;\n",
            if bits == 64 { "0.5lf" } else { "0.5f" }
        )),
        "fract" => single("    return a - trunc(a);\n".into()),
        "recip" => single(format!("    return {one} / a;\n")),
        "sqrt" if bits == 64 => single("    return sqrt(a);\n".into()),
        "sqrt" => SQRT.into(),
        "signum" => single("    if ((bitcast<u32>(a) & 2147483647u) > 2139095040u) { return a; }\n    return bitcast<f32>((bitcast<u32>(a) & 2147483648u) | 1065353216u);\n".into()),
        "copysign" => two("    return bitcast<f32>((bitcast<u32>(a) & 2147483647u) | (bitcast<u32>(b) & 2147483648u));\n".into()),
        "powi" => "fn powi_f32(base: f32, exponent: i32) -> f32 {\n    var e = select(u32(exponent), 0u - u32(exponent), exponent < 0i);\n    var a = base;\n    var result = 1.0f;\n    loop {\n        if ((e & 1u) == 1u) { result = rounded_f32(result * a); }\n        e = e >> 1u;\n        if (e == 0u) { break; }\n        a = rounded_f32(a * a);\n    }\n    if (exponent < 0i) { return 1.0f / result; }\n    return result;\n}\n".into(),
        "exp" => EXP.into(),
        "ln" => LN.into(),
        "sin" => SIN_COS.replace("NAME", "sin").replace("QUADRANT", "0u"),
        "cos" => SIN_COS.replace("NAME", "cos").replace("QUADRANT", "1u"),
        other => format!("// no helper {other}\n"),
    }
}

const NAN_BITS: &str =
    "fn NAMEis_nan(a: f32) -> bool { return (bitcast<u32>(a) & 2147483647u) > 2139095040u; }\n";

/// The device's root with one step of Newton's method on the exact remainder: within 1 unit in the last place, whatever the
/// device's own does.
const SQRT: &str = "fn sqrt_f32(a: f32) -> f32 {
    let s = sqrt(a);
    if (!(a > 1.0e-30f && a < 3.0e38f)) { return s; }
    let c = sqrt_rounded(4097.0f * s);
    let high = sqrt_rounded(c - sqrt_rounded(c - s));
    let low = sqrt_rounded(s - high);
    let square = sqrt_rounded(s * s);
    let rest = sqrt_rounded(sqrt_rounded(sqrt_rounded(high * high) - square) + sqrt_rounded(2.0f * sqrt_rounded(high * low))) + sqrt_rounded(low * low);
    return s + (sqrt_rounded(a - square) - rest) / (2.0f * s);
}
fn sqrt_rounded(a: f32) -> f32 { return bitcast<f32>(bitcast<u32>(a) ^ p.zero); }
";

/// Cephes' `expf`: a polynomial of degree 7 on [-ln 2 / 2, ln 2 / 2].
const EXP: &str = "fn exp_f32(a: f32) -> f32 {
    if ((bitcast<u32>(a) & 2147483647u) > 2139095040u) { return a; }
    if (a > 88.72283f) { return bitcast<f32>(2139095040u ^ p.zero); }
    if (a < -103.97208f) { return 0.0f; }
    let n = floor(rounded_f32(rounded_f32(a * 1.44269504088896341f) + 0.5f));
    let r = rounded_f32(rounded_f32(a - rounded_f32(n * 0.693359375f)) - rounded_f32(n * -2.12194440e-4f));
    var y = 1.9875691500e-4f;
    y = rounded_f32(rounded_f32(y * r) + 1.3981999507e-3f);
    y = rounded_f32(rounded_f32(y * r) + 8.3334519073e-3f);
    y = rounded_f32(rounded_f32(y * r) + 4.1665795894e-2f);
    y = rounded_f32(rounded_f32(y * r) + 1.6666665459e-1f);
    y = rounded_f32(rounded_f32(y * r) + 5.0000001201e-1f);
    y = rounded_f32(rounded_f32(rounded_f32(rounded_f32(y * r) * r) + r) + 1.0f);
    let half = i32(n) / 2i;
    let rest = i32(n) - half;
    return (y * bitcast<f32>(u32(half + 127i) << 23u)) * bitcast<f32>(u32(rest + 127i) << 23u);
}
";

/// Cephes' `logf`.
const LN: &str = "fn ln_f32(a: f32) -> f32 {
    let bits = bitcast<u32>(a);
    if ((bits & 2147483647u) > 2139095040u || bits == 2139095040u) { return a; }
    if ((bits & 2147483647u) == 0u) { return bitcast<f32>(4286578688u ^ p.zero); }
    if (bits > 2147483647u) { return bitcast<f32>(2143289344u ^ p.zero); }
    var x = bits;
    var e = 0i;
    // Numbers too small for a leading one are shifted until they have it.
    if (x < 8388608u) {
        let shift = countLeadingZeros(x) - 8u;
        x = x << shift;
        e = 1i - i32(shift);
    } else {
        e = i32(x >> 23u);
    }
    e = e - 126i;
    var m = bitcast<f32>((x & 8388607u) | 1056964608u);
    if (m < 0.707106781186547524f) {
        e = e - 1i;
        m = rounded_f32(rounded_f32(m + m) - 1.0f);
    } else {
        m = rounded_f32(m - 1.0f);
    }
    let z = rounded_f32(m * m);
    var y = 7.0376836292e-2f;
    y = rounded_f32(rounded_f32(y * m) - 1.1514610310e-1f);
    y = rounded_f32(rounded_f32(y * m) + 1.1676998740e-1f);
    y = rounded_f32(rounded_f32(y * m) - 1.2420140846e-1f);
    y = rounded_f32(rounded_f32(y * m) + 1.4249322787e-1f);
    y = rounded_f32(rounded_f32(y * m) - 1.6668057665e-1f);
    y = rounded_f32(rounded_f32(y * m) + 2.0000714765e-1f);
    y = rounded_f32(rounded_f32(y * m) - 2.4999993993e-1f);
    y = rounded_f32(rounded_f32(y * m) + 3.3333331174e-1f);
    y = rounded_f32(rounded_f32(y * m) * z);
    let n = f32(e);
    y = rounded_f32(y + rounded_f32(-2.12194440e-4f * n));
    y = rounded_f32(y - rounded_f32(0.5f * z));
    return rounded_f32(m + y) + rounded_f32(0.693359375f * n);
}
";

/// Cephes' `sinf` and `cosf` with reduction in four parts; larger arguments are done at home.
const SIN_COS: &str = "fn NAME_f32(a: f32) -> f32 {
    if (!(abs(a) < 4096.0f)) { failed = failed | 1u; return 0.0f; }
    let n = floor(rounded_f32(rounded_f32(a * 0.63661977236758134f) + 0.5f));
    let high = rounded_f32(a - rounded_f32(n * 1.5703125f));
    let second = rounded_f32(n * 4.837512969970703125e-4f);
    let middle = rounded_f32(high - second);
    let third = rounded_f32(n * 7.54953362047672271729e-8f);
    let r = rounded_f32(middle - third);
    // What the subtractions have rounded away.
    let rest = rounded_f32(rounded_f32(rounded_f32(high - middle) - second) + rounded_f32(rounded_f32(middle - r) - third)) - rounded_f32(n * 2.56334406825708960298e-12f);
    let quadrant = (u32(i32(n)) + QUADRANT) & 3u;
    let z = rounded_f32(r * r);
    var y = 0.0f;
    if ((quadrant & 1u) == 0u) {
        y = rounded_f32(rounded_f32(-1.9515295891e-4f * z) + 8.3321608736e-3f);
        y = rounded_f32(rounded_f32(y * z) - 1.6666654611e-1f);
        y = rounded_f32(rounded_f32(rounded_f32(y * z) * r) + rest) + r;
    } else {
        y = rounded_f32(rounded_f32(2.443315711809948e-5f * z) - 1.388731625493765e-3f);
        y = rounded_f32(rounded_f32(y * z) + 4.166664568298827e-2f);
        y = rounded_f32(rounded_f32(rounded_f32(rounded_f32(y * z) * z) - rounded_f32(r * rest)) - rounded_f32(0.5f * z)) + 1.0f;
    }
    return select(y, -y, (quadrant & 2u) != 0u);
}
";

/// A helper in CUDA C.
pub(super) fn cuda(name: &str, ty: &str) -> String {
    if name == "at" {
        return "__device__ unsigned long long at(unsigned long long index, unsigned long long len, unsigned &failed) {\n    if (index >= len) { failed |= 1; return 0; }\n    return index;\n}\n".into();
    }
    let (c, unsigned, least, most) = match ty {
        "i32" => ("int", "unsigned", "(-2147483647 - 1)", "2147483647"),
        "u32" => ("unsigned", "unsigned", "0u", "4294967295u"),
        "i64" => ("long long", "unsigned long long", "(-9223372036854775807ll - 1)", "9223372036854775807ll"),
        "u64" => ("unsigned long long", "unsigned long long", "0ull", "18446744073709551615ull"),
        "f64" => ("double", "unsigned long long", "", ""),
        _ => ("float", "unsigned", "", ""),
    };
    let is_signed = ty.starts_with('i');
    let bits = if ty.ends_with("64") { 64 } else { 32 };
    let max_shift = bits - 1;
    let f = if ty == "f32" { "f" } else { "" };
    let function = |parameters: &str, body: &str| {
        format!("__device__ {c} {name}_{ty}({parameters}) {{\n    {body}\n}}\n")
    };
    let pair = format!("{c} a, {c} b");
    let pair_failing = format!("{c} a, {c} b, unsigned &failed");
    let shift = format!("{c} a, unsigned b");
    let wrap = |sign: &str| format!("({c})(({unsigned})a {sign} ({unsigned})b)");
    let over_add = if is_signed {
        format!("(b > 0 && a > {most} - b) || (b < 0 && a < {least} - b)")
    } else {
        format!("b > {most} - a")
    };
    let over_sub = if is_signed {
        format!("(b < 0 && a > {most} + b) || (b > 0 && a < {least} + b)")
    } else {
        "b > a".into()
    };
    let over_mul = match (is_signed, bits) {
        (true, 32) => format!("(long long)a * b > {most} || (long long)a * b < {least}"),
        (false, 32) => "(unsigned long long)a * b > 4294967295ull".into(),
        (true, _) => {
            "__mul64hi(a, b) != ((long long)((unsigned long long)a * (unsigned long long)b) >> 63)".into()
        }
        _ => "__umul64hi(a, b) != 0".into(),
    };
    let bad_div = if is_signed { format!("b == 0 || (a == {least} && b == -1)") } else { "b == 0".into() };
    match name {
        "add" => function(&pair_failing, &format!("if ({over_add}) failed |= 1;\n    return {};", wrap("+"))),
        "sub" => function(&pair_failing, &format!("if ({over_sub}) failed |= 1;\n    return {};", wrap("-"))),
        "mul" => function(&pair_failing, &format!("if ({over_mul}) failed |= 1;\n    return {};", wrap("*"))),
        "div" | "rem" => {
            let sign = if name == "div" { "/" } else { "%" };
            function(
                &pair_failing,
                &format!("if ({bad_div}) {{ failed |= 1; return 0; }}\n    return a {sign} b;"),
            )
        }
        "rem_euclid" => {
            let fix = if is_signed { "if (r < 0) r = b > 0 ? r + b : r - b;\n    " } else { "" };
            function(
                &pair_failing,
                &format!(
                    "if ({bad_div}) {{ failed |= 1; return 0; }}\n    {c} r = a % b;\n    {fix}return r;"
                ),
            )
        }
        "neg" => {
            let bad = if is_signed { format!("a == {least}") } else { "a != 0".into() };
            function(
                &format!("{c} a, unsigned &failed"),
                &format!("if ({bad}) failed |= 1;\n    return ({c})(0 - ({unsigned})a);"),
            )
        }
        "wrapping_neg" => function(&format!("{c} a"), &format!("return ({c})(0 - ({unsigned})a);")),
        "abs" if ty.starts_with('f') => function(&format!("{c} a"), &format!("return fabs{f}(a);")),
        "abs" => function(
            &format!("{c} a, unsigned &failed"),
            &format!("if (a == {least}) failed |= 1;\n    return a < 0 ? ({c})(0 - ({unsigned})a) : a;"),
        ),
        "wrapping_abs" => {
            function(&format!("{c} a"), &format!("return a < 0 ? ({c})(0 - ({unsigned})a) : a;"))
        }
        "shl" => function(
            &format!("{shift}, unsigned &failed"),
            &format!(
                "if (b > {max_shift}) failed |= 1;\n    return ({c})(({unsigned})a << (b & {max_shift}));"
            ),
        ),
        "shr" => function(
            &format!("{shift}, unsigned &failed"),
            &format!("if (b > {max_shift}) failed |= 1;\n    return a >> (b & {max_shift});"),
        ),
        "wrapping_shl" => function(&shift, &format!("return ({c})(({unsigned})a << (b & {max_shift}));")),
        "wrapping_shr" => function(&shift, &format!("return a >> (b & {max_shift});")),
        "rotate_left" | "rotate_right" => {
            let (there, back) = if name == "rotate_left" { ("<<", ">>") } else { (">>", "<<") };
            function(
                &shift,
                &format!(
                    "{unsigned} x = ({unsigned})a;\n    b &= {max_shift};\n    return ({c})((x {there} b) | (x {back} (({bits} - b) & {max_shift})));"
                ),
            )
        }
        "wrapping_add" => function(&pair, &format!("return {};", wrap("+"))),
        "wrapping_sub" => function(&pair, &format!("return {};", wrap("-"))),
        "wrapping_mul" => function(&pair, &format!("return {};", wrap("*"))),
        "saturating_add" | "saturating_sub" => {
            let (over, sign) = if name == "saturating_add" { (over_add, "+") } else { (over_sub, "-") };
            let bound = match (is_signed, sign) {
                (true, _) => format!("a < 0 ? {least} : {most}"),
                (false, "+") => most.into(),
                _ => "0".into(),
            };
            function(&pair, &format!("if ({over}) return {bound};\n    return {};", wrap(sign)))
        }
        "saturating_mul" => {
            let bound =
                if is_signed { format!("(a < 0) != (b < 0) ? {least} : {most}") } else { most.into() };
            function(&pair, &format!("if ({over_mul}) return {bound};\n    return {};", wrap("*")))
        }
        "abs_diff" => function(&pair, "return a > b ? a - b : b - a;"),
        "pow" => function(
            &format!("{c} base, unsigned e, unsigned &failed"),
            &format!(
                "{c} result = 1, x = base;\n    while (e && !failed) {{\n        if (e & 1) {{ {c} a = result, b = x; if ({over_mul}) failed |= 1; result = {w}; }}\n        e >>= 1;\n        if (e) {{ {c} a = x, b = x; if ({over_mul}) failed |= 1; x = {w}; }}\n    }}\n    return result;",
                w = wrap("*")
            ),
        ),
        "wrapping_pow" => function(
            &format!("{c} base, unsigned e"),
            &format!(
                "{unsigned} result = 1, x = ({unsigned})base;\n    while (e) {{\n        if (e & 1) result *= x;\n        e >>= 1;\n        x *= x;\n    }}\n    return ({c})result;"
            ),
        ),
        "signum" if is_signed => function(&format!("{c} a"), "return a > 0 ? 1 : a < 0 ? -1 : 0;"),
        "count_ones" => format!(
            "__device__ unsigned {name}_{ty}({c} a) {{ return __popc{}(a); }}\n",
            if bits == 64 { "ll" } else { "" }
        ),
        "leading_zeros" => format!(
            "__device__ unsigned {name}_{ty}({c} a) {{ return __clz{}(a); }}\n",
            if bits == 64 { "ll" } else { "" }
        ),
        "trailing_zeros" => format!(
            "__device__ unsigned {name}_{ty}({c} a) {{ return a == 0 ? {bits} : __ffs{}(a) - 1; }}\n",
            if bits == 64 { "ll" } else { "" }
        ),
        "clamp" => {
            let bad = if ty.starts_with('f') { "!(low <= high)" } else { "low > high" };
            function(
                &format!("{c} a, {c} low, {c} high, unsigned &failed"),
                &format!(
                    "if ({bad}) {{ failed |= 1; return a; }}\n    return a < low ? low : a > high ? high : a;"
                ),
            )
        }
        "min" | "max" if ty.starts_with('f') => function(
            &pair,
            &format!(
                "if (a != a) return b;\n    if (b != b) return a;\n    return b {} a ? b : a;",
                if name == "min" { "<" } else { ">" }
            ),
        ),
        "min" | "max" => {
            function(&pair, &format!("return b {} a ? b : a;", if name == "min" { "<" } else { ">" }))
        }
        "from_f32" | "from_f64" => {
            let from = if name == "from_f32" { "float" } else { "double" };
            let (low, high) = match ty {
                "i32" => ("-2147483648.0", "2147483648.0"),
                "u32" => ("0.0", "4294967296.0"),
                "i64" => ("-9223372036854775808.0", "9223372036854775808.0"),
                _ => ("0.0", "18446744073709551616.0"),
            };
            function(
                &format!("{from} a"),
                &format!(
                    "if (a != a) return 0;\n    if (a <= ({from}){low}) return {least};\n    if (a >= ({from}){high}) return {most};\n    return ({c})a;"
                ),
            )
        }
        "from_bits" if ty == "f32" => function("unsigned a", "return __uint_as_float(a);"),
        "from_bits" => function("unsigned long long a", "return __longlong_as_double((long long)a);"),
        "to_bits" if ty == "f32" => {
            format!("__device__ unsigned to_bits_{ty}(float a) {{ return __float_as_uint(a); }}\n")
        }
        "to_bits" => format!(
            "__device__ unsigned long long to_bits_{ty}(double a) {{ return (unsigned long long)__double_as_longlong(a); }}\n"
        ),
        "is_nan" => format!("__device__ bool is_nan_{ty}({c} a) {{ return a != a; }}\n"),
        "fract" => function(&format!("{c} a"), &format!("return a - trunc{f}(a);")),
        "recip" => function(&format!("{c} a"), "return 1 / a;"),
        "signum" => function(&format!("{c} a"), &format!("return a != a ? a : copysign{f}(1, a);")),
        "powi" => function(
            &format!("{c} x, int exponent"),
            &format!(
                "unsigned e = exponent < 0 ? 0u - (unsigned)exponent : (unsigned)exponent;\n    {c} result = 1;\n    for (;;) {{\n        if (e & 1) result *= x;\n        e >>= 1;\n        if (!e) break;\n        x *= x;\n    }}\n    return exponent < 0 ? 1 / result : result;"
            ),
        ),
        // Within 1 unit in the last place: CUDA's own for `float` have up to 4.
        "powf" if ty == "f32" => function(&pair, "return (float)pow((double)a, (double)b);"),
        "tan" if ty == "f32" => function("float a", "return (float)tan((double)a);"),
        "atan2" if ty == "f32" => function(&pair, "return (float)atan2((double)a, (double)b);"),
        "hypot" if ty == "f32" => function(&pair, "return (float)hypot((double)a, (double)b);"),
        "ln" => function(&format!("{c} a"), &format!("return log{f}(a);")),
        "powf" => function(&pair, "return pow(a, b);"),
        "mul_add" => function(&format!("{c} a, {c} b, {c} d"), &format!("return fma{f}(a, b, d);")),
        "copysign" | "atan2" | "hypot" => function(&pair, &format!("return {name}{f}(a, b);")),
        "rounded" => String::new(),
        other => function(&format!("{c} a"), &format!("return {other}{f}(a);")),
    }
}
