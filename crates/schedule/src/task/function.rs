//! Plain Rust functions as tasks that run on the processors of other machines too.

/// Declares functions of one item as tasks, which run on the processors of this machine, and of other machines whose
/// worker is this very program.
///
/// A closure runs on this machine only, since what it holds cannot be sent. Here, the arguments behind the item are sent
/// once, so their types implement serde's traits and `Clone`; the body cannot move them. Items and results are
/// [`Pod`](bytemuck::Pod). Each declaration becomes a function of those arguments that returns a
/// [`KernelTask`](crate::KernelTask).
///
/// ```
/// use evener_device::Device;
/// use evener_schedule::{Pool, task_fn};
///
/// task_fn! {
///     /// Evaluates a polynomial.
///     pub fn polynomial(x: &u64, coefficients: Vec<u64>) -> u64 {
///         coefficients.iter().rev().fold(0, |sum, coefficient| sum * x + coefficient)
///     }
/// }
///
/// let pool = Pool::new([Device::cpu()])?; // and devices of other machines
/// assert_eq!(pool.map(&polynomial(vec![5, 0, 1]), &[1, 2, 3])?.results(), [6, 9, 14]);
/// # Ok::<(), evener_schedule::RunError>(())
/// ```
#[macro_export]
macro_rules! task_fn {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident($item:ident: &$input:ty $(, $argument:ident: $type:ty)* $(,)?) -> $output:ty $body:block
    )*) => { $(
        $(#[$attribute])*
        $visibility fn $name($($argument: $type),*) -> $crate::KernelTask<$input, $output> {
            $crate::task_fns::kernel_fn! {
                fn $name($($argument: $type),*) -> Kernel {
                    $crate::task_fns::kernel_of_items(
                        ::core::stringify!($name),
                        move |$item: &$input| -> $output { $body },
                    )
                }
            }
            $crate::KernelTask::new(&$name($($argument),*))
        }
    )* };
}

/// What [`task_fn!`] expands to.
#[doc(hidden)]
pub mod task_fns {
    use bytemuck::Pod;
    use evener_device::Kernel;
    pub use evener_device::kernel_fn;

    use crate::KernelParams;

    /// A kernel whose Rust body calls a function for each item.
    pub fn kernel_of_items<I: Pod + Sync, O: Pod>(
        name: &'static str,
        function: impl Fn(&I) -> O + Send + Sync + 'static,
    ) -> Kernel {
        let kernel = Kernel::new(name).reads::<I>().writes::<O>().params::<KernelParams>();
        kernel.rust(move |launch| {
            let count = launch.params::<KernelParams>()?.count as usize;
            let (items, results) = (launch.read::<I>(0)?, launch.write::<O>(1)?);
            for (result, item) in results[..count].iter_mut().zip(items) {
                *result = function(item);
            }
            Ok(())
        })
    }
}
