//! No devices through wgpu: the crate is built without the feature `wgpu`.

use crate::discover::Found;

/// No devices.
pub(crate) fn find() -> Found {
    Found::nothing("wgpu", "left out of this build (feature `wgpu`)")
}
