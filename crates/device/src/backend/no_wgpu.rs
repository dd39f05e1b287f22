//! No devices through wgpu: the crate is built without the feature `wgpu`.

use crate::discover::Found;

/// Finds no devices.
pub(crate) fn find() -> Found {
    Found::nothing("wgpu", "left out of this build (feature `wgpu`)")
}
