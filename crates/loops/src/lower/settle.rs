//! Replaces types that were being found by what they are, and decides which slices are written before they are read.

use crate::{
    depend::Independent,
    infer::Types,
    ir::{Block, Body, Expr, Kind, Role, Stmt, Ty},
    problem::{Problem, Result},
};

/// Gives every expression its type. Fails where a type is not decided by the source that the macro sees.
pub(super) fn settle(body: &mut Body, types: &Types) -> Result<()> {
    let mut settle = Settle { types };
    settle.block(&mut body.block)?;
    for function in &mut body.functions {
        settle.block(&mut function.block)?;
        for local in &mut function.locals {
            local.ty = types.settled(&local.ty).unwrap_or(Ty::Unit);
        }
    }
    let span = proc_macro2::Span::call_site();
    let unknown = |what: &str, name: &str| {
        Problem::new(
            span,
            format!("the type of the {what} `{name}` is not known here: write it, as in `let x: f32 = …`"),
        )
    };
    for local in &mut body.locals {
        local.ty = types.settled(&local.ty).ok_or_else(|| unknown("variable", &local.name))?;
    }
    for slice in &mut body.slices {
        slice.ty = types.settled(&slice.ty).ok_or_else(|| unknown("slice", &slice.name))?;
        if slice.ty == Ty::Bool {
            return Err(Problem::new(
                span,
                format!("`{}` is a slice of `bool`, which has no fixed layout on devices", slice.name),
            ));
        }
    }
    for scalar in &mut body.scalars {
        scalar.ty = types.settled(&scalar.ty).ok_or_else(|| unknown("value", &scalar.name))?;
    }
    for term in &mut body.terms {
        term.ty = types.settled(&term.ty).ok_or_else(|| unknown("variable", &term.name))?;
    }
    Ok(())
}

struct Settle<'a> {
    types: &'a Types,
}

impl Settle<'_> {
    fn expr(&mut self, expr: &mut Expr) -> Result<()> {
        expr.ty = self.types.settled(&expr.ty).ok_or_else(|| {
            Problem::new(
                expr.span,
                "the type of this expression is not known here: write it, as in `let x: f32 = …`",
            )
        })?;
        // An integer literal may turn out to be a floating-point number only by its suffix, so the kind stays.
        match &mut expr.kind {
            Kind::Element(_, a) | Kind::Neg(a) | Kind::Not(a) | Kind::Cast(a) | Kind::Field(a, _) => {
                self.expr(a)
            }
            Kind::Binary(_, a, b) | Kind::At(a, b) => {
                self.expr(a)?;
                self.expr(b)
            }
            Kind::Method(_, list) | Kind::Call(_, list) | Kind::Array(list) | Kind::Struct(_, list) => {
                list.iter_mut().try_for_each(|it| self.expr(it))
            }
            Kind::If(condition, then, otherwise) => {
                self.expr(condition)?;
                self.block(then)?;
                self.block(otherwise)
            }
            Kind::Block(block) => self.block(block),
            _ => Ok(()),
        }
    }

    fn block(&mut self, block: &mut Block) -> Result<()> {
        for stmt in &mut block.stmts {
            match stmt {
                Stmt::Let(_, None) | Stmt::Break | Stmt::Continue | Stmt::Return(None) => {}
                Stmt::Let(_, Some(value))
                | Stmt::Expr(value)
                | Stmt::Return(Some(value))
                | Stmt::Term(_, value) => {
                    self.expr(value)?;
                }
                Stmt::Assign(place, value) => {
                    self.expr(place)?;
                    self.expr(value)?;
                }
                Stmt::If(condition, then, otherwise) => {
                    self.expr(condition)?;
                    self.block(then)?;
                    self.block(otherwise)?;
                }
                Stmt::While(condition, body) => {
                    self.expr(condition)?;
                    self.block(body)?;
                }
                Stmt::For(_, start, end, _, body) => {
                    self.expr(start)?;
                    self.expr(end)?;
                    self.block(body)?;
                }
                Stmt::Loop(body) => self.block(body)?,
            }
        }
        block.value.as_mut().map_or(Ok(()), |value| self.expr(value))
    }
}

/// Marks slices of rows of one element that every iteration writes before it reads them: their old contents are not needed.
pub(super) fn outputs(body: &mut Body, independent: &Independent) {
    for number in 0..body.slices.len() {
        let name = &body.slices[number].name;
        let rows = independent.writes.iter().find(|rows| rows.name == *name);
        if rows.and_then(|rows| rows.constant_width()) != Some(1) {
            continue;
        }
        for stmt in &body.block.stmts {
            let is_write = matches!(stmt, Stmt::Assign(place, value)
                if matches!(&place.kind, Kind::Element(it, _) if *it == number) && !uses_expr(value, number));
            if is_write {
                body.slices[number].role = Role::Output;
                break;
            }
            if uses_stmt(stmt, number) {
                break;
            }
        }
    }
}

fn uses_block(block: &Block, slice: usize) -> bool {
    block.stmts.iter().any(|stmt| uses_stmt(stmt, slice))
        || block.value.as_ref().is_some_and(|value| uses_expr(value, slice))
}

/// Whether a statement uses the slice, or may end the iteration.
fn uses_stmt(stmt: &Stmt, slice: usize) -> bool {
    match stmt {
        Stmt::Return(_) => true,
        Stmt::Let(_, None) | Stmt::Break | Stmt::Continue => false,
        Stmt::Let(_, Some(value)) | Stmt::Expr(value) | Stmt::Term(_, value) => uses_expr(value, slice),
        Stmt::Assign(place, value) => uses_expr(place, slice) || uses_expr(value, slice),
        Stmt::If(condition, then, otherwise) => {
            uses_expr(condition, slice) || uses_block(then, slice) || uses_block(otherwise, slice)
        }
        Stmt::While(condition, body) => uses_expr(condition, slice) || uses_block(body, slice),
        Stmt::For(_, start, end, _, body) => {
            uses_expr(start, slice) || uses_expr(end, slice) || uses_block(body, slice)
        }
        Stmt::Loop(body) => uses_block(body, slice),
    }
}

fn uses_expr(expr: &Expr, slice: usize) -> bool {
    match &expr.kind {
        Kind::Element(it, at) => *it == slice || uses_expr(at, slice),
        Kind::Neg(a) | Kind::Not(a) | Kind::Cast(a) | Kind::Field(a, _) => uses_expr(a, slice),
        Kind::Binary(_, a, b) | Kind::At(a, b) => uses_expr(a, slice) || uses_expr(b, slice),
        Kind::Method(_, list) | Kind::Call(_, list) | Kind::Array(list) | Kind::Struct(_, list) => {
            list.iter().any(|it| uses_expr(it, slice))
        }
        Kind::If(condition, then, otherwise) => {
            uses_expr(condition, slice) || uses_block(then, slice) || uses_block(otherwise, slice)
        }
        Kind::Block(block) => uses_block(block, slice),
        _ => false,
    }
}
