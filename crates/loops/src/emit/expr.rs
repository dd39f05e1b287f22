//! Expressions, in either language.

use super::print::Printer;
use crate::{
    ir::{Binary, Expr, Kind, Role, Ty},
    problem::{Problem, Result},
};

impl Printer<'_> {
    /// The name of a type.
    pub(super) fn ty(&mut self, ty: &Ty) -> String {
        match ty {
            Ty::I64 | Ty::U64 | Ty::Isize | Ty::Usize => self.needs.int64 = true,
            Ty::F64 => self.needs.float64 = true,
            _ => {}
        }
        let (wgsl, cuda) = match ty {
            Ty::I32 => ("i32", "int"),
            Ty::U32 => ("u32", "unsigned"),
            Ty::I64 | Ty::Isize => ("i64", "long long"),
            Ty::U64 | Ty::Usize => ("u64", "unsigned long long"),
            Ty::F32 => ("f32", "float"),
            Ty::F64 => ("f64", "double"),
            Ty::Bool => ("bool", "bool"),
            Ty::Unit | Ty::Var(_) => ("", "void"),
            Ty::Array(element, len) => {
                let element = self.ty(element);
                return match self.is_wgsl() {
                    true => format!("array<{element}, {len}>"),
                    false => format!("Array<{element}, {len}>"),
                };
            }
            Ty::Struct(name) => return Self::safe(name),
        };
        (if self.is_wgsl() { wgsl } else { cuda }).to_owned()
    }

    /// The short name of a number's type, as in the names of helpers.
    pub(super) fn short(ty: &Ty) -> &'static str {
        match ty {
            Ty::I32 => "i32",
            Ty::U32 => "u32",
            Ty::I64 | Ty::Isize => "i64",
            Ty::U64 | Ty::Usize => "u64",
            Ty::F32 => "f32",
            Ty::F64 => "f64",
            _ => "bool",
        }
    }

    pub(super) fn int(&self, ty: &Ty, value: u64) -> String {
        match (self.is_wgsl(), ty.bits(), ty.is_signed()) {
            (true, 32, true) => format!("{value}i"),
            (true, 32, false) => format!("{value}u"),
            (true, _, true) => format!("{value}li"),
            (true, _, false) => format!("{value}lu"),
            (false, 32, true) => format!("{value}"),
            (false, 32, false) => format!("{value}u"),
            (false, _, true) => format!("{value}ll"),
            (false, _, false) => format!("{value}ull"),
        }
    }

    fn float(&self, ty: &Ty, value: f64) -> String {
        if *ty == Ty::F32 {
            let text = format!("{:?}", value as f32);
            format!("{text}f")
        } else {
            let text = format!("{value:?}");
            if self.is_wgsl() { format!("{text}lf") } else { text }
        }
    }

    /// Some value of a type.
    pub(super) fn zero(&self, ty: &Ty) -> String {
        match ty {
            Ty::Bool => "false".into(),
            Ty::F32 | Ty::F64 => self.float(ty, 0.0),
            Ty::Array(..) | Ty::Struct(_) => "{}".into(),
            ty => self.int(ty, 0),
        }
    }

    /// Calls a helper of the type, which may record a failure.
    fn helper(&mut self, name: &'static str, ty: &Ty, arguments: &[String], can_fail: bool) -> String {
        let short = Self::short(ty);
        self.helpers.insert((name, short.to_owned()));
        self.can_fail |= can_fail;
        if matches!(ty.bits(), 64) && ty.is_int() {
            self.needs.int64 = true;
        }
        let mut arguments = arguments.join(", ");
        if can_fail && !self.is_wgsl() {
            arguments.push_str(", failed");
        }
        format!("{name}_{short}({arguments})")
    }

    /// Several operands: those before one that needs statements go to variables first.
    fn operands(&mut self, list: &[&Expr]) -> Result<Vec<String>> {
        let last = list.iter().rposition(|expr| self.needs_statements(expr));
        let mut printed = Vec::new();
        for (number, expr) in list.iter().enumerate() {
            let mut text = self.expr(expr)?;
            if last.is_some_and(|last| number < last)
                && !matches!(expr.kind, Kind::Int(_) | Kind::Float(_) | Kind::Bool(_))
            {
                let temporary = self.temporary();
                self.declare(&temporary, &expr.ty, Some(&text));
                text = temporary;
            }
            printed.push(text);
        }
        Ok(printed)
    }

    fn needs_statements(&self, expr: &Expr) -> bool {
        match &expr.kind {
            Kind::If(..) | Kind::Block(_) => true,
            Kind::Binary(Binary::AndAnd | Binary::OrOr, a, b) => {
                self.needs_statements(a) || self.needs_statements(b) || self.may_fail(b)
            }
            Kind::Element(_, a) | Kind::Neg(a) | Kind::Not(a) | Kind::Cast(a) | Kind::Field(a, _) => {
                self.needs_statements(a)
            }
            Kind::Binary(_, a, b) | Kind::At(a, b) => self.needs_statements(a) || self.needs_statements(b),
            Kind::Method(_, list) | Kind::Call(_, list) | Kind::Array(list) | Kind::Struct(_, list) => {
                list.iter().any(|it| self.needs_statements(it))
            }
            _ => false,
        }
    }

    /// Whether evaluating the expression may record a failure.
    fn may_fail(&self, expr: &Expr) -> bool {
        match &expr.kind {
            Kind::Element(..)
            | Kind::At(..)
            | Kind::Method(..)
            | Kind::Call(..)
            | Kind::If(..)
            | Kind::Block(_) => true,
            Kind::Neg(a) => self.is_checked && a.ty.is_int() || self.may_fail(a),
            Kind::Not(a) | Kind::Cast(a) | Kind::Field(a, _) => self.may_fail(a),
            Kind::Binary(op, a, b) => {
                let is_int = a.ty.is_int();
                let own = match op {
                    Binary::Div | Binary::Rem => is_int,
                    Binary::Add | Binary::Sub | Binary::Mul | Binary::Shl | Binary::Shr => {
                        is_int && self.is_checked
                    }
                    _ => false,
                };
                own || self.may_fail(a) || self.may_fail(b)
            }
            Kind::Array(list) | Kind::Struct(_, list) => list.iter().any(|it| self.may_fail(it)),
            _ => false,
        }
    }

    /// An index within a number of elements, as the languages' own index.
    fn at(&mut self, index: &str, len: &str) -> String {
        self.helpers.insert(("at", String::new()));
        self.can_fail = true;
        self.needs.int64 = true;
        match self.is_wgsl() {
            true => format!("at({index}, {len})"),
            false => format!("at({index}, {len}, failed)"),
        }
    }

    /// `a * i + b` as a pair of constants.
    fn affine(&self, expr: &Expr) -> Option<(i64, i64)> {
        match &expr.kind {
            Kind::Local(0) if !self.in_function => Some((1, 0)),
            Kind::Int(value) => Some((0, i64::try_from(*value).ok()?)),
            Kind::Cast(inner) if inner.ty.is_int() && expr.ty.is_int() => self.affine(inner),
            Kind::Binary(op, a, b) => {
                let ((a1, b1), (a2, b2)) = (self.affine(a)?, self.affine(b)?);
                match op {
                    // A part that is negative may overflow, which the sum would hide.
                    Binary::Add | Binary::Mul if b1 < 0 || b2 < 0 => None,
                    Binary::Add => Some((a1.checked_add(a2)?, b1.checked_add(b2)?)),
                    Binary::Sub if a2 != 0 || b2 < 0 => None,
                    Binary::Sub => Some((a1.checked_sub(a2)?, b1.checked_sub(b2)?)),
                    Binary::Mul if a1 == 0 => Some((b1.checked_mul(a2)?, b1.checked_mul(b2)?)),
                    Binary::Mul if a2 == 0 => Some((b2.checked_mul(a1)?, b2.checked_mul(b1)?)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn element(&mut self, slice: usize, index: &Expr) -> Result<String> {
        let name = Self::safe(&self.body.slices[slice].name);
        if self.body.slices[slice].role == Role::Table {
            let index = self.expr(index)?;
            let at = self.at(&index, &format!("p.{name}_len"));
            return Ok(format!("{name}[{at}]"));
        }
        if let (Some((width, base)), Some((a, b))) = (self.layout.constant_rows[slice], self.affine(index))
            && a == width as i64
            && b >= base
            && b - base < width as i64
        {
            let (offset, u) = (b - base, if self.is_wgsl() { "u" } else { "" });
            return Ok(match (width, offset) {
                (1, _) => format!("{name}[item]"),
                (_, 0) => format!("{name}[{width}{u} * item]"),
                _ => format!("{name}[{width}{u} * item + {offset}{u}]"),
            });
        }
        self.uses_item_rows.insert(slice);
        self.needs.int64 = true;
        let index = self.expr(index)?;
        let at = self.at(&format!("{index} - {name}_row"), &format!("{name}_width"));
        Ok(format!("{name}[{name}_local + {at}]"))
    }

    pub(super) fn expr(&mut self, expr: &Expr) -> Result<String> {
        Ok(match &expr.kind {
            Kind::Int(value) if expr.ty.is_float() => self.float(&expr.ty, *value as f64),
            Kind::Int(value) => {
                let _ = self.ty(&expr.ty);
                self.int(&expr.ty, *value)
            }
            Kind::Float(value) => {
                let _ = self.ty(&expr.ty);
                self.float(&expr.ty, *value)
            }
            Kind::Bool(value) => value.to_string(),
            Kind::Local(0) if !self.in_function => {
                self.uses_index = true;
                let ty = self.locals[0].ty.clone();
                let _ = self.ty(&ty);
                self.name(0)
            }
            Kind::Local(id) => self.name(*id),
            Kind::Scalar(number) => {
                let scalar = &self.body.scalars[*number];
                let name = Self::safe(scalar.name.rsplit("::").next().unwrap_or(&scalar.name));
                let ty = scalar.ty.clone();
                let _ = self.ty(&ty);
                match ty {
                    Ty::Bool => format!("(p.{name} != 0{})", if self.is_wgsl() { "u" } else { "" }),
                    _ => format!("p.{name}"),
                }
            }
            Kind::Element(slice, index) => self.element(*slice, index)?,
            Kind::Len(slice) => {
                self.needs.int64 = true;
                format!("p.{}_len", Self::safe(&self.body.slices[*slice].name))
            }
            Kind::Neg(value) => {
                // A negative literal is one number: `-2147483648` is no negation that overflows.
                if let Kind::Int(number) = value.kind
                    && expr.ty.is_int()
                {
                    return Ok(self.negative(&expr.ty, number));
                }
                let text = self.expr(value)?;
                match expr.ty.is_int() {
                    true if self.is_checked => self.helper("neg", &expr.ty, &[text], true),
                    true => self.helper("wrapping_neg", &expr.ty, &[text], false),
                    false => format!("-({text})"),
                }
            }
            Kind::Not(value) => {
                let text = self.expr(value)?;
                if expr.ty == Ty::Bool { format!("!({text})") } else { format!("~({text})") }
            }
            Kind::Binary(op, left, right) => self.binary(*op, left, right, expr)?,
            Kind::Cast(value) => {
                let mut text = self.expr(value)?;
                if is_constant(value) {
                    text = self.at_run_time(&text, &value.ty);
                }
                self.cast(&text, &value.ty, &expr.ty)
            }
            Kind::Method(name, list) => self.method(name, list, expr)?,
            Kind::Call(name, list) => {
                let mut arguments = self.operands(&list.iter().collect::<Vec<_>>())?;
                if !self.is_wgsl() {
                    arguments.extend(["p".to_owned(), "failed".to_owned()]);
                }
                format!("{}({})", Self::safe(name), arguments.join(", "))
            }
            Kind::At(base, index) => {
                let texts = self.operands(&[base, index])?;
                let Ty::Array(_, len) = &base.ty else {
                    return Err(Problem::new(expr.span, "this is no array"));
                };
                let at = match index.kind {
                    Kind::Int(value) if value < *len => value.to_string(),
                    _ => {
                        let len = self.int(&Ty::Usize, *len);
                        self.at(&texts[1], &len)
                    }
                };
                let member = if self.is_wgsl() { "" } else { ".at" };
                format!("{}{member}[{at}]", texts[0])
            }
            Kind::Field(base, field) => format!("{}.{}", self.expr(base)?, Self::safe(field)),
            Kind::Array(list) => {
                let elements = self.operands(&list.iter().collect::<Vec<_>>())?.join(", ");
                let ty = self.ty(&expr.ty);
                if self.is_wgsl() { format!("{ty}({elements})") } else { format!("{ty}{{{{{elements}}}}}") }
            }
            Kind::Struct(name, list) => {
                let elements = self.operands(&list.iter().collect::<Vec<_>>())?.join(", ");
                let name = Self::safe(name);
                if self.is_wgsl() { format!("{name}({elements})") } else { format!("{name}{{{elements}}}") }
            }
            Kind::If(..) | Kind::Block(_) => {
                let temporary = self.temporary();
                self.declare(&temporary, &expr.ty, None);
                match &expr.kind {
                    Kind::If(condition, then, otherwise) => {
                        let condition = self.expr(condition)?;
                        self.open(format!("if ({condition}) {{"));
                        self.block_into(then, &temporary)?;
                        self.close();
                        self.open("else {");
                        self.block_into(otherwise, &temporary)?;
                        self.close();
                    }
                    Kind::Block(block) => self.block_into(block, &temporary)?,
                    _ => {}
                }
                temporary
            }
        })
    }

    /// A constant as a variable: WGSL refuses to compile operations on constants that overflow, and Rust wraps them.
    fn at_run_time(&mut self, text: &str, ty: &Ty) -> String {
        if !self.is_wgsl() {
            return text.to_owned();
        }
        let temporary = self.temporary();
        self.declare(&temporary, ty, Some(text));
        temporary
    }

    /// `-number`, which may be the smallest of its type.
    fn negative(&mut self, ty: &Ty, number: u64) -> String {
        let _ = self.ty(ty);
        let smallest = if ty.bits() == 32 { 1u64 << 31 } else { 1u64 << 63 };
        if number == smallest {
            let (most, one) = (self.int(ty, smallest - 1), self.int(ty, 1));
            return format!("(-{most} - {one})");
        }
        format!("(-{})", self.int(ty, number))
    }

    fn binary(&mut self, op: Binary, left: &Expr, right: &Expr, whole: &Expr) -> Result<String> {
        let ty = &left.ty;
        if matches!(op, Binary::AndAnd | Binary::OrOr) {
            if self.needs_statements(right) || self.may_fail(right) {
                let left = self.expr(left)?;
                let temporary = self.temporary();
                self.declare(&temporary, &Ty::Bool, Some(&left));
                let not = if op == Binary::AndAnd { "" } else { "!" };
                self.open(format!("if ({not}{temporary}) {{"));
                let right = self.expr(right)?;
                self.line(format!("{temporary} = {right};"));
                self.close();
                return Ok(temporary);
            }
            let (left, right) = (self.expr(left)?, self.expr(right)?);
            return Ok(format!("({left} {} {right})", if op == Binary::AndAnd { "&&" } else { "||" }));
        }
        let mut texts = self.operands(&[left, right])?;
        if is_constant(left) && is_constant(right) {
            texts[0] = self.at_run_time(&texts[0], &left.ty);
        }
        let (a, b) = (&texts[0], &texts[1]);
        let sign = match op {
            Binary::Add => "+",
            Binary::Sub => "-",
            Binary::Mul => "*",
            Binary::Div => "/",
            Binary::Rem => "%",
            Binary::And => "&",
            Binary::Or => "|",
            Binary::Xor => "^",
            Binary::Shl => "<<",
            Binary::Shr => ">>",
            Binary::Eq => "==",
            Binary::Ne => "!=",
            Binary::Lt => "<",
            Binary::Le => "<=",
            Binary::Gt => ">",
            Binary::Ge => ">=",
            Binary::AndAnd | Binary::OrOr => "",
        };
        if *ty == Ty::Bool && op == Binary::Xor {
            return Ok(format!("({a} != {b})"));
        }
        if ty.is_float() {
            return match op {
                Binary::Rem if self.is_wgsl() && !self.body.is_fast => Err(Problem::new(
                    whole.span,
                    "WGSL's `%` of floating-point numbers is not exact, as Rust's is",
                )),
                Binary::Rem if !self.is_wgsl() => {
                    Ok(format!("{}({a}, {b})", if *ty == Ty::F32 { "fmodf" } else { "fmod" }))
                }
                // Not to be fused with the next operation, nor to be put in another order: `(a + b) - a` is not `b`.
                Binary::Add | Binary::Sub | Binary::Mul | Binary::Div
                    if self.is_wgsl() && !self.body.is_fast =>
                {
                    Ok(self.helper("rounded", ty, &[format!("{a} {sign} {b}")], false))
                }
                _ => Ok(format!("({a} {sign} {b})")),
            };
        }
        if ty.is_int() {
            let is_literal = |expr: &Expr| matches!(expr.kind, Kind::Int(value) if value != 0);
            match op {
                Binary::Add | Binary::Sub | Binary::Mul if self.is_checked => {
                    let name = match op {
                        Binary::Add => "add",
                        Binary::Sub => "sub",
                        _ => "mul",
                    };
                    return Ok(self.helper(name, ty, &texts, true));
                }
                Binary::Add | Binary::Sub | Binary::Mul if ty.is_signed() && !self.is_wgsl() => {
                    let name = match op {
                        Binary::Add => "wrapping_add",
                        Binary::Sub => "wrapping_sub",
                        _ => "wrapping_mul",
                    };
                    return Ok(self.helper(name, ty, &texts, false));
                }
                Binary::Div | Binary::Rem if !is_literal(right) => {
                    return Ok(self.helper(if op == Binary::Div { "div" } else { "rem" }, ty, &texts, true));
                }
                Binary::Shl | Binary::Shr => {
                    if let Kind::Int(amount) = right.kind
                        && amount < u64::from(ty.bits())
                    {
                        let u = if self.is_wgsl() { "u" } else { "" };
                        // A signed left shift loses its high bits in CUDA C, as in Rust.
                        return Ok(format!("({a} {sign} {amount}{u})"));
                    }
                    let amount = match right.ty.bits() {
                        64 if self.is_checked => {
                            // An amount over 32 bits is over the width too.
                            let most = self.int(&right.ty, 255);
                            match self.is_wgsl() {
                                true => format!("u32(select({b}, {most}, {b} > {most}))"),
                                false => format!("(unsigned)({b} > {most} || {b} < 0 ? {most} : {b})"),
                            }
                        }
                        _ => {
                            let b = b.clone();
                            self.cast(&b, &right.ty, &Ty::U32)
                        }
                    };
                    let name = match (op == Binary::Shl, self.is_checked) {
                        (true, true) => "shl",
                        (false, true) => "shr",
                        (true, false) => "wrapping_shl",
                        (false, false) => "wrapping_shr",
                    };
                    return Ok(self.helper(name, ty, &[a.clone(), amount], self.is_checked));
                }
                _ => {}
            }
        }
        Ok(format!("({a} {sign} {b})"))
    }

    /// `value as T`.
    pub(super) fn cast(&mut self, value: &str, from: &Ty, to: &Ty) -> String {
        let printed = self.ty(to);
        let _ = self.ty(from);
        if Self::short(from) == Self::short(to) {
            return value.to_owned();
        }
        if from.is_float() && to.is_int() {
            let name = if *from == Ty::F32 { "from_f32" } else { "from_f64" };
            return self.helper(name, to, &[value.to_owned()], false);
        }
        if !self.is_wgsl() {
            return format!("({printed})({value})");
        }
        if *from == Ty::I32 && to.is_int() && to.bits() == 64 {
            let wide = self.helper("widen", from, &[value.to_owned()], false);
            return if to.is_signed() { wide } else { format!("{printed}({wide})") };
        }
        // First the width, then the sign: each conversion by itself is that of Rust.
        if from.is_int() && to.is_int() && from.bits() != to.bits() && from.is_signed() != to.is_signed() {
            let middle = match (from.is_signed(), to.bits()) {
                (true, 64) => "i64",
                (true, _) => "i32",
                (false, 64) => "u64",
                (false, _) => "u32",
            };
            return format!("{printed}({middle}({value}))");
        }
        if *from == Ty::Bool && to.bits() == 64 {
            return format!("{printed}(u32({value}))");
        }
        format!("{printed}({value})")
    }

    fn method(&mut self, name: &'static str, list: &[Expr], whole: &Expr) -> Result<String> {
        let texts = self.operands(&list.iter().collect::<Vec<_>>())?;
        let ty = list[0].ty.clone();
        let _ = self.ty(&ty);
        let refuse = |why: &str| Err(Problem::new(whole.span, format!("`{name}` of `{}` {why}", ty.rust())));
        if ty.is_int() {
            let can_fail = match name {
                "abs" | "pow" => self.is_checked,
                "rem_euclid" | "clamp" => true,
                _ => false,
            };
            return match name {
                "wrapping_add" | "wrapping_sub" | "wrapping_mul" | "wrapping_neg" | "saturating_add"
                | "saturating_sub" | "saturating_mul" | "abs_diff" | "rem_euclid" | "wrapping_shl"
                | "wrapping_shr" | "rotate_left" | "rotate_right" | "count_ones" | "leading_zeros"
                | "trailing_zeros" | "min" | "max" | "clamp" | "signum" => {
                    Ok(self.helper(name, &ty, &texts, can_fail))
                }
                "abs" if self.is_checked => Ok(self.helper("abs", &ty, &texts, true)),
                "abs" => Ok(self.helper("wrapping_abs", &ty, &texts, false)),
                "pow" if self.is_checked => Ok(self.helper("pow", &ty, &texts, true)),
                "pow" => Ok(self.helper("wrapping_pow", &ty, &texts, false)),
                "from_bits" => {
                    let to = whole.ty.clone();
                    Ok(self.helper("from_bits", &to, &texts, false))
                }
                _ => refuse("is a function that devices do not have"),
            };
        }
        if ty.is_float() {
            let is_double = ty == Ty::F64;
            return match name {
                "abs" | "floor" | "ceil" | "trunc" | "round" | "fract" | "recip" | "signum" | "min"
                | "max" | "copysign" | "is_nan" | "to_bits" | "powi"
                    if !(is_double
                        && self.is_wgsl()
                        && matches!(
                            name,
                            "copysign" | "signum" | "to_bits" | "is_nan" | "min" | "max" | "powi"
                        )) =>
                {
                    if name == "powi" && self.is_wgsl() {
                        self.helpers.insert(("rounded", "f32".into()));
                    }
                    Ok(self.helper(name, &ty, &texts, false))
                }
                "clamp" if !(is_double && self.is_wgsl()) => Ok(self.helper("clamp", &ty, &texts, true)),
                "sqrt" => Ok(self.helper("sqrt", &ty, &texts, false)),
                _ if self.is_wgsl() && is_double => refuse("is a function that WGSL does not have"),
                "exp" | "ln" if self.is_wgsl() && !self.body.is_fast => {
                    self.helpers.insert(("rounded", "f32".into()));
                    Ok(self.helper(name, &ty, &texts, false))
                }
                "sin" | "cos" if self.is_wgsl() && !self.body.is_fast => {
                    self.helpers.insert(("rounded", "f32".into()));
                    Ok(self.helper(name, &ty, &texts, true))
                }
                "exp" | "ln" | "sin" | "cos" | "exp2" | "log2" | "tan" | "tanh" | "atan" | "powf"
                | "atan2" | "mul_add"
                    if self.is_wgsl() && self.body.is_fast =>
                {
                    let builtin = match name {
                        "ln" => "log",
                        "powf" => "pow",
                        "mul_add" => "fma",
                        other => other,
                    };
                    Ok(format!("{builtin}({})", texts.join(", ")))
                }
                _ if self.is_wgsl() => {
                    refuse("is not exact to 2 units in the last place in WGSL: `#[parallel(fast)]` allows it")
                }
                "exp" | "ln" | "sin" | "cos" | "exp2" | "log2" | "log10" | "tan" | "tanh" | "atan"
                | "powf" | "atan2" | "hypot" | "mul_add" => Ok(self.helper(name, &ty, &texts, false)),
                _ => refuse("is a function that devices do not have"),
            };
        }
        refuse("is a function that devices do not have")
    }
}

/// Whether an expression is made of numbers only.
fn is_constant(expr: &Expr) -> bool {
    match &expr.kind {
        Kind::Int(_) | Kind::Float(_) => true,
        Kind::Neg(inner) | Kind::Not(inner) => is_constant(inner),
        _ => false,
    }
}
