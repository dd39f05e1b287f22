//! Errors of meshes.

use super::axes::Axis;
use crate::comm::join;

/// Why a shape does not fit, or a query of a mesh fails. The message says what would fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// There are no devices.
    #[error("a mesh needs at least one device")]
    NoDevices,
    /// Two ranks have the same device.
    #[error(
        "ranks {first} and {second} are both {device}: give each rank its own device, for example a \
         partition (`cpu[1,1]`)"
    )]
    DuplicateDevice {
        /// The device.
        device: String,
        /// The first rank.
        first: usize,
        /// The second rank.
        second: usize,
    },
    /// There are no axes.
    #[error("a mesh needs at least one axis: `dp` of size {world} would be one")]
    NoAxes {
        /// Number of ranks in the mesh.
        world: usize,
    },
    /// The name of an axis is invalid. Group names are made of axis names, numbers and underscores.
    #[error(
        "invalid axis name `{name}`: use lowercase letters and hyphens, with a letter first, and not `world`"
    )]
    InvalidAxisName {
        /// The name.
        name: String,
    },
    /// Two axes have the same name.
    #[error("two axes are called `{name}`: give each its own name")]
    DuplicateAxis {
        /// The name.
        name: String,
    },
    /// An axis has size 0.
    #[error("axis `{axis}` has size 0: {} would divide {world} ranks", join(&divisors(*.world), "or"))]
    ZeroSize {
        /// The axis.
        axis: String,
        /// Number of ranks in the mesh.
        world: usize,
    },
    /// The product of the sizes is not the number of ranks.
    #[error("{}", size_mismatch(.axes, *.world))]
    SizeMismatch {
        /// The requested axes.
        axes: Vec<Axis>,
        /// Number of ranks in the mesh.
        world: usize,
    },
    /// The mesh has no such axis.
    #[error("there is no axis `{axis}`: this mesh has {}", .axes.join(", "))]
    UnknownAxis {
        /// The request.
        axis: String,
        /// The existing ones.
        axes: Vec<String>,
    },
    /// There is no such rank.
    #[error("there is no rank {rank}: {}", ranks_text(0, *.world))]
    UnknownRank {
        /// The request.
        rank: usize,
        /// Number of ranks in the mesh.
        world: usize,
    },
    /// There is no rank at these coordinates.
    #[error("no rank is at {coordinates:?}: the axes, outermost first, are {}", axes_text(.axes))]
    UnknownCoordinates {
        /// The request.
        coordinates: Vec<usize>,
        /// The existing ones.
        axes: Vec<Axis>,
    },
    /// The mesh has no such group.
    #[error("there is no group `{name}`: this mesh has {}", some_of(.groups))]
    UnknownGroup {
        /// The request.
        name: String,
        /// The existing ones.
        groups: Vec<String>,
    },
    /// `world` is reserved for the group of all ranks.
    #[error("`world` is the group of all ranks and cannot be replaced: choose another name")]
    ReservedName,
    /// The name of a group is invalid.
    #[error("invalid group name `{name}`: use a name without spaces")]
    InvalidGroupName {
        /// The name.
        name: String,
    },
    /// A group of this name exists.
    #[error("there is a group `{name}` already, of ranks {ranks:?}: choose another name")]
    DuplicateGroup {
        /// Its name.
        name: String,
        /// Its ranks.
        ranks: Vec<usize>,
    },
    /// The name is an axis's, which stands for a rank's group along it.
    #[error("`{name}` is an axis: choose another name for the group")]
    GroupNamedAsAxis {
        /// Its name.
        name: String,
    },
    /// A group has no ranks.
    #[error("group `{name}` is empty: it needs at least one rank, and {}", ranks_text(0, *.world))]
    EmptyGroup {
        /// The group.
        name: String,
        /// Number of ranks in the mesh.
        world: usize,
    },
    /// A group has a rank that is not in the mesh.
    #[error("group `{name}` has rank {rank}, which is not in the mesh: {}", ranks_text(0, *.world))]
    GroupOutOfRange {
        /// The group.
        name: String,
        /// The rank.
        rank: usize,
        /// Number of ranks in the mesh.
        world: usize,
    },
    /// A group has a rank twice.
    #[error("group `{name}` has rank {rank} twice: each rank can be in a group once")]
    DuplicateRank {
        /// The group.
        name: String,
        /// The rank.
        rank: usize,
    },
    /// The rank or group rank is not in this group.
    #[error("{asked} is not in group `{group}`, which has ranks {ranks:?}")]
    NotInGroup {
        /// The request.
        asked: String,
        /// The group.
        group: String,
        /// Its ranks.
        ranks: Vec<usize>,
    },
    /// The mesh was reshaped after this rank set was returned.
    #[error(
        "group `{group}` belongs to generation {generation}, but the mesh was reshaped and is at generation {current}: \
         ask the mesh for its groups again"
    )]
    Stale {
        /// The group.
        group: String,
        /// The generation of the mesh that the group belongs to, from 0.
        generation: u64,
        /// The current generation of the mesh.
        current: u64,
    },
}

/// Lists the ranks: `there are ranks 0 to 7`, `there is rank 0`.
fn ranks_text(from: usize, until: usize) -> String {
    match until.saturating_sub(from) {
        0 => "there is no rank".into(),
        1 => format!("there is rank {from}"),
        _ => format!("there are ranks {from} to {}", until - 1),
    }
}

pub(super) fn divisors(number: usize) -> Vec<usize> {
    let low: Vec<usize> = (1..=number.isqrt()).filter(|size| number.is_multiple_of(*size)).collect();
    let high = low.iter().rev().map(|size| number / size).filter(|size| !low.contains(size));
    low.iter().copied().chain(high).collect()
}

fn axes_text(axes: &[Axis]) -> String {
    axes.iter().map(|axis| format!("{} {}", axis.name, axis.size)).collect::<Vec<_>>().join(" × ")
}

/// Explains a size mismatch: which ranks would be left over or missing, and which sizes would fit.
fn size_mismatch(axes: &[Axis], world: usize) -> String {
    let product = axes.iter().fold(1u128, |product, axis| product.saturating_mul(axis.size as u128));
    let asked = axes_text(axes);
    let wrong = if product < world as u128 {
        let over = product as usize;
        let ranks =
            if world - over == 1 { format!("rank {over}") } else { format!("ranks {over} to {}", world - 1) };
        format!("{asked} arranges {product} of {world} ranks: {ranks} would be left over")
    } else {
        let missing = product - world as u128;
        format!("{asked} needs {product} ranks, and there are {world}: {missing} would be missing")
    };
    format!("{wrong}; {}", what_fits(axes, world))
}

/// Lists the sizes of single axes that would fit, the others unchanged; or else the divisors.
fn what_fits(axes: &[Axis], world: usize) -> String {
    let fits: Vec<String> = (0..axes.len())
        .filter_map(|index| {
            let others = axes.iter().enumerate().filter(|(other, _)| *other != index);
            let product = others.fold(1u128, |product, (_, axis)| product.saturating_mul(axis.size as u128));
            let fits = product <= world as u128 && world.is_multiple_of(product as usize);
            fits.then(|| format!("{} {}", axes[index].name, world / product as usize))
        })
        .collect();
    let product = axes.iter().fold(1u128, |product, axis| product.saturating_mul(axis.size as u128));
    let another = (product < world as u128 && world.is_multiple_of(product as usize))
        .then(|| format!("another axis of size {}", world / product as usize));
    let all: Vec<String> = fits.into_iter().chain(another).collect();
    if all.is_empty() {
        format!("sizes must divide {world}: {}", join(&divisors(world), "or"))
    } else {
        format!("{} would fit", all.join(", or "))
    }
}

fn some_of(names: &[String]) -> String {
    const LISTED: usize = 8;
    let listed = names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        all if all > LISTED => format!("{listed} and {} more", all - LISTED),
        _ => listed,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn axes(sizes: &[(&str, usize)]) -> Vec<Axis> {
        sizes.iter().map(|&(name, size)| Axis { name: name.into(), size }).collect()
    }

    #[test]
    fn divisors_are_all_there_and_in_order() {
        for number in 1..200 {
            let plain: Vec<usize> = (1..=number).filter(|size| number % size == 0).collect();
            assert_eq!(divisors(number), plain);
        }
    }

    #[test]
    fn what_is_left_over_and_what_would_fit_is_said() {
        let text = |sizes: &[(&str, usize)], world| {
            LayoutError::SizeMismatch { axes: axes(sizes), world }.to_string()
        };
        assert_eq!(
            text(&[("dp", 2), ("tp", 3)], 8),
            "dp 2 × tp 3 arranges 6 of 8 ranks: ranks 6 to 7 would be left over; tp 4 would fit"
        );
        assert_eq!(
            text(&[("tp", 4)], 8),
            "tp 4 arranges 4 of 8 ranks: ranks 4 to 7 would be left over; tp 8, or another axis of size 2 would fit"
        );
        assert_eq!(
            text(&[("dp", 3), ("tp", 4)], 8),
            "dp 3 × tp 4 needs 12 ranks, and there are 8: 4 would be missing; dp 2 would fit"
        );
        assert_eq!(
            text(&[("dp", 3), ("tp", 3)], 10),
            "dp 3 × tp 3 arranges 9 of 10 ranks: rank 9 would be left over; sizes must divide 10: 1, 2, 5 or 10"
        );
        assert!(text(&[("dp", usize::MAX), ("tp", usize::MAX)], 8).contains("would be missing"));
    }

    #[test]
    fn a_size_of_nothing_is_answered_with_what_divides() {
        let error = LayoutError::ZeroSize { axis: "tp".into(), world: 8 };
        assert_eq!(error.to_string(), "axis `tp` has size 0: 1, 2, 4 or 8 would divide 8 ranks");
    }

    #[test]
    fn long_lists_of_groups_are_cut() {
        let groups: Vec<String> = (0..10).map(|index| format!("g{index}")).collect();
        let text = LayoutError::UnknownGroup { name: "x".into(), groups }.to_string();
        assert!(text.ends_with("g0, g1, g2, g3, g4, g5, g6, g7 and 2 more"), "{text}");
    }
}
