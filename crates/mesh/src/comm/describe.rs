//! What a back end's failure means, in the words that users see.

use std::time::Duration;

use super::{
    call::{Collective, Signature},
    error::{CommError, list},
};
use crate::backend::{Failure, Parting};

/// Where a failure happened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) group: &'a str,
    /// The group's ranks, by member.
    pub(super) ranks: &'a [usize],
    /// The calling rank.
    pub(super) rank: usize,
    pub(super) call: &'a Signature,
    pub(super) timeout: Duration,
}

/// A failure as an error.
pub(super) fn error(failure: Failure, scene: Scene<'_>) -> CommError {
    let Scene { group, ranks, rank, call, timeout } = scene;
    let (group, call) = (group.to_owned(), call.collective.to_string());
    match failure {
        Failure::Disagree(called) => {
            let (ranks, detail) = disagreement(&called, ranks);
            CommError::Disagree { group, ranks, detail }
        }
        Failure::TimedOut(missing) => {
            let ranks = missing.into_iter().map(|member| ranks[member]).collect();
            CommError::TimedOut { group, call, after: timeout, ranks }
        }
        Failure::TooLate => CommError::TooLate { group, call, rank },
        Failure::Parted(member, parting) => {
            let rank = ranks[member];
            match parting {
                Parting::Left => CommError::Left { group, call, rank, how: "left".into() },
                Parting::Panicked => CommError::Left { group, call, rank, how: "panicked".into() },
                Parting::Failed { why, blame } => {
                    let ranks = if blame.is_empty() { vec![rank] } else { blame };
                    CommError::Failed { group, call, ranks, detail: format!("rank {rank} failed: {why}") }
                }
            }
        }
        Failure::NoWeight => CommError::NoWeight { group },
        Failure::Library { library, operation, detail } => {
            CommError::Library { group, library, operation, detail }
        }
    }
}

/// Who differs from most others, and what each called.
fn disagreement(called: &[Option<Signature>], ranks: &[usize]) -> (Vec<usize>, String) {
    let mut kinds: Vec<(Signature, Vec<usize>)> = Vec::new();
    for (member, signature) in called.iter().enumerate() {
        let Some(signature) = signature else { continue };
        match kinds.iter_mut().find(|(kind, _)| kind == signature) {
            Some((_, members)) => members.push(ranks[member]),
            None => kinds.push((*signature, vec![ranks[member]])),
        }
    }
    // Those that most called, and of equally many those of the lowest member, are what the rest is measured by.
    let Some(most) = kinds.iter().map(|(_, members)| members.len()).max() else {
        return (Vec::new(), "what they called is not known".into());
    };
    let usual = kinds.iter().position(|(_, members)| members.len() == most).unwrap_or(0);
    let (usual, usual_ranks) = kinds.remove(usual);
    // Where the collectives differ, their names say it; otherwise the sizes, types and operations do. Sending and
    // receiving belong together.
    let names = kinds.iter().all(|(kind, _)| kind.collective != usual.collective)
        && !matches!(usual.collective, Collective::Send | Collective::Receive);
    let name = |signature: &Signature| {
        if names { signature.collective.to_string() } else { signature.to_string() }
    };
    let noun = |ranks: &[usize]| if ranks.len() == 1 { "rank" } else { "ranks" };
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
    use crate::comm::{ElementType, Operation};

    fn signature(collective: Collective, count: u64) -> Option<Signature> {
        let operation = (collective == Collective::AllReduce).then_some(Operation::Sum);
        Some(Signature { collective, element: ElementType::F32, operation, root: None, count, before: None })
    }

    #[test]
    fn whoever_differs_from_most_is_named() {
        let usual = signature(Collective::AllReduce, 8);
        let called = [usual, usual, signature(Collective::Broadcast, 8), usual];
        let (ranks, detail) = disagreement(&called, &[0, 1, 2, 3]);
        assert_eq!((ranks, detail.as_str()), (vec![2], "rank 2 called broadcast, others all_reduce"));
    }

    #[test]
    fn sizes_are_named_where_the_collective_is_the_same() {
        let usual = signature(Collective::AllReduce, 8);
        let (ranks, detail) =
            disagreement(&[signature(Collective::AllReduce, 7), usual, None, usual], &[4, 5, 6, 7]);
        assert_eq!(ranks, [4]);
        assert_eq!(detail, "rank 4 called all_reduce of 7 f32 by sum, others all_reduce of 8 f32 by sum");
        let (ranks, detail) = disagreement(&[usual, signature(Collective::Barrier, 0)], &[4, 5]);
        assert_eq!((ranks, detail.as_str()), (vec![5], "rank 5 called barrier, rank 4 all_reduce"));
    }
}
