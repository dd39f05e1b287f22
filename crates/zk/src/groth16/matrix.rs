//! Sparse matrices of constraints.

use ark_bn254::Fr;
use ark_ff::{One, Zero};
use rayon::prelude::*;

/// A sparse matrix: a row per constraint, a column per wire.
#[derive(Clone, PartialEq, Eq)]
pub struct SparseMatrix {
    columns: usize,
    /// Index of each row's first term, and the number of all terms at the end.
    starts: Vec<usize>,
    terms: Vec<(u32, Fr)>,
}

impl SparseMatrix {
    /// Makes a matrix row by row.
    pub(crate) fn builder() -> MatrixBuilder {
        MatrixBuilder { starts: vec![0], terms: Vec::new() }
    }

    /// Makes a matrix from entries in any order: row, column and value. All rows and columns are in range.
    pub(crate) fn from_entries(
        rows: usize,
        columns: usize,
        entries: impl Iterator<Item = (u32, u32, Fr)> + Clone,
    ) -> SparseMatrix {
        // Counts the terms of each row, then puts every term at the next free place of its row.
        let mut starts = vec![0; rows + 1];
        for (row, _, _) in entries.clone() {
            starts[row as usize + 1] += 1;
        }
        for row in 0..rows {
            starts[row + 1] += starts[row];
        }
        let mut next = starts.clone();
        let mut terms = vec![(0, Fr::zero()); starts[rows]];
        for (row, column, value) in entries {
            terms[next[row as usize]] = (column, value);
            next[row as usize] += 1;
        }
        SparseMatrix { columns, starts, terms }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the number of terms.
    pub fn len(&self) -> usize {
        self.terms.len()
    }

    /// Returns whether the matrix has no term.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns the terms of a row: column and value.
    pub fn row(&self, row: usize) -> &[(u32, Fr)] {
        &self.terms[self.starts[row]..self.starts[row + 1]]
    }

    /// Writes the product with a vector of [`columns`](Self::columns) elements to the first elements of a slice of at least
    /// [`rows`](Self::rows), in the threads of the current rayon pool.
    pub(crate) fn multiply(&self, vector: &[Fr], product: &mut [Fr]) {
        let rows = product[..self.rows()].par_iter_mut().with_min_len(256);
        rows.enumerate().for_each(|(row, product)| *product = self.row_product(row, vector));
    }

    /// Returns the product of one row with a vector.
    pub(crate) fn row_product(&self, row: usize, vector: &[Fr]) -> Fr {
        self.row(row).iter().fold(Fr::zero(), |sum, (column, value)| {
            let element = vector[*column as usize];
            sum + if value.is_one() { element } else { element * value }
        })
    }
}

impl std::fmt::Debug for SparseMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SparseMatrix({} × {}, {} terms)", self.rows(), self.columns, self.len())
    }
}

/// A matrix that is made row by row.
pub(crate) struct MatrixBuilder {
    starts: Vec<usize>,
    terms: Vec<(u32, Fr)>,
}

impl MatrixBuilder {
    /// Adds a term to the current row.
    pub(crate) fn push(&mut self, column: u32, value: Fr) {
        self.terms.push((column, value));
    }

    /// Ends the current row.
    pub(crate) fn end_row(&mut self) {
        self.starts.push(self.terms.len());
    }

    /// Returns the matrix. All columns are less than `columns`.
    pub(crate) fn build(self, columns: usize) -> SparseMatrix {
        SparseMatrix { columns, starts: self.starts, terms: self.terms }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn entries_in_any_order_give_the_matrix_of_rows_in_order() {
        let value = |number: u64| Fr::from(number);
        let entries = [(2, 0, value(5)), (0, 1, value(2)), (2, 1, value(7)), (0, 0, value(1))];
        let matrix = SparseMatrix::from_entries(4, 2, entries.into_iter());
        assert_eq!((matrix.rows(), matrix.columns(), matrix.len()), (4, 2, 4));
        assert_eq!(matrix.row(0), [(1, value(2)), (0, value(1))]);
        assert_eq!(matrix.row(1), []);
        let mut product = vec![value(99); 5];
        matrix.multiply(&[value(10), value(100)], &mut product);
        assert_eq!(product, [210, 0, 750, 0, 99].map(value));
    }
}
