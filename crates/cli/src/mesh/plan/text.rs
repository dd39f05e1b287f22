//! The text output of `evener mesh plan`.

use anyhow::Result;
use evener_mesh::{
    placement::{Proposal, RateSource, SearchMethod},
    topology::{Mesh, ResourceTotals},
};

use super::Plan;
use crate::{
    output::format_time,
    table::{Heading, table},
};

const GIB: f64 = (1u64 << 30) as f64;

/// Returns the ranks, the groups, the stages and the prediction.
pub(super) fn text(plan: &Plan) -> Result<String> {
    let mesh = &plan.mesh;
    let mut paragraphs = Vec::new();
    if !plan.about.is_empty() {
        paragraphs.push(plan.about.clone());
    }
    paragraphs.push(headline(mesh));
    paragraphs.push(ranks(mesh, plan.proposal.as_ref())?);
    paragraphs.push(groups(mesh)?);
    if let Some(proposal) = &plan.proposal {
        paragraphs.push(stages(proposal, plan.has_seconds));
        if proposal.dp > 1 {
            paragraphs.push(replicas(proposal, plan.has_seconds));
        }
        paragraphs.push(verdict(proposal, plan.has_seconds));
    }
    Ok(paragraphs.join("\n\n") + "\n")
}

/// Returns the sizes of the axes as a line that `--axes` takes.
pub(super) fn axes(mesh: &Mesh) -> String {
    let axes: Vec<String> = mesh.axes().iter().map(|axis| format!("{}={}", axis.name, axis.size)).collect();
    axes.join(",") + "\n"
}

fn headline(mesh: &Mesh) -> String {
    let axes: Vec<String> = mesh.axes().iter().map(|axis| format!("{} {}", axis.name, axis.size)).collect();
    let ResourceTotals {
        devices, memory_bytes, memory_unknown, compute_units, compute_units_unknown, ..
    } = mesh.totals();
    let but = |unknown: usize| if unknown > 0 { format!(" (unknown for {unknown})") } else { String::new() };
    let devices = if devices == 1 { "1 device".into() } else { format!("{devices} devices") };
    format!(
        "{devices} as {}; {:.1} GiB of memory{}, {compute_units} compute units{}",
        axes.join(" × "),
        memory_bytes as f64 / GIB,
        but(memory_unknown),
        but(compute_units_unknown)
    )
}

fn ranks(mesh: &Mesh, proposal: Option<&Proposal>) -> Result<String> {
    let by_score = proposal.is_some_and(|proposal| proposal.rated_by == RateSource::Score);
    let mut headings = vec![Heading::number("RANK")];
    headings.extend(mesh.axes().iter().map(|axis| Heading::number(&axis.name)));
    let strength = if by_score { "SCORE" } else { "RATE /s" };
    headings.extend([
        Heading::text("DEVICE"),
        Heading::text("KIND"),
        Heading::number("MEMORY GiB").optional(),
        Heading::number("UNITS").optional(),
        Heading::number(strength).optional(),
    ]);
    let mut rows = Vec::new();
    for (rank, member) in mesh.members().iter().enumerate() {
        let mut row = vec![rank.to_string()];
        row.extend(mesh.coordinates(rank)?.iter().map(usize::to_string));
        let strength = if by_score {
            known(member.score, |score| format!("{score:.1}"))
        } else {
            known(member.rate_per_s, |rate| format!("{rate:.3e}"))
        };
        row.extend([
            member.to_string(),
            member.kind.to_string(),
            known(member.memory_bytes, |bytes| format!("{:.1}", bytes as f64 / GIB)),
            known(member.compute_units, |units| units.to_string()),
            strength,
        ]);
        rows.push(row);
    }
    Ok(table(&headings, &rows))
}

fn groups(mesh: &Mesh) -> Result<String> {
    let mut rows = Vec::new();
    for group in mesh.groups() {
        rows.push(vec![group.name().to_owned(), list_ranks(group.ranks()?)]);
    }
    Ok(table(&[Heading::text("GROUP"), Heading::text("RANKS")], &rows))
}

fn stages(proposal: &Proposal, has_seconds: bool) -> String {
    let slowest = proposal.stages.iter().map(|stage| stage.seconds).fold(0.0, f64::max);
    let rows = proposal.stages.iter().enumerate().map(|(index, stage)| {
        let layers = &stage.layers;
        let mut row = vec![
            index.to_string(),
            format!("{}..{}", layers.start, layers.end),
            format!("{:.3e}", stage.cost),
            format!("{:.2}", stage.memory_bytes as f64 / GIB),
            known(stage.capacity_bytes, |bytes| format!("{:.2}", bytes as f64 / GIB)),
            format!("{:.1} %", 100.0 * stage.seconds / slowest),
        ];
        if has_seconds {
            row.push(format_time(stage.seconds));
        }
        row
    });
    let mut headings = vec![
        Heading::number("STAGE"),
        Heading::number("LAYERS"),
        Heading::number("COST"),
        Heading::number("NEEDS GiB").optional(),
        Heading::number("HAS GiB").optional(),
        Heading::number("OF SLOWEST"),
    ];
    if has_seconds {
        headings.push(Heading::number("PER MICRO-BATCH"));
    }
    table(&headings, &rows.collect::<Vec<_>>())
}

fn replicas(proposal: &Proposal, has_seconds: bool) -> String {
    let slowest = proposal.replicas.iter().map(|replica| replica.seconds).fold(0.0, f64::max);
    let rows = proposal.replicas.iter().enumerate().map(|(index, replica)| {
        let mut row = vec![
            index.to_string(),
            replica.micro_batches.to_string(),
            format!("{:.1} %", 100.0 * replica.seconds / slowest),
        ];
        if has_seconds {
            row.push(format_time(replica.seconds));
        }
        row
    });
    let mut headings =
        vec![Heading::number("REPLICA"), Heading::number("MICRO-BATCHES"), Heading::number("OF SLOWEST")];
    if has_seconds {
        headings.push(Heading::number("PER STEP"));
    }
    table(&headings, &rows.collect::<Vec<_>>())
}

fn verdict(proposal: &Proposal, has_seconds: bool) -> String {
    let mut lines = vec![format!(
        "predicted: balance {:.3} (1 if all devices are equally busy), efficiency {:.3} (1 if no device waits or sends)",
        proposal.balance, proposal.efficiency
    )];
    if has_seconds {
        lines.push(format!(
            "a step of {} micro-batches takes {}, of which {} for gradients; ideal {}",
            proposal.replicas.iter().map(|replica| replica.micro_batches).sum::<u64>(),
            format_time(proposal.step_s),
            format_time(proposal.gradients_s),
            format_time(proposal.ideal_s)
        ));
    }
    lines.push(
        match proposal.search {
            SearchMethod::Exhaustive => "all assignments of devices to ranks were tried",
            SearchMethod::LocalSearch => {
                "not all assignments of devices to ranks were tried: a better one may exist"
            }
            SearchMethod::AsListed => "the devices are on ranks in their listed order",
        }
        .into(),
    );
    if proposal.rated_by == RateSource::Score {
        lines.push(
            "compared by score, because not all devices are measured: `evener devices --measure` measures them"
                .into(),
        );
    }
    lines.join("\n")
}

fn known<T>(fact: Option<T>, show: impl Fn(T) -> String) -> String {
    fact.map_or_else(|| "?".into(), show)
}

/// Lists ranks, at most 16 of them.
fn list_ranks(ranks: &[usize]) -> String {
    const LISTED: usize = 16;
    let listed = ranks.iter().take(LISTED).map(usize::to_string).collect::<Vec<_>>().join(" ");
    match ranks.len() {
        all if all > LISTED => format!("{listed} and {} more", all - LISTED),
        _ => listed,
    }
}
