//! The other pictures of a report: sizes of chunks over time, and times that are compared.

use std::collections::BTreeSet;

use super::{
    lanes::{AXIS, TimeScale, WIDTH, axis, open, path, text},
    numbers::{format_count, format_time},
    run_trace::RunTrace,
};

/// The top and the bottom of the sizes.
const SIZES: (f64, f64) = (24.0, 184.0);
/// The width and height of a point, and of the cells in which only one point is drawn.
const POINT: f64 = 4.0;
/// Devices with a color of their own.
const MAX_COLORS: usize = 6;

/// The colors of devices, for light and dark backgrounds.
pub(super) const STYLE: &str = "\
svg .c0{fill:#2f6fbd}svg .c1{fill:#c2571a}svg .c2{fill:#1f8f68}svg .c3{fill:#a03c95}svg .c4{fill:#8a6d00}\
svg .c5{fill:#c93c37}svg .c6{fill:#8b949e}\
svg .time{fill:#2f6fbd}svg .other{fill:#8b949e}\
@media screen and (prefers-color-scheme:dark){\
svg .c0{fill:#5b9ee6}svg .c1{fill:#e88b52}svg .c2{fill:#3fb58b}svg .c3{fill:#d47bc9}svg .c4{fill:#cfae3c}\
svg .c5{fill:#f0645c}svg .c6{fill:#7d8590}svg .time{fill:#5b9ee6}svg .other{fill:#6e7681}}";

/// Draws a point for each chunk, at its beginning and by its size. Points that would cover each other are drawn once. Returns
/// the number of points too.
pub(super) fn chunk_sizes(trace: &RunTrace, wall_s: f64) -> (String, u64) {
    let scale = TimeScale { wall_s: wall_s.max(1e-12) };
    let chunks = || trace.lanes.iter().flat_map(|lane| &lane.spans).filter(|span| span.activity.is_chunk());
    let largest = chunks().map(|span| span.items).max().unwrap_or(1).max(2);
    let powers = largest.ilog10() + u32::from(10u64.checked_pow(largest.ilog10()) != Some(largest));
    // A decade is at least so high that its label fits.
    let height = |items: u64| {
        let share = (items.max(1) as f64).log10() / f64::from(powers.max(1));
        SIZES.1 - (SIZES.1 - SIZES.0) * share
    };
    let devices = trace.devices();
    let has_legend = devices.len() <= MAX_COLORS;
    let bottom = SIZES.1 + if has_legend { 50.0 } else { 26.0 };
    let mut svg = open(bottom, "Sizes of chunks over time");
    svg += &axis(&scale, (SIZES.0 - 6.0, SIZES.1));
    let step = powers.div_ceil(8).max(1) as usize;
    for power in (0..=powers).step_by(step) {
        let items = 10u64.saturating_pow(power);
        let y = height(items);
        svg += &format!("<path class=\"grid\" d=\"M{} {y:.1}H{}\"/>\n", AXIS.0, AXIS.1);
        let label = format!("{} {}", format_count(items), if items == 1 { "item" } else { "items" });
        svg += &text(AXIS.0 - 8.0, y + 4.0, " class=\"small\" text-anchor=\"end\"", &label);
    }
    let (mut taken, mut count, mut x) = (BTreeSet::new(), 0, AXIS.0);
    for (index, (id, lanes)) in devices.iter().enumerate() {
        let class = format!("c{}", if has_legend { index } else { 0 });
        let cell = |at: f64| (at / POINT) as u32;
        let chunks = lanes.iter().flat_map(|lane| &lane.spans).filter(|span| span.activity.is_chunk());
        let cells: BTreeSet<(u32, u32)> =
            chunks.map(|span| (cell(scale.x(span.from_s)), cell(height(span.items)))).collect();
        // With a color each, every device shows all of its own.
        let is_new = |cell: &(u32, u32)| has_legend || taken.insert(*cell);
        let cells: Vec<(u32, u32)> = cells.into_iter().filter(is_new).collect();
        count += cells.len() as u64;
        let at = |cell: u32| f64::from(cell) * POINT;
        let point = |(x, y): (u32, u32)| format!("M{} {}h{POINT}v{POINT}h-{POINT}z", at(x), at(y));
        let points: String = cells.into_iter().map(point).collect();
        svg += &path(&class, &points);
        if has_legend {
            svg += &format!(
                "<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"10\" height=\"10\"/>\n",
                bottom - 17.0
            );
            svg += &text(x + 15.0, bottom - 8.0, " class=\"small\"", &short(id));
            x += 120.0;
        }
    }
    (svg + "</svg>\n", count)
}

/// A name that fits the legend.
fn short(name: &str) -> String {
    const MAX_CHARS: usize = 14;
    match name.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// Draws times as bars from the same beginning, with their names. The run's own, `is_result`, has another color.
pub(super) fn times(times: &[(&str, f64, bool)]) -> String {
    const ROW: f64 = 24.0;
    /// The end of the longest bar, which leaves room for its time.
    const END: f64 = AXIS.1 - 80.0;
    let longest = times.iter().map(|(_, time, _)| *time).fold(1e-12, f64::max);
    let height = ROW * times.len() as f64 + 6.0;
    let mut svg = open(height, "Times that are compared");
    for (index, (name, time, is_result)) in times.iter().enumerate() {
        let (y, class) = (ROW * index as f64 + 4.0, if *is_result { "time" } else { "other" });
        let width = ((END - AXIS.0) * time / longest).clamp(1.0, WIDTH);
        svg += &text(AXIS.0 - 8.0, y + 12.0, " text-anchor=\"end\"", name);
        svg += &format!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{y}\" width=\"{width:.1}\" height=\"16\" rx=\"2\"/>\n",
            AXIS.0
        );
        svg += &text(AXIS.0 + width + 6.0, y + 12.0, " class=\"small\"", &format_time(*time));
    }
    svg + "</svg>\n"
}
