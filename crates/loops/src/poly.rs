//! Index expressions as polynomials with whole coefficients: `3 * (y * w + x) + c` is `3·w·y + 3·x + c`.

use std::collections::BTreeMap;

/// A polynomial: the coefficient of each product of names. The empty product is the constant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Poly(BTreeMap<Vec<String>, i64>);

impl Poly {
    pub(crate) fn constant(value: i64) -> Poly {
        Poly(BTreeMap::from([(Vec::new(), value)])).reduced()
    }

    pub(crate) fn name(name: &str) -> Poly {
        Poly(BTreeMap::from([(vec![name.to_owned()], 1)]))
    }

    fn reduced(mut self) -> Poly {
        self.0.retain(|_, coefficient| *coefficient != 0);
        self
    }

    pub(crate) fn add(&self, other: &Poly) -> Poly {
        let mut sum = self.clone();
        for (product, coefficient) in &other.0 {
            let entry = sum.0.entry(product.clone()).or_default();
            *entry = entry.saturating_add(*coefficient);
        }
        sum.reduced()
    }

    pub(crate) fn negated(&self) -> Poly {
        Poly(self.0.iter().map(|(product, coefficient)| (product.clone(), -coefficient)).collect())
    }

    pub(crate) fn sub(&self, other: &Poly) -> Poly {
        self.add(&other.negated())
    }

    pub(crate) fn mul(&self, other: &Poly) -> Poly {
        let mut result = Poly::default();
        for (left, a) in &self.0 {
            for (right, b) in &other.0 {
                let mut product = [left.clone(), right.clone()].concat();
                product.sort();
                let entry = result.0.entry(product).or_default();
                *entry = entry.saturating_add(a.saturating_mul(*b));
            }
        }
        result.reduced()
    }

    /// The value, if it is a constant.
    pub(crate) fn as_constant(&self) -> Option<i64> {
        match self.0.len() {
            0 => Some(0),
            1 => self.0.get(&Vec::new()).copied(),
            _ => None,
        }
    }

    /// Splits into `coefficient · name + rest`. `None` if the name occurs in a higher power.
    pub(crate) fn split(&self, name: &str) -> Option<(Poly, Poly)> {
        let (mut coefficient, mut rest) = (Poly::default(), Poly::default());
        for (product, value) in &self.0 {
            match product.iter().filter(|it| *it == name).count() {
                0 => drop(rest.0.insert(product.clone(), *value)),
                1 => {
                    let without = product.iter().filter(|it| *it != name).cloned().collect();
                    coefficient.0.insert(without, *value);
                }
                _ => return None,
            }
        }
        Some((coefficient, rest))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys().flatten()
    }

    /// Whether every coefficient is positive, so that the value is not negative for unsigned names.
    pub(crate) fn is_positive(&self) -> bool {
        self.0.values().all(|coefficient| *coefficient > 0)
    }

    pub(crate) fn replace(&self, name: &str, by: &Poly) -> Option<Poly> {
        let (coefficient, rest) = self.split(name)?;
        Some(coefficient.mul(by).add(&rest))
    }

    /// The polynomial as Rust source of type `usize` over the names. Negative parts wrap.
    pub(crate) fn source(&self) -> String {
        let mut out = String::new();
        for (product, coefficient) in self.0.iter().rev() {
            let mut factors: Vec<String> = product.iter().map(|name| format!("({name} as usize)")).collect();
            if coefficient.unsigned_abs() != 1 || factors.is_empty() {
                factors.insert(0, format!("{}usize", coefficient.unsigned_abs()));
            }
            let term = factors.join(" * ");
            out = match (out.is_empty(), *coefficient < 0) {
                (true, false) => term,
                (true, true) => format!("0usize.wrapping_sub({term})"),
                (false, false) => format!("({out}).wrapping_add({term})"),
                (false, true) => format!("({out}).wrapping_sub({term})"),
            };
        }
        if out.is_empty() { "0usize".into() } else { out }
    }
}
