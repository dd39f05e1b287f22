//! Turns failures of a back end into errors.

use super::{
    call::{CollectiveKind, Signature},
    communicator_state::CommunicatorState,
    error::{CommError, list, noun},
};
use crate::backend::{LeaveReason, TransportFailure};

/// Returns the error of a call that failed.
pub(super) fn error(failure: TransportFailure, state: &CommunicatorState, call: CollectiveKind) -> CommError {
    let (ranks, rank, timeout) = (&*state.spec.ranks, state.rank, state.timeout);
    let (group, call) = (state.name.to_string(), call.to_string());
    match failure {
        TransportFailure::Mismatch(called) => {
            let (ranks, detail) = mismatch(&called, ranks);
            CommError::Mismatch { group, ranks, detail }
        }
        TransportFailure::TimedOut(missing) => {
            let ranks = missing.into_iter().map(|member| ranks[member]).collect();
            CommError::TimedOut { group, call, after: timeout, ranks }
        }
        TransportFailure::TooLate => CommError::TooLate { group, call, rank },
        TransportFailure::MemberLeft(member, reason) => {
            let rank = ranks[member];
            match reason {
                LeaveReason::Left => CommError::Left { group, call, rank, how: "left".into() },
                LeaveReason::Panicked => CommError::Left { group, call, rank, how: "panicked".into() },
                LeaveReason::Failed { why, blame } => {
                    let ranks = if blame.is_empty() { vec![rank] } else { blame };
                    CommError::Failed { group, call, ranks, detail: format!("rank {rank} failed: {why}") }
                }
            }
        }
        TransportFailure::ZeroWeights => CommError::ZeroWeights { group },
        TransportFailure::Library { library, operation, detail } => {
            CommError::Library { group, library, operation, detail }
        }
    }
}

/// Returns the ranks whose call differs from the most common one, and a text with each call.
fn mismatch(called: &[Option<Signature>], ranks: &[usize]) -> (Vec<usize>, String) {
    let mut kinds: Vec<(Signature, Vec<usize>)> = Vec::new();
    for (member, signature) in called.iter().enumerate() {
        let Some(signature) = signature else { continue };
        match kinds.iter_mut().find(|(kind, _)| kind == signature) {
            Some((_, members)) => members.push(ranks[member]),
            None => kinds.push((*signature, vec![ranks[member]])),
        }
    }
    // The most common call, or of several the lowest member's, is the one that the others are compared with.
    let Some(most) = kinds.iter().map(|(_, members)| members.len()).max() else {
        return (Vec::new(), "the calls are unknown".into());
    };
    let usual = kinds.iter().position(|(_, members)| members.len() == most).unwrap_or(0);
    let (usual, usual_ranks) = kinds.remove(usual);
    // If all kinds differ from the usual one, the names are enough; otherwise sizes, types and operations are shown. A
    // send and a receive belong together.
    let names = kinds.iter().all(|(kind, _)| kind.kind != usual.kind)
        && !matches!(usual.kind, CollectiveKind::Send | CollectiveKind::Receive);
    let name = |signature: &Signature| {
        if names { signature.kind.to_string() } else { signature.to_string() }
    };
    let others = match usual_ranks.as_slice() {
        [one] => format!("rank {one}"),
        _ => "others".into(),
    };
    let odd: Vec<_> = kinds
        .iter()
        .map(|(kind, ranks)| format!("{} {} called {}", noun(ranks), list(ranks), name(kind)))
        .collect();
    let detail = format!("{}, {others} {}", odd.join(", "), name(&usual));
    (kinds.into_iter().flat_map(|(_, ranks)| ranks).collect(), detail)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::comm::{CollectiveDType, ReduceOp};

    fn signature(kind: CollectiveKind, count: u64) -> Option<Signature> {
        let operation = (kind == CollectiveKind::AllReduce).then_some(ReduceOp::Sum);
        Some(Signature { kind, element: CollectiveDType::F32, operation, root: None, count, before: None })
    }

    #[test]
    fn the_rank_that_differs_from_most_is_named() {
        let usual = signature(CollectiveKind::AllReduce, 8);
        let called = [usual, usual, signature(CollectiveKind::Broadcast, 8), usual];
        let (ranks, detail) = mismatch(&called, &[0, 1, 2, 3]);
        assert_eq!((ranks, detail.as_str()), (vec![2], "rank 2 called broadcast, others all_reduce"));
    }

    #[test]
    fn sizes_are_named_where_the_collective_is_the_same() {
        let usual = signature(CollectiveKind::AllReduce, 8);
        let (ranks, detail) =
            mismatch(&[signature(CollectiveKind::AllReduce, 7), usual, None, usual], &[4, 5, 6, 7]);
        assert_eq!(ranks, [4]);
        assert_eq!(detail, "rank 4 called all_reduce of 7 f32 by sum, others all_reduce of 8 f32 by sum");
        let (ranks, detail) = mismatch(&[usual, signature(CollectiveKind::Barrier, 0)], &[4, 5]);
        assert_eq!((ranks, detail.as_str()), (vec![5], "rank 5 called barrier, rank 4 all_reduce"));
    }
}
