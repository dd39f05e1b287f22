//! The collectives by their names: on host memory, started, and on buffers, all from one table.

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

/// Writes the short forms of collectives. A row has the vectors that a collective takes, its name on host memory, when
/// started and on a group's buffers, and its arguments after the vectors, with the request that they make.
macro_rules! collective_methods {
    ($($(#[$doc:meta])* $vectors:ident $host:ident $start:ident $buffer:ident<$element:ident> $arguments:tt $collective:expr;)*) => {
        /// Short for [`call`](Communicator::call).
        impl Communicator {
            $(on_host! { $(#[$doc])* $vectors $host<$element> $arguments $collective })*
        }

        /// Vectors move into the collective and come back from [`PendingCollective`]: nothing can be changed under way. Calls run in
        /// the order in which they were started, on a thread of the group's own.
        impl Communicator {
            $(started! { $vectors $host $start<$element> $arguments $collective })*
        }

        /// Short for [`call_buffers`](Communicator::call_buffers). A root has a buffer that the other ranks have not.
        impl Communicator {
            $(buffers! { $vectors on_group $host $buffer<$element> $arguments $collective })*
        }

        /// Short for [`call`](DeviceCommunicator::call). A root has a buffer that the other ranks have not. A weighted mean always
        /// goes through the host: what a rank of weight 0 has is not to be looked at.
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
        #[doc = concat!("Starts [`", stringify!($host), "`](Communicator::", stringify!($host), "); gives input and output back.")]
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

/// By the vectors, the buffers that are taken, and the input and output that they are.
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
    (($($taken:tt)*) ($input:expr, $output:expr) $host:ident $buffer:ident<$element:ident>($($name:ident: $type:ty),*)
        $collective:expr) => {
        #[doc = concat!("As [`", stringify!($host), "`](Communicator::", stringify!($host), "), of buffers.")]
        pub fn $buffer<T: $element>(
            &self,
            device: &Device,
            stream: &mut Stream,
            $($taken)*,
            $($name: $type),*
        ) -> Result<()> {
            self.call_buffers(device, stream, $collective, $input, $output)
        }
    };
}

macro_rules! on_devices {
    (($($taken:tt)*) ($input:expr, $output:expr) $host:ident $same:ident<$element:ident>($($name:ident: $type:ty),*)
        $collective:expr) => {
        #[doc = concat!("As [`Communicator::", stringify!($host), "`], of buffers.")]
        pub fn $host<T: $element>(&self, stream: &mut Stream, $($taken)*, $($name: $type),*) -> Result<()> {
            self.call(stream, $collective, $input, $output)
        }
    };
}

collective_methods! {
    /// Reduces everybody's vector to one, which everybody gets in its place.
    data all_reduce start_all_reduce all_reduce_buffer<Element>(operation: ReduceOp) Collective::AllReduce(operation);
    /// Replaces everybody's vector by Σ wᵢ·xᵢ / Σ wᵢ. What a rank of weight 0 has is not looked at, so it may be
    /// anything. f16 and bf16 are reduced in f32, f32 and f64 in f64. Where all weights are 0 every rank gets
    /// [`ZeroWeights`](super::CommError::ZeroWeights) and its vector back unchanged; a weight below 0, infinite or NaN is an error.
    data weighted_all_reduce start_weighted_all_reduce weighted_all_reduce_buffer<FloatElement>(weight: f64)
        Collective::WeightedAllReduce(weight);
    /// Reduces everybody's vector to one, which the root gets in its place. The others' vectors stay as they are.
    data reduce start_reduce reduce_buffer<Element>(operation: ReduceOp, root: usize) Collective::Reduce(operation, root);
    /// Gives everybody the root's vector.
    data broadcast start_broadcast broadcast_buffer<Element>(root: usize) Collective::Broadcast(root);
    /// Gives everybody everybody's vector, one after another in the order of ranks. `output` is as long as all of them.
    both all_gather start_all_gather all_gather_buffer<Element>() Collective::AllGather;
    /// Reduces everybody's vector to one, and gives each rank its part of it, in the order of ranks. `input` is as long
    /// as all parts.
    both reduce_scatter start_reduce_scatter reduce_scatter_buffer<Element>(operation: ReduceOp)
        Collective::ReduceScatter(operation);
    /// Gives the root everybody's vector, one after another in the order of ranks. `output` is as long as all of them
    /// at the root, and empty elsewhere.
    gathered gather start_gather gather_buffer<Element>(root: usize) Collective::Gather(root);
    /// Gives each rank its part of the root's vector, in the order of ranks. `input` is as long as all parts at the
    /// root, and empty elsewhere.
    scattered scatter start_scatter scatter_buffer<Element>(root: usize) Collective::Scatter(root);
    /// Gives each rank a part of everybody's vector: part `j` of rank `i`'s input becomes part `i` of rank `j`'s output.
    both all_to_all start_all_to_all all_to_all_buffer<Element>() Collective::AllToAll;
    /// Sends a vector to another rank of the group, and returns once that has called [`recv`](Communicator::recv) for as many
    /// of the same type and the vector can be changed. Between threads the other has it by then. Between processes the
    /// last of it may still be on its way: that the other dies just then is found out by the next call only.
    sent send start_send send_buffer<Element>(to: usize) Collective::Send(to);
    /// Receives a vector that another rank of the group sends, which must be of this type and length.
    data recv start_recv recv_buffer<Element>(from: usize) Collective::Recv(from);
}
