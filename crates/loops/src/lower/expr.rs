//! Expressions.

use proc_macro2::Span;
use syn::{BinOp, Expr as Source, Lit, UnOp, spanned::Spanned};

use super::{Lower, Meaning, methods, plain_type, scalar_type};
use crate::{
    ir::{Binary, Block, Expr, Kind, Ty},
    problem::{Problem, Result},
    text::text,
};

/// The operator of an expression without assignment.
pub(super) fn operator(op: &BinOp) -> Option<Binary> {
    Some(match op {
        BinOp::Add(_) | BinOp::AddAssign(_) => Binary::Add,
        BinOp::Sub(_) | BinOp::SubAssign(_) => Binary::Sub,
        BinOp::Mul(_) | BinOp::MulAssign(_) => Binary::Mul,
        BinOp::Div(_) | BinOp::DivAssign(_) => Binary::Div,
        BinOp::Rem(_) | BinOp::RemAssign(_) => Binary::Rem,
        BinOp::BitAnd(_) | BinOp::BitAndAssign(_) => Binary::And,
        BinOp::BitOr(_) | BinOp::BitOrAssign(_) => Binary::Or,
        BinOp::BitXor(_) | BinOp::BitXorAssign(_) => Binary::Xor,
        BinOp::Shl(_) | BinOp::ShlAssign(_) => Binary::Shl,
        BinOp::Shr(_) | BinOp::ShrAssign(_) => Binary::Shr,
        BinOp::Eq(_) => Binary::Eq,
        BinOp::Ne(_) => Binary::Ne,
        BinOp::Lt(_) => Binary::Lt,
        BinOp::Le(_) => Binary::Le,
        BinOp::Gt(_) => Binary::Gt,
        BinOp::Ge(_) => Binary::Ge,
        BinOp::And(_) => Binary::AndAnd,
        BinOp::Or(_) => Binary::OrOr,
        _ => return None,
    })
}

impl Lower<'_> {
    pub(super) fn expr(&mut self, source: &Source) -> Result<Expr> {
        let span = source.span();
        match source {
            Source::Paren(inner) => self.expr(&inner.expr),
            Source::Group(inner) => self.expr(&inner.expr),
            // References are to places that do not change meanwhile: the value is the same.
            Source::Reference(reference) if reference.mutability.is_none() => self.expr(&reference.expr),
            Source::Unary(unary) => match unary.op {
                UnOp::Deref(_) => self.expr(&unary.expr),
                UnOp::Neg(_) => {
                    let value = self.expr(&unary.expr)?;
                    Ok(Expr { ty: value.ty.clone(), kind: Kind::Neg(Box::new(value)), span })
                }
                UnOp::Not(_) => {
                    let value = self.expr(&unary.expr)?;
                    Ok(Expr { ty: value.ty.clone(), kind: Kind::Not(Box::new(value)), span })
                }
                _ => self.refuse(source),
            },
            Source::Lit(literal) => self.literal(&literal.lit, span),
            Source::Path(path) => self.path(path, span),
            Source::Binary(binary) => self.binary(binary, span),
            Source::Cast(cast) => {
                let value = self.expr(&cast.expr)?;
                let Some(ty) = plain_type(&cast.ty).filter(|ty| ty.is_int() || ty.is_float()) else {
                    return Err(Problem::new(
                        cast.ty.span(),
                        format!("devices do not have the type `{}`", text(&cast.ty)),
                    ));
                };
                Ok(Expr { ty, kind: Kind::Cast(Box::new(value)), span })
            }
            Source::Index(index) => self.index(index, span),
            Source::Field(field) => {
                let base = self.expr(&field.base)?;
                let syn::Member::Named(member) = &field.member else { return self.refuse(source) };
                let Ty::Struct(name) = self.types.known(&base.ty) else { return self.refuse(source) };
                let structure = self.structure(&name, span)?;
                let found = structure.fields.iter().find(|(name, _)| member == name);
                let Some((name, ty)) = found else { return self.refuse(source) };
                Ok(Expr { ty: ty.clone(), kind: Kind::Field(Box::new(base), name.clone()), span })
            }
            Source::MethodCall(call) => self.method(call, span),
            Source::Call(call) => self.call(call, span),
            Source::If(branch) => self.if_value(branch, span),
            Source::Match(_) => self.match_value(source),
            Source::Block(block) if block.label.is_none() => {
                let block = self.block(&block.block, true)?;
                let ty = block.value.as_ref().map_or(Ty::Unit, |value| value.ty.clone());
                Ok(Expr { ty, kind: Kind::Block(block), span })
            }
            Source::Array(array) => {
                let elements =
                    array.elems.iter().map(|element| self.expr(element)).collect::<Result<Vec<_>>>()?;
                let Some(first) = elements.first() else { return self.refuse(source) };
                let ty = first.ty.clone();
                for element in &elements {
                    self.unify(&ty, &element.ty, element.span)?;
                }
                Ok(Expr {
                    ty: Ty::Array(Box::new(ty), elements.len() as u64),
                    kind: Kind::Array(elements),
                    span,
                })
            }
            Source::Repeat(repeat) => {
                let element = self.expr(&repeat.expr)?;
                let Source::Lit(syn::ExprLit { lit: Lit::Int(len), .. }) = &*repeat.len else {
                    return Err(Problem::new(
                        repeat.len.span(),
                        "the length of an array on devices must be a number",
                    ));
                };
                let len: u64 =
                    len.base10_parse().map_err(|_| Problem::new(span, "this array is too long"))?;
                if !(1..=256).contains(&len) {
                    return Err(Problem::new(span, "an array on devices has from 1 to 256 elements"));
                }
                let ty = Ty::Array(Box::new(element.ty.clone()), len);
                Ok(Expr { ty, kind: Kind::Array(vec![element; len as usize]), span })
            }
            Source::Struct(literal) => {
                let name = text(&literal.path);
                let structure = self.structure(&name, span)?;
                let mut values = Vec::new();
                for (field, ty) in &structure.fields {
                    let given = literal
                        .fields
                        .iter()
                        .find(|it| matches!(&it.member, syn::Member::Named(name) if name == field));
                    let Some(given) = given else { return self.refuse(source) };
                    let value = self.expr(&given.expr)?;
                    self.unify(ty, &value.ty, value.span)?;
                    values.push(value);
                }
                Ok(Expr { ty: Ty::Struct(name.clone()), kind: Kind::Struct(name, values), span })
            }
            _ => self.refuse(source),
        }
    }

    fn refuse<T>(&self, source: &Source) -> Result<T> {
        Err(Problem::new(
            source.span(),
            format!("devices other than the processor do not have `{}`", text(source)),
        ))
    }

    fn literal(&mut self, literal: &Lit, span: Span) -> Result<Expr> {
        let (ty, kind) = match literal {
            Lit::Int(int) => {
                if int.suffix().starts_with('f') {
                    let value = int.base10_digits().parse().unwrap_or(0.0);
                    (scalar_type(int.suffix()).unwrap_or(Ty::F64), Kind::Float(value))
                } else {
                    let value = int
                        .base10_parse::<u64>()
                        .map_err(|_| Problem::new(span, "devices do not have integers of this size"))?;
                    let ty = match int.suffix() {
                        "" => self.types.int(),
                        suffix => scalar_type(suffix).ok_or_else(|| {
                            Problem::new(span, format!("devices do not have the type `{suffix}`"))
                        })?,
                    };
                    (ty, Kind::Int(value))
                }
            }
            Lit::Float(float) => {
                let value = float.base10_parse::<f64>().unwrap_or(0.0);
                (scalar_type(float.suffix()).unwrap_or_else(|| self.types.float()), Kind::Float(value))
            }
            Lit::Bool(value) => (Ty::Bool, Kind::Bool(value.value)),
            other => {
                return Err(Problem::new(
                    span,
                    format!("devices other than the processor do not have `{}`", text(other)),
                ));
            }
        };
        Ok(Expr { ty, kind, span })
    }

    fn path(&mut self, path: &syn::ExprPath, span: Span) -> Result<Expr> {
        let Some(name) = path.path.get_ident().map(ToString::to_string) else {
            let segments: Vec<String> =
                path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            let ty = segments.iter().find_map(|segment| scalar_type(segment));
            let whole = text(&path.path);
            // `f32::MAX`, `std::f32::consts::PI`: numbers, which Rust gives at run time. `T::BITS` is always a `u32`.
            let ty = if whole.ends_with("::BITS") { Some(Ty::U32) } else { ty };
            return self.scalar(&whole, span, ty);
        };
        match self.meaning(&name) {
            Some(Meaning::Local(id)) => {
                Ok(Expr { ty: self.locals[id].ty.clone(), kind: Kind::Local(id), span })
            }
            Some(Meaning::Place(place)) => Ok(place),
            None if self.returns.is_some() && !self.items.constants.contains_key(&name) => Err(Problem::new(
                span,
                format!("`{name}` is neither a local of this function nor a constant of this file"),
            )),
            None => self.scalar(&name, span, None),
        }
    }

    fn binary(&mut self, binary: &syn::ExprBinary, span: Span) -> Result<Expr> {
        let Some(op) = operator(&binary.op) else { return self.refuse(&Source::Binary(binary.clone())) };
        let (left, right) = (self.expr(&binary.left)?, self.expr(&binary.right)?);
        self.combine(op, left, right, span)
    }

    pub(super) fn combine(&mut self, op: Binary, left: Expr, right: Expr, span: Span) -> Result<Expr> {
        let ty = match op {
            Binary::Shl | Binary::Shr => left.ty.clone(),
            Binary::AndAnd | Binary::OrOr => {
                self.unify(&Ty::Bool, &left.ty, left.span)?;
                self.unify(&Ty::Bool, &right.ty, right.span)?;
                Ty::Bool
            }
            Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => {
                self.unify(&left.ty, &right.ty, right.span)?;
                Ty::Bool
            }
            _ => {
                self.unify(&left.ty, &right.ty, right.span)?;
                left.ty.clone()
            }
        };
        Ok(Expr { ty, kind: Kind::Binary(op, Box::new(left), Box::new(right)), span })
    }

    fn index(&mut self, index: &syn::ExprIndex, span: Span) -> Result<Expr> {
        if matches!(&*index.index, Source::Range(_)) {
            return self.refuse(&Source::Index(index.clone()));
        }
        if let Some(name) = crate::access::name_of(&index.expr)
            && self.meaning(&name).is_none()
        {
            let slice = self.slice(&name, index.expr.span())?;
            let at = self.expr(&index.index)?;
            self.unify(&Ty::Usize, &at.ty, at.span)?;
            return Ok(Expr {
                ty: self.slices[slice].ty.clone(),
                kind: Kind::Element(slice, Box::new(at)),
                span,
            });
        }
        let (base, at) = (self.expr(&index.expr)?, self.expr(&index.index)?);
        self.unify(&Ty::Usize, &at.ty, at.span)?;
        let Ty::Array(element, _) = self.types.known(&base.ty) else {
            return self.refuse(&Source::Index(index.clone()));
        };
        Ok(Expr { ty: *element, kind: Kind::At(Box::new(base), Box::new(at)), span })
    }

    fn method(&mut self, call: &syn::ExprMethodCall, span: Span) -> Result<Expr> {
        let name = call.method.to_string();
        if let Some(slice) =
            crate::access::name_of(&call.receiver).filter(|name| self.meaning(name).is_none())
            && name == "len"
            && call.args.is_empty()
        {
            let slice = self.slice(&slice, call.receiver.span())?;
            return Ok(Expr { ty: Ty::Usize, kind: Kind::Len(slice), span });
        }
        let receiver = self.expr(&call.receiver)?;
        self.builtin(&name, receiver, call.args.iter(), &Source::MethodCall(call.clone()))
    }

    fn builtin<'s>(
        &mut self,
        name: &str,
        receiver: Expr,
        arguments: impl Iterator<Item = &'s Source>,
        whole: &Source,
    ) -> Result<Expr> {
        let Some((name, wanted, ty)) = methods::signature(&mut self.types, name, &receiver.ty) else {
            return self.refuse(whole);
        };
        let mut values = vec![receiver];
        for argument in arguments {
            let value = self.expr(argument)?;
            if let Some(wanted) = wanted.get(values.len() - 1) {
                self.unify(wanted, &value.ty, value.span)?;
            }
            values.push(value);
        }
        if values.len() != wanted.len() + 1 {
            return self.refuse(whole);
        }
        if name == "clone" {
            return Ok(values.remove(0));
        }
        Ok(Expr { ty, kind: Kind::Method(name, values), span: whole.span() })
    }

    fn call(&mut self, call: &syn::ExprCall, span: Span) -> Result<Expr> {
        let whole = Source::Call(call.clone());
        let Source::Path(path) = &*call.func else { return self.refuse(&whole) };
        let segments: Vec<String> =
            path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let [ty, method] = &segments[..]
            && let Some(ty) = scalar_type(ty)
        {
            let mut arguments = call.args.iter();
            let Some(first) = arguments.next() else { return self.refuse(&whole) };
            let first = self.expr(first)?;
            return match method.as_str() {
                "from" => Ok(Expr { ty, kind: Kind::Cast(Box::new(first)), span }),
                "from_bits" => {
                    let bits = if ty == Ty::F32 { Ty::U32 } else { Ty::U64 };
                    self.unify(&bits, &first.ty, first.span)?;
                    Ok(Expr { ty, kind: Kind::Method("from_bits", vec![first]), span })
                }
                method => {
                    self.unify(&ty, &first.ty, first.span)?;
                    self.builtin(method, first, arguments, &whole)
                }
            };
        }
        let Some(name) = path.path.get_ident().map(ToString::to_string) else { return self.refuse(&whole) };
        if matches!(name.as_str(), "min" | "max") && call.args.len() == 2 {
            let first = self.expr(&call.args[0])?;
            return self.builtin(&name, first, call.args.iter().skip(1), &whole);
        }
        let Some(function) = self.items.functions.get(&name) else {
            return Err(Problem::new(
                span,
                format!("`{name}` is not marked `#[parallel::function]` in the same module of this file"),
            ));
        };
        self.function(&function.clone())?;
        let found = self.functions.iter().find(|known| known.name == name);
        let Some((wanted, ty)) = found.map(|known| {
            let wanted: Vec<Ty> =
                known.locals[..known.parameters].iter().map(|local| local.ty.clone()).collect();
            (wanted, known.ty.clone())
        }) else {
            return self.refuse(&whole);
        };
        let mut values = Vec::new();
        for (argument, wanted) in call.args.iter().zip(&wanted) {
            let value = self.expr(argument)?;
            self.unify(wanted, &value.ty, value.span)?;
            values.push(value);
        }
        Ok(Expr { ty, kind: Kind::Call(name, values), span })
    }

    fn if_value(&mut self, branch: &syn::ExprIf, span: Span) -> Result<Expr> {
        let condition = self.expr(&branch.cond)?;
        self.unify(&Ty::Bool, &condition.ty, condition.span)?;
        self.depth += 1;
        let then = self.block(&branch.then_branch, true)?;
        let otherwise = match &branch.else_branch {
            Some((_, other)) => self.branch(other, true)?,
            None => Block::default(),
        };
        self.depth -= 1;
        let ty = self.same_value(&then, &otherwise)?;
        Ok(Expr { ty, kind: Kind::If(Box::new(condition), then, otherwise), span })
    }

    /// The value's type of two branches: a branch without a value leaves the loop or the function.
    pub(super) fn same_value(&mut self, one: &Block, other: &Block) -> Result<Ty> {
        match (&one.value, &other.value) {
            (Some(a), Some(b)) => {
                self.unify(&a.ty, &b.ty, b.span)?;
                Ok(a.ty.clone())
            }
            (Some(value), None) | (None, Some(value)) => Ok(value.ty.clone()),
            (None, None) => Ok(Ty::Unit),
        }
    }
}
