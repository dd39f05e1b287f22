//! Finds the loops of a function, and says of each what can be done with it.

use syn::{Block, Expr, ExprForLoop, ItemFn, Stmt, parse_quote_spanned, spanned::Spanned};

use crate::{
    depend::{Independent, depend},
    emit::{Kernels, emit},
    header::{Header, collected, header},
    ir::Body,
    items::Items,
    lower::{Surroundings, lower},
    problem::{Problem, Result},
};

/// A loop whose iterations are independent.
#[derive(Debug, Clone)]
pub struct SplitLoop {
    /// What it runs over.
    pub header: Header,
    /// The body, with what iterators bind.
    pub body: Block,
    /// What the dependence test found.
    pub independent: Independent,
    /// The body for other devices, or what stands in its way.
    pub devices: Result<(Body, Kernels)>,
}

/// What is known around the loops of a function.
#[derive(Debug)]
pub struct Context<'a> {
    /// Items of the same file.
    pub items: &'a Items,
    /// Parameters and variables.
    pub surroundings: Surroundings,
    /// Whether `fast` is allowed.
    pub is_fast: bool,
}

impl<'a> Context<'a> {
    /// The context of a function.
    pub fn of(function: &ItemFn, items: &'a Items, is_fast: bool) -> Self {
        Context { items, surroundings: Surroundings::of(function), is_fast }
    }
}

/// Reads a `for` loop. Fails if its iterations depend on each other.
pub fn split(name: &str, source: &ExprForLoop, context: &Context<'_>) -> Result<SplitLoop> {
    let header = header(&source.pat, &source.expr)?;
    let mut body = source.body.clone();
    body.stmts.splice(0..0, header.prologue.iter().cloned());
    let independent = depend(&header, &body)?;
    let devices = match independent.exits.first() {
        Some(exit) => Err(exit.clone()),
        None => {
            lower(name, &header, &body, &independent, &context.surroundings, context.items, context.is_fast)
                .and_then(|typed| emit(&typed, &independent).map(|kernels| (typed, kernels)))
        }
    };
    Ok(SplitLoop { header, body, independent, devices })
}

/// `source.map(|pat| value).collect()` as a block with a loop that pushes.
pub fn collect_loop(expr: &Expr) -> Option<(ExprForLoop, proc_macro2::Ident)> {
    let (pat, source, value) = collected(expr)?;
    let vec = syn::Ident::new("__collected", expr.span());
    let source = parse_quote_spanned!(expr.span()=> for #pat in #source { #vec.push(#value); });
    Some((source, vec))
}

/// Calls a function for every loop of a block that is not inside of another loop that the function accepted.
pub fn visit_loops(block: &Block, visit: &mut dyn FnMut(&ExprForLoop) -> bool) {
    for stmt in &block.stmts {
        match stmt {
            Stmt::Expr(expr, _) => visit_expr(expr, visit),
            Stmt::Local(local) => {
                if let Some(init) = &local.init {
                    visit_expr(&init.expr, visit);
                }
            }
            _ => {}
        }
    }
}

fn visit_expr(expr: &Expr, visit: &mut dyn FnMut(&ExprForLoop) -> bool) {
    match expr {
        Expr::ForLoop(source) => {
            if !visit(source) {
                visit_loops(&source.body, visit);
            }
        }
        Expr::While(inner) => visit_loops(&inner.body, visit),
        Expr::Loop(inner) => visit_loops(&inner.body, visit),
        Expr::Block(inner) => visit_loops(&inner.block, visit),
        Expr::Unsafe(inner) => visit_loops(&inner.block, visit),
        Expr::If(branch) => {
            visit_loops(&branch.then_branch, visit);
            if let Some((_, other)) = &branch.else_branch {
                visit_expr(other, visit);
            }
        }
        other => {
            if let Some((source, _)) = collect_loop(other) {
                visit(&source);
            }
        }
    }
}

/// Whether a loop contains another.
pub fn has_inner_loop(source: &ExprForLoop) -> bool {
    let mut found = false;
    visit_loops(&source.body, &mut |_| {
        found = true;
        true
    });
    found
}

/// A note that names what keeps a loop from some devices.
pub fn device_note(split: &SplitLoop) -> Option<Problem> {
    match &split.devices {
        Err(problem) => Some(problem.clone()),
        Ok((_, kernels)) => kernels.wgsl.as_ref().err().or(kernels.cuda.as_ref().err()).cloned(),
    }
}
