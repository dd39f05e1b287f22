//! Turns the body of a loop into the typed form that devices get, or says which expression stands in the way.

mod expr;
mod methods;
mod settle;
mod stmt;

use std::collections::HashMap;

use proc_macro2::Span;
use syn::{Block, FnArg, ItemFn, Pat, spanned::Spanned};

use crate::{
    depend::{Independent, Op},
    header::Header,
    infer::Types,
    ir::{self, Body, Expr, Function, Kind, Local, LocalId, Role, Scalar, Slice, Stmt, Struct, Term, Ty},
    items::Items,
    problem::{Problem, Result},
    text::text,
};

/// What a name means inside of a body.
#[derive(Debug, Clone)]
enum Meaning {
    Local(LocalId),
    /// Another name for a place: `let x = &mut out[i]`.
    Place(Expr),
}

/// What is known of the variables around a loop.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    slices: HashMap<String, Ty>,
    values: HashMap<String, Ty>,
}

/// Lowers one body: names, types and what was found so far.
struct Lower<'a> {
    items: &'a Items,
    surroundings: &'a Surroundings,
    types: Types,
    scopes: Vec<HashMap<String, Meaning>>,
    locals: Vec<Local>,
    slices: Vec<Slice>,
    scalars: Vec<Scalar>,
    terms: Vec<Term>,
    reductions: HashMap<String, Op>,
    functions: Vec<Function>,
    structs: Vec<Struct>,
    /// Functions that are being lowered, to find recursion.
    open: Vec<String>,
    inner_loops: usize,
    /// Inside of a function, its value's type.
    returns: Option<Ty>,
    /// How many conditions and inner loops enclose the current statement.
    depth: usize,
    /// Whether some iterations end before the current statement.
    has_ended: bool,
}

impl Surroundings {
    /// Reads the parameters of a function and the `let`s of its outermost block.
    pub fn of(function: &ItemFn) -> Surroundings {
        let mut found = Surroundings::default();
        for input in &function.sig.inputs {
            if let FnArg::Typed(typed) = input
                && let Pat::Ident(name) = &*typed.pat
            {
                found.declare(&name.ident.to_string(), &typed.ty);
            }
        }
        for stmt in &function.block.stmts {
            let syn::Stmt::Local(local) = stmt else { continue };
            let (pat, ty) = match &local.pat {
                Pat::Type(typed) => (&*typed.pat, Some(&*typed.ty)),
                pat => (pat, None),
            };
            let Pat::Ident(name) = pat else { continue };
            let name = name.ident.to_string();
            found.slices.remove(&name);
            found.values.remove(&name);
            match (ty, &local.init) {
                (Some(ty), _) => found.declare(&name, ty),
                (None, Some(init)) => found.guess(&name, &init.expr),
                _ => {}
            }
        }
        found
    }

    fn declare(&mut self, name: &str, ty: &syn::Type) {
        if let Some(element) = element_of(ty) {
            self.slices.insert(name.to_owned(), element);
        } else if let Some(ty) = plain_type(ty) {
            self.values.insert(name.to_owned(), ty);
        }
    }

    fn guess(&mut self, name: &str, value: &syn::Expr) {
        match value {
            syn::Expr::Lit(literal) => {
                let suffix = match &literal.lit {
                    syn::Lit::Int(int) => int.suffix().to_owned(),
                    syn::Lit::Float(float) => float.suffix().to_owned(),
                    _ => String::new(),
                };
                if let Some(ty) = scalar_type(&suffix) {
                    self.values.insert(name.to_owned(), ty);
                }
            }
            syn::Expr::MethodCall(call) if call.method == "len" => {
                drop(self.values.insert(name.to_owned(), Ty::Usize))
            }
            syn::Expr::Cast(cast) => {
                if let Some(ty) = plain_type(&cast.ty) {
                    self.values.insert(name.to_owned(), ty);
                }
            }
            _ => {}
        }
    }
}

fn scalar_type(name: &str) -> Option<Ty> {
    Some(match name {
        "i32" => Ty::I32,
        "u32" => Ty::U32,
        "i64" => Ty::I64,
        "u64" => Ty::U64,
        "isize" => Ty::Isize,
        "usize" => Ty::Usize,
        "f32" => Ty::F32,
        "f64" => Ty::F64,
        "bool" => Ty::Bool,
        _ => return None,
    })
}

/// The type that a type in the source means, if devices have it.
fn plain_type(ty: &syn::Type) -> Option<Ty> {
    match ty {
        syn::Type::Path(path) => {
            let name = path.path.get_ident()?.to_string();
            Some(scalar_type(&name).unwrap_or(Ty::Struct(name)))
        }
        syn::Type::Paren(inner) => plain_type(&inner.elem),
        syn::Type::Group(inner) => plain_type(&inner.elem),
        syn::Type::Reference(reference) => plain_type(&reference.elem),
        syn::Type::Array(array) => {
            let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(len), .. }) = &array.len else {
                return None;
            };
            Some(Ty::Array(Box::new(plain_type(&array.elem)?), len.base10_parse().ok()?))
        }
        syn::Type::Tuple(tuple) if tuple.elems.is_empty() => Some(Ty::Unit),
        _ => None,
    }
}

/// The type of the elements of `&[T]`, `&mut [T]`, `&Vec<T>`, `Vec<T>`.
fn element_of(ty: &syn::Type) -> Option<Ty> {
    match ty {
        syn::Type::Reference(reference) => element_of(&reference.elem),
        syn::Type::Slice(slice) => plain_type(&slice.elem),
        syn::Type::Path(path) => {
            let last = path.path.segments.last().filter(|segment| segment.ident == "Vec")?;
            let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
            match arguments.args.first()? {
                syn::GenericArgument::Type(element) => plain_type(element),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Lowers the body of a loop whose iterations are independent.
pub fn lower(
    name: &str,
    header: &Header,
    block: &Block,
    independent: &Independent,
    surroundings: &Surroundings,
    items: &Items,
    is_fast: bool,
) -> Result<Body> {
    let mut lower = Lower::new(items, surroundings);
    lower.reductions = independent.reductions.iter().map(|it| (it.name.clone(), it.op)).collect();
    let index_ty = match header.is_range {
        false => Ty::Usize,
        true => {
            let (start, end) = (lower.outer_value(&header.start)?, lower.outer_value(&header.end)?);
            lower.unify(&start, &end, header.end.span())?;
            start
        }
    };
    let index = lower.local(&header.shown, index_ty);
    lower.scopes.push(HashMap::from([(header.index.to_string(), Meaning::Local(index))]));
    for rows in &independent.writes {
        lower.slice(&rows.name, rows.span)?;
    }
    let block = lower.block(block, false)?;
    let mut body = Body {
        name: name.to_owned(),
        locals: lower.locals,
        slices: lower.slices,
        scalars: lower.scalars,
        terms: lower.terms,
        block,
        functions: lower.functions,
        structs: lower.structs,
        is_fast,
    };
    // Kernels share one space of names with what they use.
    let mut used =
        body.slices.iter().map(|slice| &slice.name).chain(body.functions.iter().map(|it| &it.name));
    if used.any(|used| *used == body.name) {
        body.name.push_str("_loop");
    }
    settle::settle(&mut body, &lower.types)?;
    for slice in &mut body.slices {
        let rows = |list: &[crate::depend::Rows]| list.iter().any(|rows| rows.name == slice.name);
        slice.role = match (rows(&independent.writes), rows(&independent.reads)) {
            (true, _) => Role::InOut,
            (_, true) => Role::Input,
            _ => Role::Table,
        };
    }
    settle::outputs(&mut body, independent);
    Ok(body)
}

/// Lowers a function marked `#[parallel::function]` by itself, to say what stands in its way.
pub fn lower_function(function: &ItemFn, items: &Items) -> Result<Vec<Function>> {
    let surroundings = Surroundings::default();
    let mut lower = Lower::new(items, &surroundings);
    lower.function(function)?;
    let mut body = Body {
        name: function.sig.ident.to_string(),
        locals: Vec::new(),
        slices: Vec::new(),
        scalars: lower.scalars,
        terms: Vec::new(),
        block: ir::Block::default(),
        functions: lower.functions,
        structs: lower.structs,
        is_fast: false,
    };
    settle::settle(&mut body, &lower.types)?;
    Ok(body.functions)
}

impl<'a> Lower<'a> {
    fn new(items: &'a Items, surroundings: &'a Surroundings) -> Self {
        Lower {
            items,
            surroundings,
            types: Types::default(),
            scopes: Vec::new(),
            locals: Vec::new(),
            slices: Vec::new(),
            scalars: Vec::new(),
            terms: Vec::new(),
            reductions: HashMap::new(),
            functions: Vec::new(),
            structs: Vec::new(),
            open: Vec::new(),
            inner_loops: 0,
            returns: None,
            depth: 0,
            has_ended: false,
        }
    }

    fn local(&mut self, name: &str, ty: Ty) -> LocalId {
        self.locals.push(Local { name: name.to_owned(), ty });
        self.locals.len() - 1
    }

    fn declare(&mut self, name: &str, meaning: Meaning) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), meaning);
        }
    }

    fn meaning(&self, name: &str) -> Option<Meaning> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name)).cloned()
    }

    fn unify(&mut self, a: &Ty, b: &Ty, span: Span) -> Result<()> {
        if self.types.unify(a, b) {
            return Ok(());
        }
        let (a, b) = (self.types.known(a).rust(), self.types.known(b).rust());
        Err(Problem::new(span, format!("this has type `{b}` where `{a}` is expected")))
    }

    /// The type of an expression outside of the loop: the ends of its range.
    fn outer_value(&mut self, expr: &syn::Expr) -> Result<Ty> {
        match expr {
            syn::Expr::Path(path) if path.path.get_ident().is_some() => {
                let name = text(expr);
                Ok(self.surroundings.values.get(&name).cloned().unwrap_or_else(|| self.types.int()))
            }
            syn::Expr::Cast(cast) => Ok(plain_type(&cast.ty).unwrap_or_else(|| self.types.int())),
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(int), .. }) => {
                Ok(scalar_type(int.suffix()).unwrap_or_else(|| self.types.int()))
            }
            syn::Expr::MethodCall(call) if call.method == "len" => Ok(Ty::Usize),
            syn::Expr::Paren(inner) => self.outer_value(&inner.expr),
            syn::Expr::Binary(binary) => {
                let (left, right) = (self.outer_value(&binary.left)?, self.outer_value(&binary.right)?);
                self.types.unify(&left, &right);
                Ok(left)
            }
            _ => Ok(self.types.int()),
        }
    }

    /// The number of a slice from outside of the loop.
    fn slice(&mut self, name: &str, span: Span) -> Result<usize> {
        if let Some(known) = self.slices.iter().position(|slice| slice.name == name) {
            return Ok(known);
        }
        if self.returns.is_some() {
            return Err(Problem::new(
                span,
                format!("`{name}` is not a local of this function: devices have no other variables"),
            ));
        }
        let ty = match self.surroundings.slices.get(name) {
            Some(ty) => ty.clone(),
            None => match self.items.constants.get(name) {
                Some(syn::Type::Array(array)) => plain_type(&array.elem).unwrap_or_else(|| self.types.any()),
                _ if self.surroundings.values.contains_key(name) => {
                    return Err(Problem::new(
                        span,
                        format!("`{name}` is no slice whose elements devices can have"),
                    ));
                }
                _ => self.types.any(),
            },
        };
        self.check_type(&ty, span)?;
        self.slices.push(Slice { name: name.to_owned(), ty, role: Role::Table });
        Ok(self.slices.len() - 1)
    }

    /// The number of a value from outside of the loop.
    fn scalar(&mut self, name: &str, span: Span, hint: Option<Ty>) -> Result<Expr> {
        let number = match self.scalars.iter().position(|scalar| scalar.name == name) {
            Some(known) => known,
            None => {
                let declared = self.surroundings.values.get(name).cloned();
                let constant = self.items.constants.get(name).and_then(plain_type);
                let ty = hint.or(declared).or(constant).unwrap_or_else(|| self.types.any());
                if self.surroundings.slices.contains_key(name) {
                    return Err(Problem::new(
                        span,
                        format!("`{name}` is used as a whole, and devices have only its elements"),
                    ));
                }
                if matches!(ty, Ty::Array(..) | Ty::Struct(_)) {
                    return Err(Problem::new(
                        span,
                        format!("`{name}` is a `{}`, and devices get only numbers as parameters", ty.rust()),
                    ));
                }
                self.scalars.push(Scalar { name: name.to_owned(), ty });
                self.scalars.len() - 1
            }
        };
        Ok(Expr { ty: self.scalars[number].ty.clone(), kind: Kind::Scalar(number), span })
    }

    /// Fails if devices do not have the type; learns the structs in it.
    fn check_type(&mut self, ty: &Ty, span: Span) -> Result<()> {
        match ty {
            Ty::Array(element, _) => self.check_type(element, span),
            Ty::Struct(name) => self.structure(name, span).map(drop),
            _ => Ok(()),
        }
    }

    fn structure(&mut self, name: &str, span: Span) -> Result<Struct> {
        if let Some(known) = self.structs.iter().find(|it| it.name == name) {
            return Ok(known.clone());
        }
        let Some(item) = self.items.structs.get(name) else {
            return Err(Problem::new(
                span,
                format!(
                    "devices do not have the type `{name}`: it is no number, array of numbers or struct of this file"
                ),
            ));
        };
        let is_c = item
            .attrs
            .iter()
            .any(|attribute| attribute.path().is_ident("repr") && text(attribute).contains('C'));
        let is_pod = item
            .attrs
            .iter()
            .any(|attribute| attribute.path().is_ident("derive") && text(attribute).contains("Pod"));
        if !is_c || !is_pod {
            return Err(Problem::new(
                span,
                format!(
                    "devices do not have the struct `{name}`: it needs `#[repr(C)]` and `#[derive(Clone, Copy, Pod, Zeroable)]`"
                ),
            ));
        }
        let mut fields = Vec::new();
        for field in &item.fields {
            let (Some(field_name), Some(ty)) = (&field.ident, plain_type(&field.ty)) else {
                return Err(Problem::new(
                    span,
                    format!("devices do not have the type `{}` of a field of `{name}`", text(&field.ty)),
                ));
            };
            self.check_type(&ty, span)?;
            if ty == Ty::Bool {
                return Err(Problem::new(
                    span,
                    format!("the struct `{name}` has a `bool`, which has no fixed layout on devices"),
                ));
            }
            fields.push((field_name.to_string(), ty));
        }
        let found = Struct { name: name.to_owned(), fields };
        self.structs.push(found.clone());
        Ok(found)
    }

    /// Lowers a function that the body calls, once.
    fn function(&mut self, function: &ItemFn) -> Result<()> {
        let name = function.sig.ident.to_string();
        if self.functions.iter().any(|known| known.name == name) {
            return Ok(());
        }
        if self.open.contains(&name) {
            return Err(Problem::new(
                function.sig.ident.span(),
                format!("`{name}` calls itself, which devices do not do"),
            ));
        }
        self.open.push(name.clone());
        let (scopes, locals) = (std::mem::take(&mut self.scopes), std::mem::take(&mut self.locals));
        let (loops, depth) = (std::mem::take(&mut self.inner_loops), std::mem::take(&mut self.depth));
        let returns = self.returns.take();
        self.scopes.push(HashMap::new());
        for input in &function.sig.inputs {
            let FnArg::Typed(typed) = input else {
                return Err(Problem::new(input.span(), "devices have no `self`"));
            };
            let (Pat::Ident(parameter), Some(ty)) = (&*typed.pat, plain_type(&typed.ty)) else {
                return Err(Problem::new(
                    typed.span(),
                    format!("devices do not have the parameter `{}`", text(typed)),
                ));
            };
            self.check_type(&ty, typed.span())?;
            let id = self.local(&parameter.ident.to_string(), ty);
            self.declare(&parameter.ident.to_string(), Meaning::Local(id));
        }
        let ty = match &function.sig.output {
            syn::ReturnType::Default => Ty::Unit,
            syn::ReturnType::Type(_, ty) => plain_type(ty).ok_or_else(|| {
                Problem::new(ty.span(), format!("devices do not have the type `{}`", text(ty)))
            })?,
        };
        self.returns = Some(ty.clone());
        let block = self.block(&function.block, ty != Ty::Unit)?;
        if let Some(value) = &block.value {
            self.unify(&ty, &value.ty, value.span)?;
        }
        let locals = std::mem::replace(&mut self.locals, locals);
        self.scopes = scopes;
        (self.inner_loops, self.depth, self.returns) = (loops, depth, returns);
        self.open.pop();
        let parameters = function.sig.inputs.len();
        self.functions.push(Function { name, locals, parameters, ty, block });
        Ok(())
    }

    /// A contribution to a reduction.
    fn term(&mut self, name: &str, value: Expr, span: Span) -> Result<Stmt> {
        if self.inner_loops > 0 || self.terms.iter().any(|term| term.name == name) {
            return Err(Problem::new(
                span,
                format!(
                    "an iteration may change `{name}` several times, which only the processor does in order"
                ),
            ));
        }
        let ty = value.ty.clone();
        if let Some(declared) = self.surroundings.values.get(name).cloned() {
            self.unify(&declared, &ty, span)?;
        }
        self.terms.push(Term { name: name.to_owned(), ty, is_optional: self.depth > 0 || self.has_ended });
        Ok(Stmt::Term(self.terms.len() - 1, value))
    }
}
