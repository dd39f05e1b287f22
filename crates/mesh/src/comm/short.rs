//! The collectives by their names: on host memory, started, and on buffers, all from one table.

use evener_device::{Buffer, Device, Stream};

use super::{
    device_group::DeviceGroup,
    element::{Element, FloatElement},
    error::Result,
    group::Group,
    operation::Operation,
    pending::Pending,
    request::Request,
};

/// Writes the short forms of collectives. A row has the vectors that a collective takes, its name on host memory, when
/// started and on a group's buffers, and its arguments after the vectors, with the request that they make.
macro_rules! short_forms {
    ($($(#[$doc:meta])* $vectors:ident $host:ident $start:ident $buffer:ident<$element:ident> $arguments:tt $request:expr;)*) => {
        /// Short for [`call`](Group::call).
        impl Group {
            $(on_host! { $(#[$doc])* $vectors $host<$element> $arguments $request })*
        }

        /// Vectors move into the collective and come back from [`Pending`]: nothing can be changed under way. Calls run in
        /// the order in which they were started, on a thread of the group's own.
        impl Group {
            $(started! { $vectors $host $start<$element> $arguments $request })*
        }

        /// Short for [`call_buffers`](Group::call_buffers). A root has a buffer that the other ranks have not.
        impl Group {
            $(buffers! { $vectors on_group $host $buffer<$element> $arguments $request })*
        }

        /// Short for [`call`](DeviceGroup::call). A root has a buffer that the other ranks have not. A weighted mean always
        /// goes through the host: what a rank of weight 0 has is not to be looked at.
        impl DeviceGroup {
            $(buffers! { $vectors on_devices $host $host<$element> $arguments $request })*
        }
    };
}

macro_rules! on_host {
    ($(#[$doc:meta])* data $host:ident<$element:ident>($($name:ident: $type:ty),*) $request:expr) => {
        $(#[$doc])*
        pub fn $host<T: $element>(&self, data: &mut [T], $($name: $type),*) -> Result<()> {
            self.call($request, &[], data)
        }
    };
    ($(#[$doc:meta])* sent $host:ident<$element:ident>($($name:ident: $type:ty),*) $request:expr) => {
        $(#[$doc])*
        pub fn $host<T: $element>(&self, data: &[T], $($name: $type),*) -> Result<()> {
            self.call($request, data, &mut [])
        }
    };
    ($(#[$doc:meta])* $vectors:ident $host:ident<$element:ident>($($name:ident: $type:ty),*) $request:expr) => {
        $(#[$doc])*
        pub fn $host<T: $element>(&self, input: &[T], output: &mut [T], $($name: $type),*) -> Result<()> {
            self.call($request, input, output)
        }
    };
}

macro_rules! started {
    (data $host:ident $start:ident<$element:ident>($($name:ident: $type:ty),*) $request:expr) => {
        #[doc = concat!("Starts [`", stringify!($host), "`](Group::", stringify!($host), ").")]
        pub fn $start<T: $element>(&self, data: Vec<T>, $($name: $type),*) -> Pending<Vec<T>> {
            self.start_with_one($request, data)
        }
    };
    (sent $($rest:tt)*) => { started! { data $($rest)* } };
    ($vectors:ident $host:ident $start:ident<$element:ident>($($name:ident: $type:ty),*) $request:expr) => {
        #[doc = concat!("Starts [`", stringify!($host), "`](Group::", stringify!($host), "); gives input and output back.")]
        pub fn $start<T: $element>(
            &self,
            input: Vec<T>,
            output: Vec<T>,
            $($name: $type),*
        ) -> Pending<(Vec<T>, Vec<T>)> {
            self.start($request, input, output)
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
        $request:expr) => {
        #[doc = concat!("As [`", stringify!($host), "`](Group::", stringify!($host), "), of buffers.")]
        pub fn $buffer<T: $element>(
            &self,
            device: &Device,
            stream: &mut Stream,
            $($taken)*,
            $($name: $type),*
        ) -> Result<()> {
            self.call_buffers(device, stream, $request, $input, $output)
        }
    };
}

macro_rules! on_devices {
    (($($taken:tt)*) ($input:expr, $output:expr) $host:ident $same:ident<$element:ident>($($name:ident: $type:ty),*)
        $request:expr) => {
        #[doc = concat!("As [`Group::", stringify!($host), "`], of buffers.")]
        pub fn $host<T: $element>(&self, stream: &mut Stream, $($taken)*, $($name: $type),*) -> Result<()> {
            self.call(stream, $request, $input, $output)
        }
    };
}

short_forms! {
    /// Reduces everybody's vector to one, which everybody gets in its place.
    data all_reduce start_all_reduce all_reduce_buffer<Element>(operation: Operation) Request::AllReduce(operation);
    /// Replaces everybody's vector by Σ wᵢ·xᵢ / Σ wᵢ. What a rank of weight 0 has is not looked at, so it may be
    /// anything. f16 and bf16 are reduced in f32, f32 and f64 in f64. Where all weights are 0 every rank gets
    /// [`NoWeight`](super::CommError::NoWeight) and its vector back unchanged; a weight below 0, infinite or NaN is an error.
    data weighted_all_reduce start_weighted_all_reduce weighted_all_reduce_buffer<FloatElement>(weight: f64)
        Request::WeightedAllReduce(weight);
    /// Reduces everybody's vector to one, which the root gets in its place. The others' vectors stay as they are.
    data reduce start_reduce reduce_buffer<Element>(operation: Operation, root: usize) Request::Reduce(operation, root);
    /// Gives everybody the root's vector.
    data broadcast start_broadcast broadcast_buffer<Element>(root: usize) Request::Broadcast(root);
    /// Gives everybody everybody's vector, one after another in the order of ranks. `output` is as long as all of them.
    both all_gather start_all_gather all_gather_buffer<Element>() Request::AllGather;
    /// Reduces everybody's vector to one, and gives each rank its part of it, in the order of ranks. `input` is as long
    /// as all parts.
    both reduce_scatter start_reduce_scatter reduce_scatter_buffer<Element>(operation: Operation)
        Request::ReduceScatter(operation);
    /// Gives the root everybody's vector, one after another in the order of ranks. `output` is as long as all of them
    /// at the root, and empty elsewhere.
    gathered gather start_gather gather_buffer<Element>(root: usize) Request::Gather(root);
    /// Gives each rank its part of the root's vector, in the order of ranks. `input` is as long as all parts at the
    /// root, and empty elsewhere.
    scattered scatter start_scatter scatter_buffer<Element>(root: usize) Request::Scatter(root);
    /// Gives each rank a part of everybody's vector: part `j` of rank `i`'s input becomes part `i` of rank `j`'s output.
    both all_to_all start_all_to_all all_to_all_buffer<Element>() Request::AllToAll;
    /// Sends a vector to another rank of the group, and returns once that has called [`recv`](Group::recv) for as many
    /// of the same type and the vector can be changed. Between threads the other has it by then. Between processes the
    /// last of it may still be on its way: that the other dies just then is found out by the next call only.
    sent send start_send send_buffer<Element>(to: usize) Request::Send(to);
    /// Receives a vector that another rank of the group sends, which must be of this type and length.
    data recv start_recv recv_buffer<Element>(from: usize) Request::Recv(from);
}
