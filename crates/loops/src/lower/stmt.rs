//! Statements, blocks and `match`.

use std::collections::HashMap;

use syn::{Expr as Source, Pat, Stmt as SourceStmt, spanned::Spanned};

use super::{Lower, Meaning, expr::operator, plain_type};
use crate::{
    access::{is_assigning, name_of, take_if},
    header,
    ir::{Binary, Block, Expr, Kind, Stmt, Ty},
    problem::{Problem, Result},
    text::text,
};

impl Lower<'_> {
    pub(super) fn block(&mut self, source: &syn::Block, wants_value: bool) -> Result<Block> {
        self.scopes.push(HashMap::new());
        let mut block = Block::default();
        for (number, stmt) in source.stmts.iter().enumerate() {
            let is_last = number + 1 == source.stmts.len();
            match stmt {
                SourceStmt::Local(local) => self.let_stmt(local, &mut block.stmts)?,
                SourceStmt::Expr(expr, None) if is_last && wants_value && has_value(expr) => {
                    block.value = Some(Box::new(self.expr(expr)?));
                }
                SourceStmt::Expr(expr, _) => self.stmt(expr, &mut block.stmts)?,
                SourceStmt::Item(item) => {
                    return Err(Problem::new(item.span(), "devices have no items inside of a loop"));
                }
                SourceStmt::Macro(call) => return Err(refuse_macro(&call.mac)),
            }
        }
        self.scopes.pop();
        Ok(block)
    }

    /// The `else` of an `if`: a block or another `if`.
    pub(super) fn branch(&mut self, source: &Source, wants_value: bool) -> Result<Block> {
        match source {
            Source::Block(block) => self.block(&block.block, wants_value),
            other if wants_value && has_value(other) => {
                Ok(Block { stmts: Vec::new(), value: Some(Box::new(self.expr(other)?)) })
            }
            other => {
                let mut stmts = Vec::new();
                self.stmt(other, &mut stmts)?;
                Ok(Block { stmts, value: None })
            }
        }
    }

    fn let_stmt(&mut self, local: &syn::Local, out: &mut Vec<Stmt>) -> Result<()> {
        let (pat, ty) = match &local.pat {
            Pat::Type(typed) => {
                let ty = plain_type(&typed.ty).ok_or_else(|| {
                    Problem::new(
                        typed.ty.span(),
                        format!("devices do not have the type `{}`", text(&typed.ty)),
                    )
                })?;
                self.check_type(&ty, typed.ty.span())?;
                (&*typed.pat, Some(ty))
            }
            pat => (pat, None),
        };
        let init = local.init.as_ref().filter(|init| init.diverge.is_none());
        let init = init.map(|init| &*init.expr);
        // `let (a, b) = (x, y);`
        if let (Pat::Tuple(names), Some(Source::Tuple(values))) = (pat, init)
            && names.elems.len() == values.elems.len()
        {
            let values = values.elems.iter().map(|value| self.expr(value)).collect::<Result<Vec<_>>>()?;
            for (name, value) in names.elems.iter().zip(values) {
                self.bind(name, Some(value), None, out)?;
            }
            return Ok(());
        }
        // `let x = &mut out[i];` is another name for the element. Its index does not change meanwhile.
        if let (Pat::Ident(name), Some(Source::Reference(reference))) = (pat, init)
            && reference.mutability.is_some()
        {
            let mut place = self.expr(&reference.expr)?;
            if let Kind::Element(_, at) | Kind::At(_, at) = &mut place.kind
                && !matches!(at.kind, Kind::Local(0) | Kind::Int(_))
            {
                let id = self.local(&format!("{}_at", name.ident), at.ty.clone());
                out.push(Stmt::Let(id, Some((**at).clone())));
                at.kind = Kind::Local(id);
            }
            self.declare(&name.ident.to_string(), Meaning::Place(place));
            return Ok(());
        }
        let value = init.map(|init| self.expr(init)).transpose()?;
        self.bind(pat, value, ty, out)
    }

    fn bind(&mut self, pat: &Pat, value: Option<Expr>, ty: Option<Ty>, out: &mut Vec<Stmt>) -> Result<()> {
        match pat {
            Pat::Ident(name) if name.subpat.is_none() => {
                let ty = match (ty, &value) {
                    (Some(ty), Some(value)) => {
                        self.unify(&ty, &value.ty, value.span)?;
                        ty
                    }
                    (Some(ty), None) => ty,
                    (None, Some(value)) => value.ty.clone(),
                    (None, None) => self.types.any(),
                };
                let id = self.local(&name.ident.to_string(), ty);
                out.push(Stmt::Let(id, value));
                self.declare(&name.ident.to_string(), Meaning::Local(id));
                Ok(())
            }
            Pat::Wild(_) => {
                out.extend(value.map(Stmt::Expr));
                Ok(())
            }
            Pat::Reference(reference) => self.bind(&reference.pat, value, ty, out),
            Pat::Paren(inner) => self.bind(&inner.pat, value, ty, out),
            other => {
                Err(Problem::new(other.span(), format!("devices do not have the pattern `{}`", text(other))))
            }
        }
    }

    fn stmt(&mut self, source: &Source, out: &mut Vec<Stmt>) -> Result<()> {
        let span = source.span();
        match source {
            Source::Paren(inner) => return self.stmt(&inner.expr, out),
            Source::Assign(assign) => {
                if let Some((name, value)) = self.reduction(&assign.left, &assign.right)? {
                    out.push(self.term(&name, value, span)?);
                    return Ok(());
                }
                let (place, value) = (self.expr(&assign.left)?, self.expr(&assign.right)?);
                self.unify(&place.ty, &value.ty, value.span)?;
                out.push(Stmt::Assign(place, value));
            }
            Source::Binary(binary) if is_assigning(&binary.op) => {
                if let Some(name) = name_of(&binary.left).filter(|name| self.is_reduced(name)) {
                    let value = self.expr(&binary.right)?;
                    out.push(self.term(&name, value, span)?);
                    return Ok(());
                }
                let (place, value) = (self.expr(&binary.left)?, self.expr(&binary.right)?);
                let Some(op) = operator(&binary.op) else { return Ok(()) };
                let value = self.combine(op, place.clone(), value, span)?;
                out.push(Stmt::Assign(place, value));
            }
            Source::If(branch) => {
                if let Some((name, _, value)) = take_if(branch)
                    && self.is_reduced(&name)
                {
                    let value = self.expr(&value)?;
                    out.push(self.term(&name, value, span)?);
                    return Ok(());
                }
                let condition = self.expr(&branch.cond)?;
                self.unify(&Ty::Bool, &condition.ty, condition.span)?;
                self.depth += 1;
                let then = self.block(&branch.then_branch, false)?;
                let otherwise = match &branch.else_branch {
                    Some((_, other)) => self.branch(other, false)?,
                    None => Block::default(),
                };
                self.depth -= 1;
                out.push(Stmt::If(condition, then, otherwise));
            }
            Source::Match(branch) => {
                let block = self.match_block(branch, false)?;
                out.extend(block.stmts);
            }
            Source::While(inner) => {
                let condition = self.expr(&inner.cond)?;
                self.unify(&Ty::Bool, &condition.ty, condition.span)?;
                let body = self.inner(&inner.body)?;
                out.push(Stmt::While(condition, body));
            }
            Source::Loop(inner) => {
                let body = self.inner(&inner.body)?;
                out.push(Stmt::Loop(body));
            }
            Source::ForLoop(inner) => {
                let header = header::header(&inner.pat, &inner.expr)?;
                let (start, end) = (self.expr(&header.start)?, self.expr(&header.end)?);
                self.unify(&start.ty, &end.ty, end.span)?;
                self.scopes.push(HashMap::new());
                let id = self.local(&header.shown, start.ty.clone());
                self.declare(&header.index.to_string(), Meaning::Local(id));
                let mut body = inner.body.clone();
                body.stmts.splice(0..0, header.prologue.iter().cloned());
                let body = self.inner(&body)?;
                self.scopes.pop();
                out.push(Stmt::For(id, start, end, header.is_inclusive, body));
            }
            Source::Break(exit) if exit.expr.is_none() && exit.label.is_none() && self.inner_loops > 0 => {
                out.push(Stmt::Break)
            }
            Source::Continue(exit) if exit.label.is_none() => {
                if self.inner_loops > 0 {
                    out.push(Stmt::Continue);
                } else {
                    self.has_ended = true;
                    out.push(Stmt::Return(None));
                }
            }
            Source::Return(exit) if self.returns.is_some() => {
                let value = exit.expr.as_ref().map(|value| self.expr(value)).transpose()?;
                if let (Some(value), Some(ty)) = (&value, self.returns.clone()) {
                    self.unify(&ty, &value.ty, value.span)?;
                }
                out.push(Stmt::Return(value));
            }
            Source::MethodCall(call) if call.method == "push" && call.args.len() == 1 => {
                let Some(name) = name_of(&call.receiver).filter(|name| self.is_reduced(name)) else {
                    return self.expr(source).map(|value| out.push(Stmt::Expr(value)));
                };
                let value = self.expr(&call.args[0])?;
                out.push(self.term(&name, value, span)?);
            }
            Source::Block(block) if block.label.is_none() => {
                let block = self.block(&block.block, false)?;
                out.push(Stmt::If(
                    Expr { ty: Ty::Bool, kind: Kind::Bool(true), span },
                    block,
                    Block::default(),
                ));
            }
            Source::Macro(call) => return Err(refuse_macro(&call.mac)),
            other => {
                let value = self.expr(other)?;
                out.push(Stmt::Expr(value));
            }
        }
        Ok(())
    }

    fn inner(&mut self, body: &syn::Block) -> Result<Block> {
        self.inner_loops += 1;
        self.depth += 1;
        let body = self.block(body, false);
        self.depth -= 1;
        self.inner_loops -= 1;
        body
    }

    fn is_reduced(&self, name: &str) -> bool {
        self.meaning(name).is_none() && self.reductions.contains_key(name)
    }

    /// The contribution in `s = s.min(x)` and `s = s + x`.
    fn reduction(&mut self, left: &Source, right: &Source) -> Result<Option<(String, Expr)>> {
        let Some(name) = name_of(left).filter(|name| self.is_reduced(name)) else { return Ok(None) };
        let mut right = right;
        while let Source::Paren(inner) = right {
            right = &inner.expr;
        }
        let value = match right {
            Source::MethodCall(call) => &call.args[0],
            Source::Binary(binary) => &binary.right,
            _ => return Ok(None),
        };
        let value = self.expr(value)?;
        Ok(Some((name, value)))
    }

    pub(super) fn match_value(&mut self, source: &Source) -> Result<Expr> {
        let Source::Match(branch) = source else { return self.expr(source) };
        let block = self.match_block(branch, true)?;
        let ty = block.value.as_ref().map_or(Ty::Unit, |value| value.ty.clone());
        Ok(Expr { ty, kind: Kind::Block(block), span: source.span() })
    }

    /// `match` as a chain of `if`.
    fn match_block(&mut self, branch: &syn::ExprMatch, wants_value: bool) -> Result<Block> {
        let value = self.expr(&branch.expr)?;
        let (span, ty) = (branch.expr.span(), value.ty.clone());
        let id = self.local("matched", ty.clone());
        let mut out = Block { stmts: vec![Stmt::Let(id, Some(value))], value: None };
        let matched = Expr { ty, kind: Kind::Local(id), span };
        self.depth += 1;
        let mut arms = Vec::new();
        for arm in &branch.arms {
            self.scopes.push(HashMap::new());
            let mut condition = self.pattern(&arm.pat, &matched)?;
            if let Some((_, guard)) = &arm.guard {
                let guard = self.expr(guard)?;
                condition = Some(match condition {
                    Some(condition) => self.combine(Binary::AndAnd, condition, guard, span)?,
                    None => guard,
                });
            }
            let body = self.branch(&arm.body, wants_value)?;
            self.scopes.pop();
            arms.push((condition, body));
        }
        self.depth -= 1;
        let mut chain: Option<Block> = None;
        for (condition, body) in arms.into_iter().rev() {
            chain = Some(match (condition, chain) {
                // The last arm is the rest: `match` covers every value.
                (None, _) | (Some(_), None) => body,
                (Some(condition), Some(rest)) if wants_value => {
                    let ty = self.same_value(&body, &rest)?;
                    let kind = Kind::If(Box::new(condition), body, rest);
                    Block { stmts: Vec::new(), value: Some(Box::new(Expr { ty, kind, span })) }
                }
                (Some(condition), Some(rest)) => {
                    Block { stmts: vec![Stmt::If(condition, body, rest)], value: None }
                }
            });
        }
        if let Some(chain) = chain {
            out.stmts.extend(chain.stmts);
            out.value = chain.value;
        }
        Ok(out)
    }

    /// The condition under which a value matches; `None` if it always does.
    fn pattern(&mut self, pat: &Pat, value: &Expr) -> Result<Option<Expr>> {
        let span = pat.span();
        match pat {
            Pat::Wild(_) => Ok(None),
            Pat::Paren(inner) => self.pattern(&inner.pat, value),
            Pat::Ident(name)
                if name.subpat.is_none() && !self.items.constants.contains_key(&name.ident.to_string()) =>
            {
                let Kind::Local(id) = value.kind else { return Ok(None) };
                self.declare(&name.ident.to_string(), Meaning::Local(id));
                Ok(None)
            }
            Pat::Lit(literal) => {
                let literal = self.expr(&Source::Lit(literal.clone()))?;
                self.combine(Binary::Eq, value.clone(), literal, span).map(Some)
            }
            Pat::Range(range) => {
                let mut condition = None;
                let is_closed = matches!(range.limits, syn::RangeLimits::Closed(_));
                for (end, op) in [
                    (&range.start, Binary::Ge),
                    (&range.end, if is_closed { Binary::Le } else { Binary::Lt }),
                ] {
                    let Some(end) = end else { continue };
                    let end = self.expr(end)?;
                    let next = self.combine(op, value.clone(), end, span)?;
                    condition = Some(match condition {
                        Some(condition) => self.combine(Binary::AndAnd, condition, next, span)?,
                        None => next,
                    });
                }
                Ok(condition)
            }
            Pat::Or(alternatives) => {
                let mut condition: Option<Expr> = None;
                for case in &alternatives.cases {
                    let Some(next) = self.pattern(case, value)? else { return Ok(None) };
                    condition = Some(match condition {
                        Some(condition) => self.combine(Binary::OrOr, condition, next, span)?,
                        None => next,
                    });
                }
                Ok(condition)
            }
            other => Err(Problem::new(span, format!("devices do not have the pattern `{}`", text(other)))),
        }
    }
}

/// Whether an expression at the end of a block can be its value: others leave the block, or are statements.
fn has_value(expr: &Source) -> bool {
    match expr {
        Source::If(branch) => branch.else_branch.is_some(),
        Source::Assign(_)
        | Source::While(_)
        | Source::Loop(_)
        | Source::ForLoop(_)
        | Source::Break(_)
        | Source::Continue(_)
        | Source::Return(_)
        | Source::Macro(_) => false,
        Source::Binary(binary) => !is_assigning(&binary.op),
        _ => true,
    }
}

fn refuse_macro(call: &syn::Macro) -> Problem {
    Problem::new(call.span(), format!("devices other than the processor do not have `{}!`", text(&call.path)))
}
