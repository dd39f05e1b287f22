//! Collectives that are started without waiting.

use super::{
    collective::Collective,
    communicator::Communicator,
    communicator_state::CommunicatorState,
    element::Element,
    error::{CommError, Result},
    pending::{PendingCollective, ResultSender},
};

impl Communicator {
    /// Starts a [`call`](Communicator::call). The result has the input and the output.
    ///
    /// ```
    /// use evener_mesh::comm::{Collective, ReduceOp, World};
    ///
    /// let world = World::local(1).remove(0);
    /// let first = world.communicator().start(Collective::AllGather, vec![1.0f64, 2.0], vec![0.0; 2]);
    /// let second = world.communicator().start_all_reduce(vec![3u8], ReduceOp::Max);
    /// // … something else meanwhile …
    /// assert_eq!(first.wait()?.1, [1.0, 2.0]);
    /// assert_eq!(second.wait()?, [3]);
    /// # Ok::<(), evener_mesh::comm::CommError>(())
    /// ```
    pub fn start<T: Element>(
        &self,
        collective: Collective,
        input: Vec<T>,
        mut output: Vec<T>,
    ) -> PendingCollective<(Vec<T>, Vec<T>)> {
        self.start_call(move |state| state.call(collective, &input, &mut output).map(|()| (input, output)))
    }

    pub(super) fn start_one_vector<T: Element>(
        &self,
        collective: Collective,
        mut data: Vec<T>,
    ) -> PendingCollective<Vec<T>> {
        self.start_call(move |state| {
            match collective {
                Collective::Send(_) => state.call(collective, &data, &mut [])?,
                _ => state.call(collective, &[], &mut data)?,
            }
            Ok(data)
        })
    }

    /// Starts a [`barrier`](Communicator::barrier).
    pub fn start_barrier(&self) -> PendingCollective<()> {
        self.start_call(|state| state.call::<u8>(Collective::Barrier, &[], &mut []))
    }

    /// Queues a call on the communicator's thread, after the calls that were started before.
    pub(super) fn start_call<R: Send + 'static>(
        &self,
        call: impl FnOnce(&CommunicatorState) -> Result<R> + Send + 'static,
    ) -> PendingCollective<R> {
        let (sender, pending) = ResultSender::new(&self.state().name);
        // If the system cannot start a thread, this rank's call fails.
        let Some(call_thread) = self.call_thread() else {
            sender.send(Err(self.state().fail(CommError::InvalidArgument {
                group: self.name().to_owned(),
                call: "start".into(),
                detail: "the system cannot start a thread: make a blocking call instead".into(),
            })));
            return pending;
        };
        let started = self.state().count_started_call();
        call_thread.run(Box::new(move || {
            let done = call(&started.0);
            drop(started);
            sender.send(done);
        }));
        pending
    }
}
