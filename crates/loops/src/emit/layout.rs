//! The buffers and parameters of a kernel.

use super::{print::Printer, rows, too_many};
use crate::{
    depend::Independent,
    ir::{Body, Role, Ty},
    problem::Result,
};

/// What a device must have for a kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// 64-bit integers.
    pub int64: bool,
    /// 64-bit floating point.
    pub float64: bool,
}

/// Where the value of a parameter comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldSource {
    /// The first value of the loop's variable.
    Start,
    /// The length of a slice.
    Len(usize),
    /// The number of elements in a row of a slice.
    Width(usize),
    /// The first element of the row of iteration 0.
    Base(usize),
    /// A scalar of the body.
    Scalar(usize),
}

/// One parameter of a kernel, after those of the chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Its name in the sources.
    pub name: String,
    /// Its type in the sources.
    pub ty: Ty,
    /// Its value.
    pub source: FieldSource,
}

/// The order of a kernel's buffers and parameters, which its caller must follow.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The parameters: those of eight bytes first.
    pub fields: Vec<Field>,
    /// Slices that are inputs by row, of each the old contents for those that are also written.
    pub inputs: Vec<usize>,
    /// Slices that every iteration reads anywhere.
    pub tables: Vec<usize>,
    /// Slices that are written by row.
    pub outputs: Vec<usize>,
    /// The constant width and base of each slice's rows, where both are constants.
    pub(crate) constant_rows: Vec<Option<(u64, i64)>>,
}

/// The words of parameters after those of the chunk.
const MAX_WORDS: usize = 27;

impl Layout {
    pub(crate) fn of(body: &Body, independent: &Independent) -> Result<Layout> {
        let numbers = |wanted: &[Role]| -> Vec<usize> {
            (0..body.slices.len()).filter(|number| wanted.contains(&body.slices[*number].role)).collect()
        };
        let mut fields = vec![Field {
            name: "loop_start".into(),
            ty: body.locals[0].ty.clone(),
            source: FieldSource::Start,
        }];
        let mut constant_rows = Vec::new();
        for (number, slice) in body.slices.iter().enumerate() {
            let mut add = |suffix: &str, source| {
                fields.push(Field {
                    name: format!("{}_{suffix}", Printer::safe(&slice.name)),
                    ty: Ty::Usize,
                    source,
                });
            };
            add("len", FieldSource::Len(number));
            let constant = rows(independent, &slice.name)
                .and_then(|rows| Some((rows.constant_width()?, rows.base.as_constant()?)));
            if slice.role != Role::Table && constant.is_none() {
                add("width", FieldSource::Width(number));
                add("base", FieldSource::Base(number));
            }
            constant_rows.push(constant.filter(|_| slice.role != Role::Table));
        }
        for (number, scalar) in body.scalars.iter().enumerate() {
            let name = scalar.name.rsplit("::").next().unwrap_or(&scalar.name).to_owned();
            fields.push(Field { name, ty: scalar.ty.clone(), source: FieldSource::Scalar(number) });
        }
        fields.sort_by_key(|field| field.ty.bits() != 64);
        let words: usize = fields.iter().map(|field| (field.ty.bits() as usize / 32).max(1)).sum();
        if words > MAX_WORDS {
            return Err(too_many("more parameters and slices than devices take"));
        }
        Ok(Layout {
            fields,
            inputs: numbers(&[Role::Input, Role::InOut]),
            tables: numbers(&[Role::Table]),
            outputs: numbers(&[Role::Output, Role::InOut]),
            constant_rows,
        })
    }

    /// The layout of a body's kernel.
    pub fn new(body: &Body, independent: &Independent) -> Result<Layout> {
        Layout::of(body, independent)
    }
}
