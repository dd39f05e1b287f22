//! Kernels in transit.

use super::{
    message::{WireBody, WireKernel, WireWgsl},
    registry::{make, program_hash},
};
use crate::{
    describe::{Api, DeviceId},
    error::{Error, Result},
    kernel::{Access, Binding, Kernel},
    module::{CudaCode, WgslBody},
};

/// The version of Evener. Its own functions are the same in every program that has the same version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The crates of Evener, whose functions make kernels. A crate of a user may have a name that begins as theirs do.
const OWN_CRATES: [&str; 5] =
    ["evener_device", "evener_schedule", "evener_merkle", "evener_mesh", "evener_zk"];

/// Whether a function is Evener's own, by its path.
fn is_own(function: &str) -> bool {
    function.split_once("::").is_some_and(|(name, _)| OWN_CRATES.contains(&name))
}

/// Returns a kernel with what a device of this API needs of it.
pub(super) fn to_wire(kernel: &Kernel, api: Api, device: &DeviceId) -> Result<WireKernel> {
    let wgsl = |body: &WgslBody| WireWgsl {
        needs: body.needs,
        source: body.source.clone(),
        is_checked: body.is_checked,
        constants: body.constants.clone(),
    };
    let body = match (api, &kernel.cuda) {
        (Api::Cuda, Some(code)) => WireBody::Cuda {
            text: code.text.clone(),
            defines: code.defines.clone(),
            headers: code.headers.clone(),
            options: code.options.clone(),
        },
        (Api::Cuda, None) => WireBody::None,
        (Api::Cpu, _) => rust_body(kernel, device)?,
        _ => WireBody::Wgsl(kernel.wgsl.iter().map(wgsl).collect()),
    };
    Ok(WireKernel {
        name: kernel.name.clone().into_owned(),
        bindings: kernel
            .bindings
            .iter()
            .map(|binding| (binding.access == Access::ReadWrite, binding.element_name.into()))
            .collect(),
        params_bytes: kernel.params_bytes,
        workgroup: kernel.workgroup,
        shared_bytes: kernel.shared_bytes,
        body,
    })
}

fn rust_body(kernel: &Kernel, device: &DeviceId) -> Result<WireBody> {
    let refuse =
        |detail: &str| Err(Error::unsupported(device, format!("compiling kernel `{}`", kernel.name), detail));
    match (&kernel.rust, &kernel.call, program_hash()) {
        (None, ..) => Ok(WireBody::None),
        (Some(_), Some(call), Some(program)) => Ok(WireBody::Rust {
            program,
            version: VERSION.into(),
            function: call.function.into(),
            arguments: call.arguments.clone(),
        }),
        (Some(_), None, _) => refuse(
            "its Rust body exists in this program only: declare the function that makes the kernel with `kernel_fn!`",
        ),
        (Some(_), Some(_), None) => refuse("this program's executable cannot be read"),
    }
}

/// Makes the kernel for a device of this machine.
pub(super) fn from_wire(wire: WireKernel, device: &DeviceId) -> Result<Kernel> {
    let refuse =
        |detail: String| Err(Error::unsupported(device, format!("compiling kernel `{}`", wire.name), detail));
    let mut kernel = Kernel::new(wire.name.clone());
    kernel.bindings = wire.bindings.iter().map(|(is_written, _)| untyped_binding(*is_written)).collect();
    match wire.body {
        WireBody::None => {}
        WireBody::Cuda { text, defines, headers, options } => {
            kernel.cuda = Some(CudaCode { text, defines, headers, options }.into());
        }
        WireBody::Wgsl(bodies) => {
            let body = |WireWgsl { needs, source, is_checked, constants }| WgslBody {
                needs,
                source,
                is_checked,
                constants,
            };
            kernel.wgsl = bodies.into_iter().map(body).collect();
        }
        WireBody::Rust { program, version, function, arguments } => {
            let is_same = is_own(&function) && version == VERSION;
            if !is_same && program_hash() != Some(program) {
                return refuse(
                    "its Rust body is in the client's program, and this worker is another one: start the worker from \
                     the same executable"
                        .into(),
                );
            }
            let made = match make(&function, &arguments) {
                Ok(made) => made,
                Err(reason) => return refuse(reason),
            };
            let declared = |binding: &Binding| (binding.access == Access::ReadWrite, binding.element_name);
            let expected = wire.bindings.iter().map(|(is_written, name)| (*is_written, &**name));
            if !made.bindings.iter().map(declared).eq(expected) || made.params_bytes != wire.params_bytes {
                return refuse(format!("`{function}` makes a kernel with other buffers or parameters"));
            }
            kernel = made;
        }
    }
    kernel.name = wire.name.into();
    kernel.params_bytes = wire.params_bytes;
    kernel.workgroup = wire.workgroup;
    kernel.shared_bytes = wire.shared_bytes;
    Ok(kernel)
}

/// A buffer of bytes: the client has compared the element types.
fn untyped_binding(is_written: bool) -> Binding {
    let kernel = Kernel::new("");
    let kernel = if is_written { kernel.writes::<u8>() } else { kernel.reads::<u8>() };
    kernel.bindings[0]
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_the_functions_of_eveners_own_crates_are_the_same_in_other_programs() {
        for function in ["evener_merkle::kernel::rust_merkle", "evener_device::measure::kernels::add"] {
            assert!(is_own(function), "{function}");
        }
        for function in
            ["evener_mine::add", "evener_merkle_of_mine::add", "mine::evener_merkle::add", "evener_merkle"]
        {
            assert!(!is_own(function), "{function}");
        }
    }
}
