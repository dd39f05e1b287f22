//! Collects what an iteration reads and writes.

use std::collections::{BTreeMap, HashMap};

use proc_macro2::Span;
use syn::{
    BinOp, Block, Expr, ExprForLoop, Local, Pat, Stmt, UnOp,
    spanned::Spanned,
    visit::{self, Visit},
};

use crate::{header, poly::Poly, problem::Problem, text::text};

/// How the values of iterations are combined into one variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    Add,
    Sub,
    Mul,
    And,
    Or,
    Xor,
    /// `s = s.min(x)`.
    Min,
    /// `s = s.max(x)`.
    Max,
    /// `if x < s { s = x; }`.
    TakeIfLess,
    /// `if x > s { s = x; }`.
    TakeIfGreater,
    /// `v.push(x)`.
    Push,
}

/// A use of an element of a slice from outside of the loop.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(crate) name: String,
    /// The index; `None` if it is no polynomial of names.
    pub(crate) index: Option<Poly>,
    /// The largest and smallest value, where inner loops' variables are in it.
    pub(crate) bounds: Option<(Poly, Poly)>,
    pub(crate) index_text: String,
    pub(crate) is_write: bool,
    pub(crate) span: Span,
}

/// All that an iteration does to variables from outside of the loop.
#[derive(Debug, Default)]
pub(crate) struct Accesses {
    pub(crate) elements: Vec<Access>,
    /// Contributions to reductions.
    pub(crate) reductions: Vec<(String, Op, Span)>,
    /// Uses of a variable as a whole: its name, the text and where.
    pub(crate) wholes: Vec<(String, String, Span)>,
    /// Assignments to a variable as a whole that are no reduction.
    pub(crate) assigned: Vec<(String, String, Span)>,
    /// Ways out of the loop: `break`, `return`, `?`.
    pub(crate) exits: Vec<Problem>,
}

/// Methods that change their receiver as a whole.
const CHANGES: &[&str] = &[
    "append",
    "clear",
    "copy_from_slice",
    "copy_within",
    "dedup",
    "drain",
    "extend",
    "extend_from_slice",
    "fill",
    "insert",
    "pop",
    "push_back",
    "push_front",
    "push_str",
    "remove",
    "resize",
    "retain",
    "reverse",
    "rotate_left",
    "rotate_right",
    "set",
    "sort",
    "sort_by",
    "sort_unstable",
    "split_off",
    "swap",
    "swap_remove",
    "truncate",
    "clone_from_slice",
];

struct Walk {
    /// The locals of each open scope: their name in polynomials, or their definition.
    scopes: Vec<HashMap<String, Poly>>,
    /// The ranges of inner loops' variables.
    ranges: BTreeMap<String, (Poly, Poly)>,
    inner_loops: usize,
    closures: usize,
    fresh: usize,
    found: Accesses,
}

/// Collects what a body does.
pub(crate) fn accesses(index: &str, body: &Block) -> Accesses {
    let scopes = vec![HashMap::from([(index.to_owned(), Poly::name(index))])];
    let mut walk = Walk {
        scopes,
        ranges: BTreeMap::new(),
        inner_loops: 0,
        closures: 0,
        fresh: 0,
        found: Accesses::default(),
    };
    walk.visit_block(body);
    walk.found
}

/// The name of a variable, if the expression is one, or behind a reference to one.
pub(crate) fn name_of(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
        Expr::Paren(inner) => name_of(&inner.expr),
        Expr::Group(inner) => name_of(&inner.expr),
        Expr::Unary(unary) if matches!(unary.op, UnOp::Deref(_)) => name_of(&unary.expr),
        _ => None,
    }
}

impl Walk {
    fn local(&self, name: &str) -> Option<&Poly> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }

    fn is_outer(&self, name: &str) -> bool {
        self.local(name).is_none()
    }

    /// A local whose value is not known: a new name in polynomials.
    fn declare(&mut self, name: &str, value: Option<Poly>) -> Poly {
        self.fresh += 1;
        let poly = value.unwrap_or_else(|| Poly::name(&format!("{name}#{}", self.fresh)));
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), poly.clone());
        }
        poly
    }

    fn declare_all(&mut self, pat: &Pat) {
        struct Names<'a>(&'a mut Vec<String>);
        impl<'ast> Visit<'ast> for Names<'_> {
            fn visit_pat_ident(&mut self, pat: &'ast syn::PatIdent) {
                self.0.push(pat.ident.to_string());
                visit::visit_pat_ident(self, pat);
            }
        }
        let mut names = Vec::new();
        Names(&mut names).visit_pat(pat);
        for name in names {
            self.declare(&name, None);
        }
    }

    fn scoped(&mut self, inner: impl FnOnce(&mut Self)) {
        self.scopes.push(HashMap::new());
        inner(self);
        self.scopes.pop();
    }

    /// An expression as a polynomial.
    fn poly(&self, expr: &Expr) -> Option<Poly> {
        match expr {
            Expr::Paren(inner) => self.poly(&inner.expr),
            Expr::Group(inner) => self.poly(&inner.expr),
            Expr::Cast(cast) => self.poly(&cast.expr),
            Expr::Lit(literal) => match &literal.lit {
                syn::Lit::Int(int) => int.base10_parse::<i64>().ok().map(Poly::constant),
                _ => None,
            },
            Expr::Path(path) => {
                let name = path.path.get_ident()?.to_string();
                Some(self.local(&name).cloned().unwrap_or_else(|| Poly::name(&name)))
            }
            Expr::Unary(unary) if matches!(unary.op, UnOp::Deref(_)) => self.poly(&unary.expr),
            Expr::Binary(binary) => {
                let combine = match binary.op {
                    BinOp::Add(_) => Poly::add,
                    BinOp::Sub(_) => Poly::sub,
                    BinOp::Mul(_) => Poly::mul,
                    _ => return self.invariant(expr),
                };
                Some(combine(&self.poly(&binary.left)?, &self.poly(&binary.right)?))
            }
            other => self.invariant(other),
        }
    }

    /// An expression that has the same value in every iteration, as a name.
    fn invariant(&self, expr: &Expr) -> Option<Poly> {
        struct Uses<'a>(&'a Walk, bool);
        impl<'ast> Visit<'ast> for Uses<'_> {
            fn visit_ident(&mut self, ident: &'ast proc_macro2::Ident) {
                self.1 |= !self.0.is_outer(&ident.to_string());
            }
        }
        let mut uses = Uses(self, false);
        uses.visit_expr(expr);
        let is_simple =
            matches!(expr, Expr::MethodCall(call) if call.method == "len") || matches!(expr, Expr::Field(_));
        (!uses.1 && is_simple).then(|| Poly::name(&text(expr)))
    }

    /// The smallest and the largest value of an index over the ranges of inner loops.
    fn bounds(&self, index: &Poly) -> Option<(Poly, Poly)> {
        let (mut low, mut high) = (index.clone(), index.clone());
        for (name, (start, end)) in self.ranges.iter().rev() {
            let (coefficient, _) = high.split(name)?;
            if coefficient == Poly::default() && low.split(name)?.0 == Poly::default() {
                continue;
            }
            if !coefficient.is_positive() {
                return None;
            }
            low = low.replace(name, start)?;
            high = high.replace(name, &end.sub(&Poly::constant(1)))?;
        }
        Some((low, high))
    }

    fn access(&mut self, name: String, index: &Expr, is_write: bool, span: Span) {
        let (first, last) = match index {
            // A range of elements reaches from its first to its last.
            Expr::Range(range) => {
                let start = range.start.as_ref().map_or(Some(Poly::default()), |start| self.poly(start));
                let end = range.end.as_ref().and_then(|end| self.poly(end));
                let is_closed = matches!(range.limits, syn::RangeLimits::Closed(_));
                (start, end.map(|end| if is_closed { end } else { end.sub(&Poly::constant(1)) }))
            }
            index => {
                let index = self.poly(index);
                (index.clone(), index)
            }
        };
        let bounds = first.as_ref().zip(last).and_then(|(first, last)| {
            let ((low, _), (_, high)) = (self.bounds(first)?, self.bounds(&last)?);
            Some((low, high))
        });
        let index_text = text(index);
        self.found.elements.push(Access { name, index: first, bounds, index_text, is_write, span });
        self.visit_expr(index);
    }

    /// Visits the target of an assignment.
    fn target(&mut self, target: &Expr, whole: &Expr) {
        match target {
            Expr::Paren(inner) => self.target(&inner.expr, whole),
            Expr::Index(index) => match name_of(&index.expr) {
                Some(name) if self.is_outer(&name) => self.access(name, &index.index, true, target.span()),
                Some(_) => self.visit_expr(&index.index),
                None => {
                    self.target(&index.expr, whole);
                    self.visit_expr(&index.index);
                }
            },
            Expr::Field(field) => self.target(&field.base, whole),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Deref(_)) => self.target(&unary.expr, whole),
            Expr::Tuple(tuple) => tuple.elems.iter().for_each(|element| self.target(element, whole)),
            other => match name_of(other) {
                Some(name) if self.is_outer(&name) => {
                    self.found.assigned.push((name, text(whole), whole.span()));
                }
                Some(name) => {
                    // An assigned local has no fixed definition any more.
                    self.declare(&name, None);
                }
                None => self.visit_expr(other),
            },
        }
    }

    fn reduce(&mut self, name: String, op: Op, value: &Expr, span: Span) {
        self.visit_expr(value);
        self.found.reductions.push((name, op, span));
    }

    /// `s = s.min(x)`, `s = s + x`: the operator and the other operand.
    fn reduction_of(&self, name: &str, value: &Expr) -> Option<(Op, Expr)> {
        match value {
            Expr::Paren(inner) => self.reduction_of(name, &inner.expr),
            Expr::MethodCall(call)
                if call.args.len() == 1 && name_of(&call.receiver).as_deref() == Some(name) =>
            {
                let op = match call.method.to_string().as_str() {
                    "min" => Op::Min,
                    "max" => Op::Max,
                    _ => return None,
                };
                Some((op, call.args[0].clone()))
            }
            Expr::Binary(binary) if name_of(&binary.left).as_deref() == Some(name) => {
                let op = match binary.op {
                    BinOp::Add(_) => Op::Add,
                    BinOp::Mul(_) => Op::Mul,
                    BinOp::Sub(_) => Op::Sub,
                    BinOp::BitAnd(_) => Op::And,
                    BinOp::BitOr(_) => Op::Or,
                    BinOp::BitXor(_) => Op::Xor,
                    _ => return None,
                };
                Some((op, (*binary.right).clone()))
            }
            _ => None,
        }
    }
}

/// `if x < s { s = x; }`: the variable, the operator and the value.
pub(crate) fn take_if(expr: &syn::ExprIf) -> Option<(String, Op, Expr)> {
    let (None, [Stmt::Expr(Expr::Assign(assign), _)]) = (&expr.else_branch, &expr.then_branch.stmts[..])
    else {
        return None;
    };
    let Expr::Binary(compare) = &*expr.cond else { return None };
    let name = name_of(&assign.left)?;
    let value = text(&assign.right);
    let is_less = match (&compare.op, text(&compare.left) == value, text(&compare.right) == value) {
        (BinOp::Lt(_), true, _) | (BinOp::Gt(_), false, true) => true,
        (BinOp::Gt(_), true, _) | (BinOp::Lt(_), false, true) => false,
        _ => return None,
    };
    let other = if text(&compare.left) == value { &compare.right } else { &compare.left };
    let is_of_name = name_of(other).as_deref() == Some(&name);
    is_of_name
        .then(|| (name, if is_less { Op::TakeIfLess } else { Op::TakeIfGreater }, (*assign.right).clone()))
}

/// The operator of a compound assignment that is a reduction.
pub(crate) fn compound(op: &BinOp) -> Option<Op> {
    Some(match op {
        BinOp::AddAssign(_) => Op::Add,
        BinOp::SubAssign(_) => Op::Sub,
        BinOp::MulAssign(_) => Op::Mul,
        BinOp::BitAndAssign(_) => Op::And,
        BinOp::BitOrAssign(_) => Op::Or,
        BinOp::BitXorAssign(_) => Op::Xor,
        _ => return None,
    })
}

/// Whether the operator assigns to its left side.
pub(crate) fn is_assigning(op: &BinOp) -> bool {
    compound(op).is_some()
        || matches!(op, BinOp::DivAssign(_) | BinOp::RemAssign(_) | BinOp::ShlAssign(_) | BinOp::ShrAssign(_))
}

impl<'ast> Visit<'ast> for Walk {
    fn visit_block(&mut self, block: &'ast Block) {
        self.scoped(|walk| visit::visit_block(walk, block));
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if let Some(init) = &local.init {
            self.visit_expr(&init.expr);
            if let Some((_, diverge)) = &init.diverge {
                self.visit_expr(diverge);
            }
        }
        let mut pat = &local.pat;
        while let Pat::Type(typed) = pat {
            pat = &typed.pat;
        }
        if let (Pat::Ident(name), Some(init)) = (pat, &local.init)
            && name.mutability.is_none()
        {
            let value = self.poly(&init.expr);
            self.declare(&name.ident.to_string(), value);
        } else {
            self.declare_all(pat);
        }
    }

    fn visit_expr_for_loop(&mut self, inner: &'ast ExprForLoop) {
        self.visit_expr(&inner.expr);
        self.scoped(|walk| {
            let range = header::header(&inner.pat, &inner.expr).ok().filter(|header| header.is_range);
            let range = range.and_then(|header| {
                let (start, end) = (walk.poly(&header.start)?, walk.poly(&header.end)?);
                let end = if header.is_inclusive { end.add(&Poly::constant(1)) } else { end };
                Some((header.index.to_string(), start, end))
            });
            match range {
                Some((name, start, end)) => {
                    let poly = walk.declare(&name, None);
                    if let Some(name) = poly.names().next() {
                        walk.ranges.insert(name.clone(), (start, end));
                    }
                }
                None => walk.declare_all(&inner.pat),
            }
            walk.inner_loops += 1;
            walk.visit_block(&inner.body);
            walk.inner_loops -= 1;
        });
    }

    fn visit_expr_while(&mut self, inner: &'ast syn::ExprWhile) {
        self.inner_loops += 1;
        visit::visit_expr_while(self, inner);
        self.inner_loops -= 1;
    }

    fn visit_expr_loop(&mut self, inner: &'ast syn::ExprLoop) {
        self.inner_loops += 1;
        visit::visit_expr_loop(self, inner);
        self.inner_loops -= 1;
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        self.closures += 1;
        self.scoped(|walk| {
            closure.inputs.iter().for_each(|input| walk.declare_all(input));
            walk.visit_expr(&closure.body);
        });
        self.closures -= 1;
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        self.scoped(|walk| {
            walk.declare_all(&arm.pat);
            if let Some((_, guard)) = &arm.guard {
                walk.visit_expr(guard);
            }
            walk.visit_expr(&arm.body);
        });
    }

    fn visit_expr_let(&mut self, condition: &'ast syn::ExprLet) {
        self.visit_expr(&condition.expr);
        self.declare_all(&condition.pat);
    }

    fn visit_expr_break(&mut self, exit: &'ast syn::ExprBreak) {
        if self.inner_loops == 0 || exit.label.is_some() {
            self.found
                .exits
                .push(Problem::new(exit.span(), "`break` ends the loop before its last iteration"));
        }
        visit::visit_expr_break(self, exit);
    }

    fn visit_expr_continue(&mut self, exit: &'ast syn::ExprContinue) {
        if exit.label.is_some() {
            self.found.exits.push(Problem::new(exit.span(), "`continue` with a label may leave the loop"));
        }
    }

    fn visit_expr_return(&mut self, exit: &'ast syn::ExprReturn) {
        if self.closures == 0 {
            self.found
                .exits
                .push(Problem::new(exit.span(), "`return` leaves the loop before its last iteration"));
        }
        visit::visit_expr_return(self, exit);
    }

    fn visit_expr_try(&mut self, exit: &'ast syn::ExprTry) {
        if self.closures == 0 {
            self.found.exits.push(Problem::new(exit.span(), "`?` leaves the loop before its last iteration"));
        }
        visit::visit_expr_try(self, exit);
    }

    fn visit_expr_if(&mut self, expr: &'ast syn::ExprIf) {
        if let Some((name, op, value)) = take_if(expr)
            && self.is_outer(&name)
        {
            return self.reduce(name, op, &value, expr.span());
        }
        self.scoped(|walk| visit::visit_expr_if(walk, expr));
    }

    fn visit_expr_assign(&mut self, assign: &'ast syn::ExprAssign) {
        if let Some(name) = name_of(&assign.left)
            && self.is_outer(&name)
            && let Some((op, value)) = self.reduction_of(&name, &assign.right)
        {
            return self.reduce(name, op, &value, assign.span());
        }
        self.visit_expr(&assign.right);
        self.target(&assign.left, &Expr::Assign(assign.clone()));
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if !is_assigning(&binary.op) {
            return visit::visit_expr_binary(self, binary);
        }
        if let Some(name) = name_of(&binary.left)
            && self.is_outer(&name)
            && let Some(op) = compound(&binary.op)
        {
            return self.reduce(name, op, &binary.right, binary.span());
        }
        self.visit_expr(&binary.right);
        self.target(&binary.left, &Expr::Binary(binary.clone()));
    }

    fn visit_expr_reference(&mut self, reference: &'ast syn::ExprReference) {
        match reference.mutability {
            Some(_) => self.target(&reference.expr, &Expr::Reference(reference.clone())),
            None => visit::visit_expr_reference(self, reference),
        }
    }

    fn visit_expr_index(&mut self, index: &'ast syn::ExprIndex) {
        match name_of(&index.expr) {
            Some(name) if self.is_outer(&name) => self.access(name, &index.index, false, index.span()),
            _ => visit::visit_expr_index(self, index),
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let method = call.method.to_string();
        if let Some(name) = name_of(&call.receiver).filter(|name| self.is_outer(name)) {
            if method == "push" && call.args.len() == 1 {
                return self.reduce(name, Op::Push, &call.args[0], call.span());
            }
            if CHANGES.contains(&method.as_str()) {
                self.found.assigned.push((name, text(call), call.span()));
            } else if method != "len" && method != "is_empty" {
                self.found.wholes.push((name, text(call), call.span()));
            }
            call.args.iter().for_each(|argument| self.visit_expr(argument));
            return;
        }
        if matches!(&*call.receiver, Expr::Index(_))
            && (CHANGES.contains(&method.as_str()) || method == "iter_mut")
        {
            self.target(&call.receiver, &Expr::MethodCall(call.clone()));
            call.args.iter().for_each(|argument| self.visit_expr(argument));
            return;
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        if let Some(name) = path.path.get_ident().map(ToString::to_string).filter(|name| self.is_outer(name))
        {
            self.found.wholes.push((name.clone(), name, path.span()));
        }
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        // The arguments of the usual macros are expressions.
        let parser = syn::punctuated::Punctuated::<Expr, syn::Token![,]>::parse_terminated;
        if let Ok(arguments) = call.parse_body_with(parser) {
            arguments.iter().for_each(|argument| self.visit_expr(argument));
        }
    }

    fn visit_item(&mut self, _: &'ast syn::Item) {}
}
