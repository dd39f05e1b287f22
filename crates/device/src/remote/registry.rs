//! Kernels with Rust bodies that a worker of the same program can make.
//!
//! A Rust body is machine code of one executable, and a closure may hold anything. Neither can be sent. So a program
//! names the *functions* that make such kernels ([`kernel_fn!`](crate::kernel_fn)): the linker collects them, and a
//! worker that is the same executable, by the hash of its contents, calls the function of that name with the same
//! arguments. Nothing that is received is ever used as an address.

use std::{fs::File, sync::OnceLock};

pub use linkme;
use serde::{Serialize, de::DeserializeOwned};

use crate::kernel::Kernel;

/// A function that makes a kernel.
#[derive(Debug)]
pub struct KernelFn {
    /// Its path in the program.
    pub name: &'static str,
    /// Decodes the arguments and calls the function. Returns `None` if they cannot be decoded.
    pub make: fn(&[u8]) -> Option<Kernel>,
}

/// The functions of this program that make kernels.
#[linkme::distributed_slice]
pub static KERNEL_FNS: [KernelFn];

/// How a worker of the same program makes a kernel.
#[derive(Debug, Clone)]
pub(crate) struct KernelCall {
    pub(crate) function: &'static str,
    pub(crate) arguments: Vec<u8>,
}

/// Decodes arguments, all of them.
pub fn decode<A: DeserializeOwned>(arguments: &[u8]) -> Option<A> {
    postcard::take_from_bytes(arguments)
        .ok()
        .filter(|(_, rest)| rest.is_empty())
        .map(|(arguments, _)| arguments)
}

impl Kernel {
    /// Notes how a worker of the same program makes this kernel. For [`kernel_fn!`](crate::kernel_fn).
    #[doc(hidden)]
    pub fn made_by(mut self, function: &KernelFn, arguments: &impl Serialize) -> Self {
        let call = |arguments| KernelCall { function: function.name, arguments };
        self.call = postcard::to_allocvec(arguments).ok().map(call);
        self
    }
}

/// Makes the kernel of a function of this program. Fails with the reason.
pub(super) fn make(function: &str, arguments: &[u8]) -> Result<Kernel, String> {
    let mut found = KERNEL_FNS.iter().filter(|entry| entry.name == function);
    match (found.next(), found.next()) {
        (Some(entry), None) => {
            (entry.make)(arguments).ok_or_else(|| format!("the arguments of `{function}` cannot be decoded"))
        }
        (None, _) => Err(format!("the worker's program has no function `{function}` that makes kernels")),
        (Some(_), Some(_)) => Err(format!("the worker's program has several functions `{function}`")),
    }
}

/// Returns the BLAKE3 hash of this program's executable, if it can be read. A worker that has the same hash is the same
/// program.
pub fn program_hash() -> Option<[u8; 32]> {
    static HASH: OnceLock<Option<[u8; 32]>> = OnceLock::new();
    *HASH.get_or_init(|| {
        // On Linux this is the file that was started, even if another one has its name now.
        let linux = File::open("/proc/self/exe");
        let file = linux.or_else(|_| File::open(std::env::current_exe()?)).ok()?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file).ok()?;
        Some(*hasher.finalize().as_bytes())
    })
}

/// Declares functions that make kernels, so that a worker of the same program can make the same kernels, Rust bodies
/// included. Without it a Rust body runs on this machine only.
///
/// Arguments are sent to the worker: their types implement serde's traits and `Clone`.
///
/// ```
/// use evener_device::{Device, Kernel, kernel_fn};
///
/// kernel_fn! {
///     /// Adds a number to each element.
///     pub fn add(number: u32) -> Kernel {
///         Kernel::new("add").writes::<u32>().rust(move |launch| {
///             launch.write::<u32>(0)?.iter_mut().for_each(|element| *element += number);
///             Ok(())
///         })
///     }
/// }
///
/// let device = Device::cpu(); // or one of another machine
/// let data = device.buffer_from(&[1u32, 2])?;
/// let mut stream = device.stream()?;
/// stream.launch(&device.compile(&add(5))?.bind(&[data.arg()])?, 1, &())?;
/// assert_eq!(stream.download(&data)?.wait()?, [6, 7]);
/// # Ok::<(), evener_device::Error>(())
/// ```
#[macro_export]
macro_rules! kernel_fn {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> Kernel $body:block
    )*) => { $(
        $(#[$attribute])*
        $visibility fn $name($($argument: $type),*) -> $crate::Kernel {
            #[allow(clippy::unused_unit)]
            fn make($($argument: $type),*) -> $crate::Kernel $body

            #[$crate::kernel_fns::linkme::distributed_slice($crate::kernel_fns::KERNEL_FNS)]
            #[linkme(crate = $crate::kernel_fns::linkme)]
            static FUNCTION: $crate::kernel_fns::KernelFn = $crate::kernel_fns::KernelFn {
                name: ::core::concat!(::core::module_path!(), "::", ::core::stringify!($name)),
                make: |arguments| {
                    let ($($argument,)*) = $crate::kernel_fns::decode::<($($type,)*)>(arguments)?;
                    ::core::option::Option::Some($name($($argument),*))
                },
            };

            let arguments = ($(::core::clone::Clone::clone(&$argument),)*);
            make($($argument),*).made_by(&FUNCTION, &arguments)
        }
    )* };
}
