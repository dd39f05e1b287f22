//! Named axes, and the conversion between ranks and coordinates.

use serde::Serialize;

use super::error::LayoutError;

/// One axis of a mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Axis {
    /// Its name.
    pub name: String,
    /// Number of coordinates, which start at 0.
    pub size: usize,
}

/// The usual ways to distribute a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parallelism {
    /// Every device has the whole model and a part of the data: one axis, `dp`.
    DataParallel,
    /// Every layer is split over `degree` devices: one axis, `tp`. The degree must be the number of devices; with more
    /// devices, use [`Mixed`](Parallelism::Mixed).
    TensorParallel {
        /// Number of devices that share a layer.
        degree: usize,
    },
    /// The layers are split into stages, one device each: one axis, `pp`. There must be as many devices as stages.
    PipelineParallel {
        /// Number of stages.
        stages: usize,
    },
    /// All three, with axes `dp`, `pp` and `tp` (innermost).
    Mixed {
        /// Number of devices that share a layer.
        tp: usize,
        /// Number of stages.
        pp: usize,
        /// Number of replicas of the model.
        dp: usize,
    },
}

/// The shape of a mesh: axes with their sizes, innermost last, or a [`Parallelism`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape(ShapeKind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum ShapeKind {
    Axes(Vec<(String, usize)>),
    Preset(Parallelism),
}

impl From<Parallelism> for Shape {
    fn from(parallelism: Parallelism) -> Self {
        Shape(ShapeKind::Preset(parallelism))
    }
}

impl<Name: Into<String>, const N: usize> From<[(Name, usize); N]> for Shape {
    fn from(axes: [(Name, usize); N]) -> Self {
        Shape::from(Vec::from(axes))
    }
}

impl<Name: Into<String>> From<Vec<(Name, usize)>> for Shape {
    fn from(axes: Vec<(Name, usize)>) -> Self {
        Shape(ShapeKind::Axes(axes.into_iter().map(|(name, size)| (name.into(), size)).collect()))
    }
}

impl Shape {
    fn axes(self, world: usize) -> Vec<Axis> {
        let axes = match self.0 {
            ShapeKind::Axes(axes) => axes,
            ShapeKind::Preset(Parallelism::DataParallel) => vec![("dp".into(), world)],
            ShapeKind::Preset(Parallelism::TensorParallel { degree }) => vec![("tp".into(), degree)],
            ShapeKind::Preset(Parallelism::PipelineParallel { stages }) => vec![("pp".into(), stages)],
            ShapeKind::Preset(Parallelism::Mixed { tp, pp, dp }) => {
                vec![("dp".into(), dp), ("pp".into(), pp), ("tp".into(), tp)]
            }
        };
        axes.into_iter().map(|(name, size)| Axis { name, size }).collect()
    }
}

/// Checked axes: unique names, and sizes whose product is the number of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Axes(Vec<Axis>);

impl Axes {
    pub(super) fn new(shape: Shape, world: usize) -> Result<Self, LayoutError> {
        let axes = shape.axes(world);
        if axes.is_empty() {
            return Err(LayoutError::NoAxes { world });
        }
        for (index, Axis { name, size }) in axes.iter().enumerate() {
            if !is_axis_name(name) {
                return Err(LayoutError::InvalidAxisName { name: name.clone() });
            }
            if axes[..index].iter().any(|before| before.name == *name) {
                return Err(LayoutError::DuplicateAxis { name: name.clone() });
            }
            if *size == 0 {
                return Err(LayoutError::ZeroSize { axis: name.clone(), world });
            }
        }
        let product = axes.iter().try_fold(1usize, |product, axis| product.checked_mul(axis.size));
        if product != Some(world) {
            return Err(LayoutError::SizeMismatch { axes, world });
        }
        Ok(Axes(axes))
    }

    pub(super) fn as_slice(&self) -> &[Axis] {
        &self.0
    }

    pub(super) fn index(&self, name: &str) -> Result<usize, LayoutError> {
        self.0.iter().position(|axis| axis.name == name).ok_or_else(|| LayoutError::UnknownAxis {
            axis: name.into(),
            axes: self.0.iter().map(|axis| axis.name.clone()).collect(),
        })
    }

    /// Returns the distance between two ranks that are neighbours along an axis.
    pub(super) fn stride(&self, axis: usize) -> usize {
        self.0[axis + 1..].iter().map(|axis| axis.size).product()
    }

    pub(super) fn coordinate(&self, rank: usize, axis: usize) -> usize {
        rank / self.stride(axis) % self.0[axis].size
    }

    pub(super) fn rank(&self, coordinates: &[usize]) -> Option<usize> {
        if coordinates.len() != self.0.len() {
            return None;
        }
        self.0.iter().zip(coordinates).try_fold(0, |rank, (axis, &coordinate)| {
            (coordinate < axis.size).then(|| rank * axis.size + coordinate)
        })
    }

    /// Returns the name and the ranks of an axis's groups, in the order of their first ranks.
    pub(super) fn groups(&self, axis: usize) -> impl Iterator<Item = (String, Vec<usize>)> + '_ {
        let world: usize = self.0.iter().map(|axis| axis.size).product();
        let (size, stride) = (self.0[axis].size, self.stride(axis));
        (0..world).filter(move |&rank| self.coordinate(rank, axis) == 0).map(move |first| {
            let ranks = (0..size).map(|coordinate| first + coordinate * stride).collect();
            (self.group_name(axis, first), ranks)
        })
    }

    /// Returns the name of a rank's group along an axis, which depends only on the other coordinates.
    fn group_name(&self, axis: usize, rank: usize) -> String {
        let others = (0..self.0.len()).filter(|&other| other != axis);
        let others: String =
            others.map(|other| format!("_{}{}", self.0[other].name, self.coordinate(rank, other))).collect();
        let name = &self.0[axis].name;
        if others.is_empty() { format!("{name}_0") } else { format!("{name}{others}") }
    }
}

/// Digits and underscores are not allowed, so that group names are unambiguous.
fn is_axis_name(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_lowercase())
        && name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-')
        && name != "world"
}
