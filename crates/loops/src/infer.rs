//! Types of locals and literals, found by unification.

use crate::ir::Ty;

/// What is known of a type that is not found yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Any,
    Int,
    Float,
}

/// The types that are being found.
#[derive(Debug, Default)]
pub(crate) struct Types {
    vars: Vec<(Class, Option<Ty>)>,
}

impl Types {
    pub(crate) fn any(&mut self) -> Ty {
        self.fresh(Class::Any)
    }

    pub(crate) fn int(&mut self) -> Ty {
        self.fresh(Class::Int)
    }

    pub(crate) fn float(&mut self) -> Ty {
        self.fresh(Class::Float)
    }

    fn fresh(&mut self, class: Class) -> Ty {
        self.vars.push((class, None));
        Ty::Var(self.vars.len() - 1)
    }

    /// The type as far as it is known.
    pub(crate) fn known(&self, ty: &Ty) -> Ty {
        match ty {
            Ty::Var(var) => match &self.vars[*var].1 {
                Some(ty) => self.known(ty),
                None => ty.clone(),
            },
            Ty::Array(element, len) => Ty::Array(Box::new(self.known(element)), *len),
            other => other.clone(),
        }
    }

    /// Makes two types the same. Returns `false` if they differ.
    pub(crate) fn unify(&mut self, a: &Ty, b: &Ty) -> bool {
        let (a, b) = (self.known(a), self.known(b));
        match (&a, &b) {
            (Ty::Var(x), Ty::Var(y)) if x == y => true,
            (Ty::Var(x), Ty::Var(y)) => {
                let class = match (self.vars[*x].0, self.vars[*y].0) {
                    (Class::Any, other) | (other, Class::Any) => other,
                    (one, other) if one == other => one,
                    _ => return false,
                };
                self.vars[*y].0 = class;
                self.vars[*x].1 = Some(b);
                true
            }
            (Ty::Var(x), other) | (other, Ty::Var(x)) => {
                let fits = match self.vars[*x].0 {
                    Class::Any => true,
                    Class::Int => other.is_int(),
                    Class::Float => other.is_float(),
                };
                if fits {
                    self.vars[*x].1 = Some(other.clone());
                }
                fits
            }
            (Ty::Array(x, n), Ty::Array(y, m)) => n == m && self.unify(x, y),
            _ => a == b,
        }
    }

    /// The type in the end: literals that nothing decides are `i32` and `f64`, as in Rust.
    pub(crate) fn settled(&self, ty: &Ty) -> Option<Ty> {
        match self.known(ty) {
            Ty::Var(var) => match self.vars[var].0 {
                Class::Any => None,
                Class::Int => Some(Ty::I32),
                Class::Float => Some(Ty::F64),
            },
            Ty::Array(element, len) => Some(Ty::Array(Box::new(self.settled(&element)?), len)),
            other => Some(other),
        }
    }
}
