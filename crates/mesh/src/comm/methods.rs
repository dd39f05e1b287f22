//! The methods named after collectives (blocking, started, and on device buffers), generated from one table.

use evener_device::{Buffer, Device, Stream};

use super::{
    collective::Collective,
    communicator::Communicator,
    device_communicator::DeviceCommunicator,
    element::{Element, FloatElement},
    error::Result,
    pending::PendingCollective,
    reduce_op::ReduceOp,
};

/// Generates the methods of all collectives. A row has the kind of buffers that a collective takes, the names of its
/// methods, its other arguments, and the [`Collective`] that they make.
macro_rules! collective_methods {
    ($($(#[$doc:meta])* $vectors:ident $host:ident $start:ident $buffer:ident<$element:ident> $arguments:tt $collective:expr;)*) => {
        /// Short for [`call`](Communicator::call).
        impl Communicator {
            $(on_host! { $(#[$doc])* $vectors $host<$element> $arguments $collective })*
        }

        /// Vectors move into the collective and come back from [`PendingCollective`]. Calls run in the order in which
        /// they were started, on a thread of the communicator.
        impl Communicator {
            $(started! { $vectors $host $start<$element> $arguments $collective })*
        }

        /// Short for [`call_buffers`](Communicator::call_buffers). Buffers that only the root has are `None` on other
        /// ranks.
        impl Communicator {
            $(buffers! { $vectors on_group $host $buffer<$element> $arguments $collective })*
        }

        /// Short for [`call`](DeviceCommunicator::call). Buffers that only the root has are `None` on other ranks. A
        /// weighted mean always goes through the host, because the data of a rank with weight 0 must not be read.
        impl DeviceCommunicator {
            $(buffers! { $vectors on_devices $host $host<$element> $arguments $collective })*
        }
    };
}

macro_rules! on_host {
    ($(#[$doc:meta])* data $host:ident<$element:ident>($($name:ident: $type:ty),*) $collective:expr) => {
        $(#[$doc])*
        pub fn $host<T: $element>(&self, data: &mut [T], $($name: $type),*) -> Result<()> {
            self.call($collective, &[], data)
        }
    };
    ($(#[$doc:meta])* sent $host:ident<$element:ident>($($name:ident: $type:ty),*) $collective:expr) => {
        $(#[$doc])*
        pub fn $host<T: $element>(&self, data: &[T], $($name: $type),*) -> Result<()> {
            self.call($collective, data, &mut [])
        }
    };
    ($(#[$doc:meta])* $vectors:ident $host:ident<$element:ident>($($name:ident: $type:ty),*) $collective:expr) => {
        $(#[$doc])*
        pub fn $host<T: $element>(&self, input: &[T], output: &mut [T], $($name: $type),*) -> Result<()> {
            self.call($collective, input, output)
        }
    };
}

macro_rules! started {
    (data $host:ident $start:ident<$element:ident>($($name:ident: $type:ty),*) $collective:expr) => {
        #[doc = concat!("Starts [`", stringify!($host), "`](Communicator::", stringify!($host), ").")]
        pub fn $start<T: $element>(&self, data: Vec<T>, $($name: $type),*) -> PendingCollective<Vec<T>> {
            self.start_one_vector($collective, data)
        }
    };
    (sent $($rest:tt)*) => { started! { data $($rest)* } };
    ($vectors:ident $host:ident $start:ident<$element:ident>($($name:ident: $type:ty),*) $collective:expr) => {
        #[doc = concat!("Starts [`", stringify!($host), "`](Communicator::", stringify!($host), "). The result has the input and the output.")]
        pub fn $start<T: $element>(
            &self,
            input: Vec<T>,
            output: Vec<T>,
            $($name: $type),*
        ) -> PendingCollective<(Vec<T>, Vec<T>)> {
            self.start($collective, input, output)
        }
    };
}

/// Maps the kind of buffers to parameters, and to the input and output that they are.
macro_rules! buffers {
    (data $form:ident $($rest:tt)*) => { $form! { (buffer: &Buffer<T>) (None, Some(buffer)) $($rest)* } };
    (sent $form:ident $($rest:tt)*) => { $form! { (buffer: &Buffer<T>) (Some(buffer), None) $($rest)* } };
    (both $form:ident $($rest:tt)*) => {
        $form! { (input: &Buffer<T>, output: &Buffer<T>) (Some(input), Some(output)) $($rest)* }
    };
    (gathered $form:ident $($rest:tt)*) => {
        $form! { (input: &Buffer<T>, output: Option<&Buffer<T>>) (Some(input), output) $($rest)* }
    };
    (scattered $form:ident $($rest:tt)*) => {
        $form! { (input: Option<&Buffer<T>>, output: &Buffer<T>) (input, Some(output)) $($rest)* }
    };
}

macro_rules! on_group {
    (($($parameters:tt)*) ($input:expr, $output:expr) $host:ident $buffer:ident<$element:ident>($($name:ident: $type:ty),*)
        $collective:expr) => {
        #[doc = concat!("As [`", stringify!($host), "`](Communicator::", stringify!($host), "), on device buffers.")]
        pub fn $buffer<T: $element>(
            &self,
            device: &Device,
            stream: &mut Stream,
            $($parameters)*,
            $($name: $type),*
        ) -> Result<()> {
            self.call_buffers(device, stream, $collective, $input, $output)
        }
    };
}

macro_rules! on_devices {
    (($($parameters:tt)*) ($input:expr, $output:expr) $host:ident $same:ident<$element:ident>($($name:ident: $type:ty),*)
        $collective:expr) => {
        #[doc = concat!("As [`Communicator::", stringify!($host), "`], on device buffers.")]
        pub fn $host<T: $element>(&self, stream: &mut Stream, $($parameters)*, $($name: $type),*) -> Result<()> {
            self.call(stream, $collective, $input, $output)
        }
    };
}

collective_methods! {
    /// Reduces the vectors of all ranks, and replaces each by the result.
    data all_reduce start_all_reduce all_reduce_buffer<Element>(operation: ReduceOp) Collective::AllReduce(operation);
    /// Replaces the vectors of all ranks by Σ wᵢ·xᵢ / Σ wᵢ. The data of a rank with weight 0 is not read. f16 and bf16
    /// are reduced in f32, f32 and f64 in f64. If all weights are 0, every rank gets
    /// [`ZeroWeights`](super::CommError::ZeroWeights) and its vector is unchanged; a negative, infinite or NaN weight
    /// is an error.
    data weighted_all_reduce start_weighted_all_reduce weighted_all_reduce_buffer<FloatElement>(weight: f64)
        Collective::WeightedAllReduce(weight);
    /// Reduces the vectors of all ranks, and replaces the root's by the result. The others are unchanged.
    data reduce start_reduce reduce_buffer<Element>(operation: ReduceOp, root: usize) Collective::Reduce(operation, root);
    /// Copies the root's vector to all ranks.
    data broadcast start_broadcast broadcast_buffer<Element>(root: usize) Collective::Broadcast(root);
    /// Concatenates the vectors of all ranks in rank order, on every rank. `output` has the length of all of them.
    both all_gather start_all_gather all_gather_buffer<Element>() Collective::AllGather;
    /// Reduces the vectors of all ranks, and gives each rank its block of the result, in rank order. `input` has the
    /// length of all blocks.
    both reduce_scatter start_reduce_scatter reduce_scatter_buffer<Element>(operation: ReduceOp)
        Collective::ReduceScatter(operation);
    /// Concatenates the vectors of all ranks in rank order, on the root. `output` has the length of all of them on the
    /// root, and is empty on other ranks.
    gathered gather start_gather gather_buffer<Element>(root: usize) Collective::Gather(root);
    /// Splits the root's vector into one block per rank, in rank order. `input` has the length of all blocks on the
    /// root, and is empty on other ranks.
    scattered scatter start_scatter scatter_buffer<Element>(root: usize) Collective::Scatter(root);
    /// Sends a block to every rank: block `j` of rank `i`'s input becomes block `i` of rank `j`'s output.
    both all_to_all start_all_to_all all_to_all_buffer<Element>() Collective::AllToAll;
    /// Sends a vector to another rank, and returns once that rank has called [`recv`](Communicator::recv) for the same
    /// type and length and the vector may be changed. Between threads the data has arrived by then. Between processes
    /// the end of it may still be in flight: if the receiver dies just then, only the next call reports it.
    sent send start_send send_buffer<Element>(to: usize) Collective::Send(to);
    /// Receives a vector of this type and length from another rank.
    data recv start_recv recv_buffer<Element>(from: usize) Collective::Recv(from);
}
