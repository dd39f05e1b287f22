//! Starting collectives without waiting for them.

use super::{
    core::Core,
    element::{Element, FloatElement},
    error::{CommError, Result},
    group::Group,
    operation::Operation,
    pending::{Pending, Worker},
};

/// Buffers move into the collective and come back from [`Pending::wait`]: nothing can be changed under way. Calls run
/// in the order in which they were started, on a thread of the group's own.
impl Group {
    /// Starts an [`all_reduce`](Group::all_reduce).
    ///
    /// ```
    /// use evener_mesh::comm::{Comm, Operation};
    ///
    /// let comm = Comm::local(1).remove(0);
    /// let first = comm.world().start_all_reduce(vec![1.0f64, 2.0], Operation::Sum);
    /// let second = comm.world().start_all_reduce(vec![3u8], Operation::Max);
    /// // … something else meanwhile …
    /// assert_eq!(first.wait()?, [1.0, 2.0]);
    /// assert_eq!(second.wait()?, [3]);
    /// # Ok::<(), evener_mesh::comm::CommError>(())
    /// ```
    pub fn start_all_reduce<T: Element>(&self, mut data: Vec<T>, operation: Operation) -> Pending<Vec<T>> {
        self.start(move |core| core.all_reduce(&mut data, operation).map(|()| data))
    }

    /// Starts a [`weighted_all_reduce`](Group::weighted_all_reduce).
    pub fn start_weighted_all_reduce<T: FloatElement>(
        &self,
        mut data: Vec<T>,
        weight: f64,
    ) -> Pending<Vec<T>> {
        self.start(move |core| core.weighted_all_reduce(&mut data, weight).map(|()| data))
    }

    /// Starts a [`reduce`](Group::reduce).
    pub fn start_reduce<T: Element>(
        &self,
        mut data: Vec<T>,
        operation: Operation,
        root: usize,
    ) -> Pending<Vec<T>> {
        self.start(move |core| core.reduce(&mut data, operation, root).map(|()| data))
    }

    /// Starts a [`broadcast`](Group::broadcast).
    pub fn start_broadcast<T: Element>(&self, mut data: Vec<T>, root: usize) -> Pending<Vec<T>> {
        self.start(move |core| core.broadcast(&mut data, root).map(|()| data))
    }

    /// Starts an [`all_gather`](Group::all_gather); gives input and output back.
    pub fn start_all_gather<T: Element>(
        &self,
        input: Vec<T>,
        mut output: Vec<T>,
    ) -> Pending<(Vec<T>, Vec<T>)> {
        self.start(move |core| core.all_gather(&input, &mut output).map(|()| (input, output)))
    }

    /// Starts a [`reduce_scatter`](Group::reduce_scatter); gives input and output back.
    pub fn start_reduce_scatter<T: Element>(
        &self,
        input: Vec<T>,
        mut output: Vec<T>,
        operation: Operation,
    ) -> Pending<(Vec<T>, Vec<T>)> {
        self.start(move |core| core.reduce_scatter(&input, &mut output, operation).map(|()| (input, output)))
    }

    /// Starts a [`gather`](Group::gather); gives input and output back.
    pub fn start_gather<T: Element>(
        &self,
        input: Vec<T>,
        mut output: Vec<T>,
        root: usize,
    ) -> Pending<(Vec<T>, Vec<T>)> {
        self.start(move |core| core.gather(&input, &mut output, root).map(|()| (input, output)))
    }

    /// Starts a [`scatter`](Group::scatter); gives input and output back.
    pub fn start_scatter<T: Element>(
        &self,
        input: Vec<T>,
        mut output: Vec<T>,
        root: usize,
    ) -> Pending<(Vec<T>, Vec<T>)> {
        self.start(move |core| core.scatter(&input, &mut output, root).map(|()| (input, output)))
    }

    /// Starts an [`all_to_all`](Group::all_to_all); gives input and output back.
    pub fn start_all_to_all<T: Element>(
        &self,
        input: Vec<T>,
        mut output: Vec<T>,
    ) -> Pending<(Vec<T>, Vec<T>)> {
        self.start(move |core| core.all_to_all(&input, &mut output).map(|()| (input, output)))
    }

    /// Starts a [`send`](Group::send).
    pub fn start_send<T: Element>(&self, data: Vec<T>, to: usize) -> Pending<Vec<T>> {
        self.start(move |core| core.send(&data, to).map(|()| data))
    }

    /// Starts a [`recv`](Group::recv).
    pub fn start_recv<T: Element>(&self, mut data: Vec<T>, from: usize) -> Pending<Vec<T>> {
        self.start(move |core| core.recv(&mut data, from).map(|()| data))
    }

    /// Starts a [`barrier`](Group::barrier).
    pub fn start_barrier(&self) -> Pending<()> {
        self.start(|core| core.barrier())
    }

    fn start<R: Send + 'static>(&self, call: impl FnOnce(&Core) -> Result<R> + Send + 'static) -> Pending<R> {
        let (result, pending) = Pending::new(&self.core.name);
        // A system that has no thread to give is an error of this rank's own.
        let Some(worker) = self.worker.get_or_init(|| Worker::begin(self.name()).ok()) else {
            let error = CommError::Argument {
                group: self.name().to_owned(),
                call: "starting a call".into(),
                detail: "the system gave no thread for it: call without starting instead".into(),
            };
            let _ = result.send(Err(self.core.fail(error)));
            return pending;
        };
        let core = self.core.clone();
        core.begin_one();
        worker.run(Box::new(move || {
            let done = call(&core);
            core.end_one();
            // Nobody may be waiting any more.
            let _ = result.send(done);
        }));
        pending
    }
}
