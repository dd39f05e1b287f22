//! Starting collectives without waiting for them.

use super::{
    core::Core,
    element::Element,
    error::{CommError, Result},
    group::Group,
    pending::{Pending, Promise},
    request::Request,
};

impl Group {
    /// Starts a [`call`](Group::call); gives input and output back.
    ///
    /// ```
    /// use evener_mesh::comm::{Comm, Operation, Request};
    ///
    /// let comm = Comm::local(1).remove(0);
    /// let first = comm.world().start(Request::AllGather, vec![1.0f64, 2.0], vec![0.0; 2]);
    /// let second = comm.world().start_all_reduce(vec![3u8], Operation::Max);
    /// // … something else meanwhile …
    /// assert_eq!(first.wait()?.1, [1.0, 2.0]);
    /// assert_eq!(second.wait()?, [3]);
    /// # Ok::<(), evener_mesh::comm::CommError>(())
    /// ```
    pub fn start<T: Element>(
        &self,
        request: Request,
        input: Vec<T>,
        mut output: Vec<T>,
    ) -> Pending<(Vec<T>, Vec<T>)> {
        self.later(move |core| core.call(request, &input, &mut output).map(|()| (input, output)))
    }

    /// Starts a call that has one vector.
    pub(super) fn start_with_one<T: Element>(&self, request: Request, mut data: Vec<T>) -> Pending<Vec<T>> {
        self.later(move |core| {
            match request {
                Request::Send(_) => core.call(request, &data, &mut [])?,
                _ => core.call(request, &[], &mut data)?,
            }
            Ok(data)
        })
    }

    /// Starts a [`barrier`](Group::barrier).
    pub fn start_barrier(&self) -> Pending<()> {
        self.later(|core| core.call::<u8>(Request::Barrier, &[], &mut []))
    }

    /// Has the group's thread make a call, after those that were started before.
    pub(super) fn later<R: Send + 'static>(
        &self,
        call: impl FnOnce(&Core) -> Result<R> + Send + 'static,
    ) -> Pending<R> {
        let (promise, pending) = Promise::new(&self.core().name);
        // A system that has no thread to give is an error of this rank's own.
        let Some(worker) = self.worker() else {
            promise.keep(Err(self.core().fail(CommError::Argument {
                group: self.name().to_owned(),
                call: "starting a call".into(),
                detail: "the system gave no thread for it: call without starting instead".into(),
            })));
            return pending;
        };
        let started = self.core().begin_one();
        worker.run(Box::new(move || {
            let done = call(&started.0);
            drop(started);
            promise.keep(done);
        }));
        pending
    }
}
