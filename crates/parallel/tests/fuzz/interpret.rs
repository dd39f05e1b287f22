//! A reference interpreter of typed bodies, with the checks of a debug build.

use std::collections::HashMap;

use evener_loops::ir::{Binary, Block, Expr, Kind, LocalId, Stmt, Ty};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value {
    Int(i128),
    F32(f32),
    Bool(bool),
}

/// The iteration panics.
#[derive(Debug)]
pub(crate) struct Panics;

pub(crate) enum Flow {
    Next,
    Break,
    Continue,
}

pub(crate) struct Iteration {
    pub locals: HashMap<LocalId, Value>,
    /// The element of each slice that belongs to this iteration.
    pub elements: HashMap<usize, Value>,
    pub len: usize,
    pub is_checked: bool,
}

fn range(ty: &Ty) -> (i128, i128) {
    match (ty.bits(), ty.is_signed()) {
        (32, true) => (i32::MIN.into(), i32::MAX.into()),
        (32, false) => (0, u32::MAX.into()),
        (_, true) => (i64::MIN.into(), i64::MAX.into()),
        _ => (0, u64::MAX.into()),
    }
}

pub(crate) fn wrap(ty: &Ty, value: i128) -> i128 {
    match (ty.bits(), ty.is_signed()) {
        (32, true) => value as i32 as i128,
        (32, false) => value as u32 as i128,
        (_, true) => value as i64 as i128,
        _ => value as u64 as i128,
    }
}

impl Iteration {
    fn fit(&self, ty: &Ty, value: i128) -> Result<Value, Panics> {
        let (low, high) = range(ty);
        if self.is_checked && (value < low || value > high) {
            return Err(Panics);
        }
        Ok(Value::Int(wrap(ty, value)))
    }

    fn int(&mut self, expr: &Expr) -> Result<i128, Panics> {
        match self.expr(expr)? {
            Value::Int(value) => Ok(value),
            other => panic!("{other:?} is no integer"),
        }
    }

    fn bool(&mut self, expr: &Expr) -> Result<bool, Panics> {
        match self.expr(expr)? {
            Value::Bool(value) => Ok(value),
            other => panic!("{other:?} is no bool"),
        }
    }

    pub(crate) fn expr(&mut self, expr: &Expr) -> Result<Value, Panics> {
        Ok(match &expr.kind {
            Kind::Int(value) => Value::Int(i128::from(*value)),
            Kind::Float(value) => Value::F32(*value as f32),
            Kind::Bool(value) => Value::Bool(*value),
            Kind::Local(id) => self.locals[id],
            Kind::Element(slice, _) => self.elements[slice],
            Kind::Len(_) => Value::Int(self.len as i128),
            Kind::Neg(inner) => match self.expr(inner)? {
                Value::Int(value) => return self.fit(&expr.ty, -value),
                Value::F32(value) => Value::F32(-value),
                other => other,
            },
            Kind::Not(inner) => match self.expr(inner)? {
                Value::Int(value) => Value::Int(wrap(&expr.ty, !value)),
                Value::Bool(value) => Value::Bool(!value),
                other => other,
            },
            Kind::Cast(inner) => match self.expr(inner)? {
                Value::Int(value) if expr.ty == Ty::F32 => Value::F32(match inner.ty.is_signed() {
                    true => value as i64 as f32,
                    false => value as u64 as f32,
                }),
                Value::Int(value) => Value::Int(wrap(&expr.ty, value)),
                Value::F32(value) if expr.ty.is_int() => {
                    let (low, high) = range(&expr.ty);
                    Value::Int((value as i128).clamp(low, high))
                }
                Value::Bool(value) => Value::Int(value.into()),
                other => other,
            },
            Kind::Binary(op, left, right) => return self.binary(*op, left, right, &expr.ty),
            Kind::Method(name, list) => {
                let a = self.expr(&list[0])?;
                let b = list.get(1).map(|it| self.expr(it)).transpose()?;
                return self.method(name, a, b, &list[0].ty, &expr.ty);
            }
            Kind::If(condition, then, otherwise) => {
                let block = if self.bool(condition)? { then } else { otherwise };
                return self.value(block);
            }
            Kind::Block(block) => return self.value(block),
            other => panic!("the fuzzer does not make {other:?}"),
        })
    }

    fn value(&mut self, block: &Block) -> Result<Value, Panics> {
        self.block(block)?;
        match &block.value {
            Some(value) => self.expr(value),
            None => panic!("a block without value"),
        }
    }

    fn binary(&mut self, op: Binary, left: &Expr, right: &Expr, ty: &Ty) -> Result<Value, Panics> {
        if let Binary::AndAnd | Binary::OrOr = op {
            let a = self.bool(left)?;
            return Ok(Value::Bool(match op {
                Binary::AndAnd => a && self.bool(right)?,
                _ => a || self.bool(right)?,
            }));
        }
        let (a, b) = (self.expr(left)?, self.expr(right)?);
        Ok(match (a, b) {
            (Value::F32(a), Value::F32(b)) => match op {
                Binary::Add => Value::F32(a + b),
                Binary::Sub => Value::F32(a - b),
                Binary::Mul => Value::F32(a * b),
                Binary::Div => Value::F32(a / b),
                Binary::Lt => Value::Bool(a < b),
                Binary::Le => Value::Bool(a <= b),
                Binary::Gt => Value::Bool(a > b),
                Binary::Ge => Value::Bool(a >= b),
                Binary::Eq => Value::Bool(a == b),
                _ => Value::Bool(a != b),
            },
            (Value::Int(a), Value::Int(b)) => {
                let bits = i128::from(left.ty.bits());
                match op {
                    Binary::Add => return self.fit(ty, a + b),
                    Binary::Sub => return self.fit(ty, a - b),
                    Binary::Mul => {
                        return match a.checked_mul(b) {
                            Some(product) => self.fit(ty, product),
                            None if self.is_checked => Err(Panics),
                            None => Ok(Value::Int(wrap(ty, a.wrapping_mul(b)))),
                        };
                    }
                    Binary::Div | Binary::Rem => {
                        if b == 0 || (b == -1 && a == range(ty).0 && ty.is_signed()) {
                            return Err(Panics);
                        }
                        Value::Int(if op == Binary::Div { a / b } else { a % b })
                    }
                    Binary::Shl | Binary::Shr => {
                        if self.is_checked && !(0..bits).contains(&b) {
                            return Err(Panics);
                        }
                        let amount = b.rem_euclid(bits) as u32;
                        Value::Int(wrap(ty, if op == Binary::Shl { a << amount } else { a >> amount }))
                    }
                    Binary::And => Value::Int(wrap(ty, a & b)),
                    Binary::Or => Value::Int(wrap(ty, a | b)),
                    Binary::Xor => Value::Int(wrap(ty, a ^ b)),
                    Binary::Lt => Value::Bool(a < b),
                    Binary::Le => Value::Bool(a <= b),
                    Binary::Gt => Value::Bool(a > b),
                    Binary::Ge => Value::Bool(a >= b),
                    Binary::Eq => Value::Bool(a == b),
                    _ => Value::Bool(a != b),
                }
            }
            other => panic!("{other:?}"),
        })
    }

    fn method(
        &mut self,
        name: &str,
        a: Value,
        b: Option<Value>,
        from: &Ty,
        ty: &Ty,
    ) -> Result<Value, Panics> {
        let (low, high) = if from.is_int() { range(from) } else { (0, 0) };
        Ok(match (name, a, b) {
            ("wrapping_add", Value::Int(a), Some(Value::Int(b))) => Value::Int(wrap(ty, a + b)),
            ("wrapping_sub", Value::Int(a), Some(Value::Int(b))) => Value::Int(wrap(ty, a - b)),
            ("wrapping_mul", Value::Int(a), Some(Value::Int(b))) => Value::Int(wrap(ty, a.wrapping_mul(b))),
            ("saturating_add", Value::Int(a), Some(Value::Int(b))) => Value::Int((a + b).clamp(low, high)),
            ("saturating_sub", Value::Int(a), Some(Value::Int(b))) => Value::Int((a - b).clamp(low, high)),
            ("saturating_mul", Value::Int(a), Some(Value::Int(b))) => {
                Value::Int(a.saturating_mul(b).clamp(low, high))
            }
            ("min", Value::Int(a), Some(Value::Int(b))) => Value::Int(a.min(b)),
            ("max", Value::Int(a), Some(Value::Int(b))) => Value::Int(a.max(b)),
            ("abs", Value::Int(a), None) => return self.fit(ty, a.abs()),
            ("count_ones", Value::Int(a), None) => {
                let mask = if from.bits() == 32 { u128::from(u32::MAX) } else { u128::from(u64::MAX) };
                Value::Int((a as u128 & mask).count_ones().into())
            }
            ("leading_zeros", Value::Int(a), None) => Value::Int(match from.bits() {
                32 => (a as u32).leading_zeros().into(),
                _ => (a as u64).leading_zeros().into(),
            }),
            ("min", Value::F32(a), Some(Value::F32(b))) => Value::F32(a.min(b)),
            ("max", Value::F32(a), Some(Value::F32(b))) => Value::F32(a.max(b)),
            ("abs", Value::F32(a), None) => Value::F32(a.abs()),
            ("floor", Value::F32(a), None) => Value::F32(a.floor()),
            ("sqrt", Value::F32(a), None) => Value::F32(a.sqrt()),
            other => panic!("{other:?}"),
        })
    }

    pub(crate) fn block(&mut self, block: &Block) -> Result<Flow, Panics> {
        for stmt in &block.stmts {
            match stmt {
                Stmt::Let(id, Some(value)) => {
                    let value = self.expr(value)?;
                    self.locals.insert(*id, value);
                }
                Stmt::Assign(place, value) => {
                    let value = self.expr(value)?;
                    match &place.kind {
                        Kind::Local(id) => drop(self.locals.insert(*id, value)),
                        Kind::Element(slice, _) => drop(self.elements.insert(*slice, value)),
                        other => panic!("{other:?}"),
                    }
                }
                Stmt::If(condition, then, otherwise) => {
                    let branch = if self.bool(condition)? { then } else { otherwise };
                    match self.block(branch)? {
                        Flow::Next => {}
                        other => return Ok(other),
                    }
                }
                Stmt::While(condition, body) => {
                    while self.bool(condition)? {
                        if let Flow::Break = self.block(body)? {
                            break;
                        }
                    }
                }
                Stmt::For(id, start, end, is_inclusive, body) => {
                    let (start, end) = (self.int(start)?, self.int(end)? + i128::from(*is_inclusive));
                    for value in start..end {
                        self.locals.insert(*id, Value::Int(value));
                        if let Flow::Break = self.block(body)? {
                            break;
                        }
                    }
                }
                Stmt::Break => return Ok(Flow::Break),
                Stmt::Continue => return Ok(Flow::Continue),
                Stmt::Expr(value) => drop(self.expr(value)?),
                other => panic!("the fuzzer does not make {other:?}"),
            }
        }
        Ok(Flow::Next)
    }
}
