//! Slices of which each iteration has a row of its own.

use std::ops::{Index, IndexMut, Range};

/// Part of a slice that is written: indices are those of the whole slice.
#[derive(Debug)]
pub struct Rows<'a, T> {
    part: &'a mut [T],
    /// The number of the part's first element in the whole slice.
    first: usize,
    /// Elements of the whole slice.
    len: usize,
    width: usize,
    /// The number of the element at which the next row begins. It may be before the part, or after it.
    row: usize,
}

impl<'a, T> Rows<'a, T> {
    /// A whole slice whose rows begin at an element.
    pub fn new(slice: &'a mut [T], width: usize, row: usize) -> Self {
        let len = slice.len();
        Rows { part: slice, first: 0, len, width, row }
    }

    /// A part of a slice, which begins at a row.
    pub fn part(part: &'a mut [T], width: usize, row: usize, len: usize) -> Self {
        Rows { part, first: row, len, width, row }
    }

    /// Elements of the whole slice.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    #[cold]
    #[inline(never)]
    #[allow(clippy::panic)]
    fn refuse(&self, index: usize) -> ! {
        if index < self.len {
            panic!(
                "iterations use element {index} of a slice of which another part is theirs: this is a bug of `#[parallel]`"
            );
        }
        panic!("index out of bounds: the len is {} but the index is {index}", self.len);
    }

    fn range(&self, range: &Range<usize>) -> Range<usize> {
        if range.start > range.end || range.end > self.len {
            // The slice's own message.
            let empty: &[()] = &vec![(); self.len];
            let _ = &empty[range.clone()];
        }
        let start = range.start.wrapping_sub(self.first);
        if start > self.part.len() || range.len() > self.part.len() - start {
            self.refuse(range.start);
        }
        start..start + range.len()
    }
}

impl<T> Index<usize> for Rows<'_, T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, index: usize) -> &T {
        match self.part.get(index.wrapping_sub(self.first)) {
            Some(element) => element,
            None => self.refuse(index),
        }
    }
}

impl<T> IndexMut<usize> for Rows<'_, T> {
    #[inline(always)]
    fn index_mut(&mut self, index: usize) -> &mut T {
        let at = index.wrapping_sub(self.first);
        if at >= self.part.len() {
            self.refuse(index);
        }
        &mut self.part[at]
    }
}

impl<T> Index<Range<usize>> for Rows<'_, T> {
    type Output = [T];

    fn index(&self, range: Range<usize>) -> &[T] {
        &self.part[self.range(&range)]
    }
}

impl<T> IndexMut<Range<usize>> for Rows<'_, T> {
    fn index_mut(&mut self, range: Range<usize>) -> &mut [T] {
        let range = self.range(&range);
        &mut self.part[range]
    }
}

/// Part of a slice that is only read: indices are those of the whole slice.
#[derive(Debug)]
pub struct ReadRows<'a, T> {
    part: &'a [T],
    first: usize,
    len: usize,
}

impl<'a, T> ReadRows<'a, T> {
    /// A part of a slice.
    pub fn new(part: &'a [T], first: usize, len: usize) -> Self {
        ReadRows { part, first, len }
    }

    /// Elements of the whole slice.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl<T> Index<usize> for ReadRows<'_, T> {
    type Output = T;

    #[inline(always)]
    #[allow(clippy::panic)]
    fn index(&self, index: usize) -> &T {
        match self.part.get(index.wrapping_sub(self.first)) {
            Some(element) if index < self.len => element,
            _ => panic!("index out of bounds: the len is {} but the index is {index}", self.len),
        }
    }
}

/// What can be cut into the rows of some iterations and those of the rest.
pub trait Split: Sized {
    /// Cuts after the rows of `count` iterations.
    fn split(self, count: usize) -> (Self, Self);
}

impl<T> Split for Rows<'_, T> {
    fn split(self, count: usize) -> (Self, Self) {
        let Rows { part, first, len, width, row } = self;
        let next = row.wrapping_add(width.wrapping_mul(count));
        // Rows may lie outside of the slice: the iterations fail, as those of the plain loop do.
        let cut = (next as isize).saturating_sub(first as isize).clamp(0, part.len() as isize) as usize;
        let (left, right) = part.split_at_mut(cut);
        let right = Rows { part: right, first: first + cut, len, width, row: next };
        (Rows { part: left, first, len, width, row }, right)
    }
}

impl Split for () {
    fn split(self, _: usize) -> ((), ()) {
        ((), ())
    }
}

macro_rules! tuples {
    ($(($($name:ident)+))*) => {$(
        impl<$($name: Split),+> Split for ($($name,)+) {
            #[allow(non_snake_case)]
            fn split(self, count: usize) -> (Self, Self) {
                let ($($name,)+) = self;
                $(let $name = $name.split(count);)+
                (($($name.0,)+), ($($name.1,)+))
            }
        }
    )*};
}
tuples!((A)(A B)(A B C)(A B C D)(A B C D E)(A B C D E F)(A B C D E F G)(A B C D E F G H));
tuples!((A B C D E F G H I)(A B C D E F G H I J)(A B C D E F G H I J K)(A B C D E F G H I J K L));

/// Whether a slice has all rows of some iterations.
pub fn covers(len: usize, width: usize, first: usize, count: usize) -> bool {
    let rows = width.checked_mul(count);
    width > 0 && rows.and_then(|rows| first.checked_add(rows)).is_some_and(|end| end <= len)
}

/// The rows of some iterations, which the slice [covers].
pub fn rows<T>(slice: &[T], width: usize, first: usize, count: usize) -> &[T] {
    &slice[first..first + width * count]
}

/// As [`rows`].
pub fn rows_mut<T>(slice: &mut [T], width: usize, first: usize, count: usize) -> &mut [T] {
    &mut slice[first..first + width * count]
}

/// Gives the rows of some iterations their old contents.
pub fn restore<T: Copy>(slice: &mut [T], old: &[T], width: usize, first: usize, part: Range<usize>) {
    let range = part.start * width..part.end * width;
    slice[first + range.start..first + range.end].copy_from_slice(&old[range]);
}
