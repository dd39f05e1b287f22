//! Draws what each device did when, as an SVG picture.

use super::{
    analysis::{Analysis, DeviceTimes},
    markup::escape,
    numbers::{format_count, format_counted, format_percent as percent, format_time},
    run_trace::{LaneActivity, LaneSpan, LaneTrace, RunTrace},
};

/// The width of the picture, in pixels.
pub(super) const WIDTH: f64 = 960.0;
/// The left and right edge of the time axis.
pub(super) const AXIS: (f64, f64) = (178.0, 936.0);
/// The top of the first row.
const TOP: f64 = 46.0;
/// The distance between rows.
const ROW: f64 = 46.0;
/// The height of a row's chunks.
const CHUNKS: f64 = 24.0;
/// The offset and the height of a row's copies.
const COPIES: (f64, f64) = (26.0, 8.0);
/// The maximum number of devices with a row of their own. The others share one.
const MAX_ROWS: usize = 24;
/// The maximum number of chunks of a lane that are drawn one above the other.
const MAX_TRACKS: usize = 4;
/// Spans narrower than this are drawn together with their neighbours.
const MIN_SPAN: f64 = 1.5;
/// The width of a column in the row of a device with several lanes.
const COLUMN: f64 = 2.0;
/// The number of columns.
const COLUMNS: usize = ((AXIS.1 - AXIS.0) / COLUMN) as usize;
/// The height of the axis, the legend and the margins below the rows.
const BOTTOM: f64 = 66.0;

/// The width of a mark of a failure.
const MARK: f64 = 6.0;

/// The colors of pictures, for light and dark backgrounds and for paper.
pub(super) const STYLE: &str = "\
svg text{font:13px system-ui,sans-serif;fill:#24292f}\
svg .small{font-size:11px;fill:#57606a}\
svg .page{fill:#fff}svg .row{fill:#f1f3f5}svg .grid{stroke:#d8dee4}\
svg .work{fill:#2f6fbd}svg .speculative{fill:#1f8f68}svg .dropped{fill:#8b949e}svg .failed{fill:#c93c37}\
svg .prepare{fill:#9a8fc7}svg .copy{fill:#e0962f}\
@media screen and (prefers-color-scheme:dark){\
svg text{fill:#e6edf3}svg .small{fill:#9aa4af}\
svg .page{fill:#161b22}svg .row{fill:#21262d}svg .grid{stroke:#373e47}\
svg .work{fill:#4c8fdb}svg .speculative{fill:#3fb58b}svg .dropped{fill:#7d8590}svg .failed{fill:#f0645c}\
svg .copy{fill:#e8a84c}}";

/// A kind of span, with its class in the style and its text in the legend.
struct Kind {
    class: &'static str,
    legend: &'static str,
    contains: fn(LaneActivity) -> bool,
}

const PREPARATION: Kind = Kind {
    class: "prepare",
    legend: "preparation",
    contains: |activity| activity == LaneActivity::Preparation,
};
const COPY: Kind =
    Kind { class: "copy", legend: "copy between host and device", contains: |it| it == LaneActivity::Copy };
const CHUNK_KINDS: [Kind; 5] = [
    PREPARATION,
    Kind { class: "work", legend: "chunk", contains: |activity| activity == LaneActivity::Work },
    Kind {
        class: "speculative",
        legend: "speculative copy (rescue)",
        contains: |activity| activity == LaneActivity::Speculative,
    },
    Kind {
        class: "dropped",
        legend: "dropped: others were first",
        contains: |activity| activity == LaneActivity::Dropped,
    },
    Kind { class: "failed", legend: "failed", contains: |activity| activity == LaneActivity::Failure },
];

/// A picture, and what it shows.
pub(super) struct Picture {
    pub(super) svg: String,
    /// The number of chunks.
    pub(super) chunks: u64,
    /// The number of bars that show them. Chunks that are too narrow share one.
    pub(super) bars: u64,
    /// The number of devices that share a row.
    pub(super) devices_together: usize,
}

/// Returns the picture of a run, with its own background: a row for each device, with its chunks above and its copies below.
/// The lanes of a device that has several are one row, whose height is the number of lanes that work.
pub fn lanes_svg(trace: &RunTrace, analysis: &Analysis) -> String {
    draw(trace, analysis, true).svg
}

/// Draws the lanes. A picture that is not `standalone` has no background and no style of its own.
pub(super) fn draw(trace: &RunTrace, analysis: &Analysis, standalone: bool) -> Picture {
    let scale = TimeScale { wall_s: analysis.wall_s.max(1e-12) };
    let (shown, others) = select(&analysis.devices);
    let rows = shown.len() + usize::from(!others.is_empty());
    let rows_end = TOP + ROW * rows as f64;
    let height = rows_end + BOTTOM;
    let title = format!(
        "{} in {} on {} in {}",
        format_counted(analysis.items, "item", "items"),
        format_counted(analysis.chunks, "chunk", "chunks"),
        format_counted(analysis.devices.len() as u64, "device", "devices"),
        format_time(analysis.wall_s)
    );
    let mut svg = open(height, &title);
    if standalone {
        svg += &format!(
            "<style>{STYLE}</style>\n<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n"
        );
    }
    svg += &text(16.0, 26.0, "", &title);
    svg += &axis(&scale, (TOP - 6.0, rows_end));
    let lanes = trace.devices();
    let (mut chunks, mut bars) = (0, 0);
    for (row_index, &index) in shown.iter().enumerate() {
        let (device, lanes) = (&analysis.devices[index], &lanes[index].1);
        let (row, row_bars) = row(device, lanes, TOP + ROW * row_index as f64, &scale);
        svg += &row;
        // A device with several lanes is one outline, not bars.
        if lanes.len() == 1 {
            (chunks, bars) = (chunks + device.chunks, bars + row_bars);
        }
    }
    if !others.is_empty() {
        let top = TOP + ROW * shown.len() as f64;
        let share: f64 = others.iter().map(|&index| analysis.devices[index].share).sum();
        let name = format!("and {} more devices", format_count(others.len() as u64));
        let lanes: Vec<&LaneTrace> =
            others.iter().flat_map(|&index| lanes[index].1.iter().copied()).collect();
        svg += &label(&name, &format!("together {} of the items", percent(share)), top);
        svg += &outline(&lanes, top, &scale);
        svg += &failures(&lanes, top, &scale);
    }
    svg += &legend(trace, height - 16.0);
    Picture { svg: svg + "</svg>\n", chunks, bars, devices_together: others.len() }
}

/// Which devices have a row of their own, and which share one. Those that failed, or whose work others took over, come first
/// if there are too many, and then those that did most.
fn select(devices: &[DeviceTimes]) -> (Vec<usize>, Vec<usize>) {
    let mut order: Vec<usize> = (0..devices.len()).collect();
    if devices.len() <= MAX_ROWS {
        return (order, Vec::new());
    }
    let trouble = |it: &DeviceTimes| (it.failures, it.dropped, it.items);
    order.sort_by_key(|&index| std::cmp::Reverse(trouble(&devices[index])));
    let others = order.split_off(MAX_ROWS);
    order.sort_unstable();
    (order, others)
}

/// The opening tag of a picture.
pub(super) fn open(height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{}\">\n",
        escape(title)
    )
}

/// Maps times to horizontal positions.
pub(super) struct TimeScale {
    pub(super) wall_s: f64,
}

impl TimeScale {
    pub(super) fn x(&self, seconds: f64) -> f64 {
        AXIS.0 + (AXIS.1 - AXIS.0) * (seconds / self.wall_s).clamp(0.0, 1.0)
    }

    /// Returns the distance of ticks in seconds: 1, 2 or 5 times a power of ten, at most ten ticks.
    fn tick_s(&self) -> f64 {
        let power = 10f64.powf((self.wall_s / 10.0).log10().floor());
        let steps = [1.0, 2.0, 5.0].map(|step| step * power);
        steps.into_iter().find(|step| self.wall_s / step <= 10.0).unwrap_or(10.0 * power)
    }
}

/// Draws lines and labels of times, from a height to another.
pub(super) fn axis(scale: &TimeScale, (top, bottom): (f64, f64)) -> String {
    let (unit_s, unit) = match scale.wall_s {
        wall_s if wall_s < 2e-3 => (1e-6, "µs"),
        wall_s if wall_s < 2.0 => (1e-3, "ms"),
        _ => (1.0, "s"),
    };
    let tick_s = scale.tick_s();
    let decimals = (unit_s / tick_s).log10().ceil().clamp(0.0, 6.0) as usize;
    let ticks = (0..).map(|tick| f64::from(tick) * tick_s).take_while(|time| *time <= scale.wall_s);
    ticks
        .map(|time| {
            let x = scale.x(time);
            let label = format!("{:.decimals$} {unit}", time / unit_s);
            format!("<path class=\"grid\" d=\"M{x:.1} {top}V{bottom}\"/>\n")
                + &text(x, bottom + 16.0, " class=\"small\" text-anchor=\"middle\"", &label)
        })
        .collect()
}

/// Draws the row of a device. Returns the number of bars too.
fn row(device: &DeviceTimes, lanes: &[&LaneTrace], top: f64, scale: &TimeScale) -> (String, u64) {
    let lane_count = if lanes.len() > 1 { format!("{} lanes, ", lanes.len()) } else { String::new() };
    let mut row = label(&device.id, &format!("{lane_count}{} of the items", percent(device.share)), top);
    row += &match lanes {
        [lane] => chunks(lane, top, scale),
        _ => outline(lanes, top, scale),
    };
    let drawn = row.matches('z').count() as u64;
    row += &failures(lanes, top, scale);
    let copies = lanes.iter().flat_map(|lane| &lane.spans).filter(|span| (COPY.contains)(span.activity));
    (row + &path(COPY.class, &bars(copies.collect(), top + COPIES.0, COPIES.1, scale)), drawn)
}

/// Draws the names and the background of a row.
fn label(name: &str, small: &str, top: f64) -> String {
    const MAX_CHARS: usize = 22;
    let short = match name.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    };
    text(16.0, top + 14.0, "", &short)
        + &text(16.0, top + 30.0, " class=\"small\"", small)
        + &format!(
            "<rect class=\"row\" x=\"{}\" y=\"{top}\" width=\"{}\" height=\"{CHUNKS}\"/>\n",
            AXIS.0,
            AXIS.1 - AXIS.0
        )
}

/// Marks the failures of lanes above their row: the bars themselves may be too narrow to be seen.
fn failures(lanes: &[&LaneTrace], top: f64, scale: &TimeScale) -> String {
    let failed = lanes.iter().flat_map(|lane| &lane.spans).filter(|it| it.activity == LaneActivity::Failure);
    let mut at: Vec<f64> = failed.map(|span| scale.x(span.until_s)).collect();
    at.sort_by(f64::total_cmp);
    at.dedup_by(|next, last| *next - *last < MARK);
    let mark = |x: &f64| format!("M{x:.1} {}l-{} -5h{MARK}z", top - 0.5, MARK / 2.0);
    path("failed", &at.iter().map(mark).collect::<String>())
}

/// Draws each chunk of a lane. Chunks that are in flight at the same time lie above each other.
fn chunks(lane: &LaneTrace, top: f64, scale: &TimeScale) -> String {
    let is_drawn = |span: &&LaneSpan| CHUNK_KINDS.iter().any(|kind| (kind.contains)(span.activity));
    let mut spans: Vec<&LaneSpan> = lane.spans.iter().filter(is_drawn).collect();
    spans.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
    let mut tracks: Vec<Vec<&LaneSpan>> = Vec::new();
    for span in spans {
        // Times in traces are rounded to nanoseconds.
        let is_free =
            |track: &Vec<&LaneSpan>| track.last().is_none_or(|last| last.until_s <= span.from_s + 2e-9);
        match tracks.iter().position(is_free) {
            Some(track) => tracks[track].push(span),
            None if tracks.len() < MAX_TRACKS => tracks.push(vec![span]),
            None => tracks[MAX_TRACKS - 1].push(span),
        }
    }
    let height = CHUNKS / tracks.len().max(1) as f64;
    let mut drawn = String::new();
    for kind in &CHUNK_KINDS {
        let of_kind = |track: &Vec<&'_ LaneSpan>| -> Vec<LaneSpan> {
            track.iter().filter(|span| (kind.contains)(span.activity)).map(|span| **span).collect()
        };
        let bars: String = (tracks.iter().enumerate())
            .map(|(index, track)| {
                bars(of_kind(track).iter().collect(), top + height * index as f64, height, scale)
            })
            .collect();
        drawn += &path(kind.class, &bars);
    }
    drawn
}

/// Returns a path with a bar for each span. Narrow spans next to each other are one bar.
fn bars(mut spans: Vec<&LaneSpan>, top: f64, height: f64, scale: &TimeScale) -> String {
    spans.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
    let mut bars: Vec<(f64, f64)> = Vec::new();
    for span in spans {
        let (from, until) = (scale.x(span.from_s), scale.x(span.until_s));
        match bars.last_mut() {
            Some(last)
                // Times in traces are rounded to nanoseconds, so neighbours may overlap by that.
                if from < last.1 - 0.05
                    || (from - last.1 < 1.0 && (until - from).min(last.1 - last.0) < MIN_SPAN) =>
            {
                last.1 = last.1.max(until);
            }
            _ => bars.push((from, until)),
        }
    }
    let bar = |(from, until): (f64, f64)| {
        // A gap shows where one chunk ends and the next one begins.
        let width = if until - from > 2.0 { until - from - 0.6 } else { (until - from).max(0.5) };
        format!("M{from:.1} {top:.1}h{width:.1}v{height:.1}h-{width:.1}z")
    };
    bars.into_iter().map(bar).collect()
}

/// Draws several lanes as one outline: the height of each color is the part of the lanes that are in a span of its kind.
fn outline(lanes: &[&LaneTrace], top: f64, scale: &TimeScale) -> String {
    let mut below = vec![0.0; COLUMNS];
    let mut layers: Vec<String> = Vec::new();
    for kind in &CHUNK_KINDS {
        let mut busy = busy_lanes(lanes, kind.contains, scale);
        if busy.iter().all(|busy| *busy == 0.0) {
            continue;
        }
        busy.iter_mut().zip(&below).for_each(|(busy, below)| *busy += below);
        let bottom = top + CHUNKS;
        let steps: String =
            busy.iter().map(|busy| format!("V{:.1}h{COLUMN}", bottom - CHUNKS * busy.min(1.0))).collect();
        layers.push(path(kind.class, &format!("M{} {bottom}{steps}V{bottom}z", AXIS.0)));
        below = busy;
    }
    // The lower layers cover what of the higher ones is below their own height.
    layers.into_iter().rev().collect()
}

/// The part of the lanes that are in a span of a kind, for each column.
fn busy_lanes(lanes: &[&LaneTrace], is_counted: fn(LaneActivity) -> bool, scale: &TimeScale) -> Vec<f64> {
    let mut busy = vec![0.0; COLUMNS];
    for span in lanes.iter().flat_map(|lane| &lane.spans).filter(|span| is_counted(span.activity)) {
        let column = |seconds| (scale.x(seconds) - AXIS.0) / COLUMN;
        let (from, until) = (column(span.from_s), column(span.until_s));
        let touched = from as usize..(until.ceil() as usize).min(COLUMNS);
        for (index, busy) in busy.iter_mut().enumerate().take(touched.end).skip(touched.start) {
            *busy += (until.min(index as f64 + 1.0) - from.max(index as f64)) / lanes.len() as f64;
        }
    }
    busy
}

/// Draws the meaning of the colors that occur.
fn legend(trace: &RunTrace, baseline: f64) -> String {
    let occurs = |kind: &&Kind| {
        trace.lanes.iter().flat_map(|lane| &lane.spans).any(|span| (kind.contains)(span.activity))
    };
    let (mut legend, mut x) = (String::new(), AXIS.0);
    for kind in CHUNK_KINDS.iter().chain([&COPY]).filter(occurs) {
        legend += &format!(
            "<rect class=\"{}\" x=\"{x}\" y=\"{}\" width=\"12\" height=\"10\"/>\n",
            kind.class,
            baseline - 9.0
        );
        legend += &text(x + 17.0, baseline, " class=\"small\"", kind.legend);
        x += 45.0 + 6.0 * kind.legend.len() as f64;
    }
    legend
}

pub(super) fn path(class: &str, data: &str) -> String {
    if data.is_empty() { String::new() } else { format!("<path class=\"{class}\" d=\"{data}\"/>\n") }
}

pub(super) fn text(x: f64, y: f64, attributes: &str, text: &str) -> String {
    let text = escape(text);
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\"{attributes}>{text}</text>\n")
}

#[cfg(test)]
mod test {
    use super::{super::analysis::test::lane, *};

    fn picture(lanes: Vec<LaneTrace>) -> String {
        let trace = RunTrace::of(lanes);
        lanes_svg(&trace, &Analysis::new(&trace))
    }

    /// The number of bars of a class.
    fn bars(svg: &str, class: &str) -> usize {
        let lines = svg.lines().filter(|line| line.starts_with(&format!("<path class=\"{class}\"")));
        lines.map(|line| line.matches('z').count()).sum()
    }

    #[test]
    fn each_activity_has_bars_of_its_own() {
        let svg = picture(vec![
            lane(
                "cuda:0",
                &[
                    (LaneActivity::Preparation, 0, 0.0, 1.0),
                    (LaneActivity::Work, 5, 1.0, 5.0),
                    (LaneActivity::Copy, 5, 1.0, 2.0),
                    (LaneActivity::Work, 5, 5.0, 8.0),
                    (LaneActivity::Speculative, 2, 8.0, 10.0),
                ],
            ),
            lane("vulkan:1", &[(LaneActivity::Failure, 5, 0.0, 9.0)]),
        ]);
        let counts = ["prepare", "work", "copy", "speculative", "failed"].map(|class| bars(&svg, class));
        assert_eq!(counts, [1, 2, 1, 1, 2], "a failure has a bar and a mark: {svg}");
        for part in [
            ">cuda:0<",
            ">vulkan:1<",
            ">0 s<",
            ">10 s<",
            ">speculative copy (rescue)<",
            "12 items in 4 chunks",
        ] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
    }

    #[test]
    fn chunks_in_flight_at_once_do_not_cover_each_other() {
        let one = [(LaneActivity::Work, 1, 0.0, 4.0), (LaneActivity::Work, 1, 4.0, 8.0)];
        let two = [(LaneActivity::Work, 1, 0.0, 4.0), (LaneActivity::Work, 1, 2.0, 8.0)];
        let tall = format!("v{CHUNKS:.1}");
        let half = format!("v{:.1}", CHUNKS / 2.0);
        assert_eq!(picture(vec![lane("gpu", &one)]).matches(&tall).count(), 2);
        assert_eq!(picture(vec![lane("gpu", &two)]).matches(&half).count(), 2);
    }

    #[test]
    fn the_cores_of_a_processor_are_one_row_and_its_height_is_how_many_work() {
        let lanes = vec![lane("cpu", &[(LaneActivity::Work, 1, 0.0, 8.0)]), lane("cpu", &[])];
        let svg = picture(lanes);
        assert_eq!((svg.matches(">cpu<").count(), bars(&svg, "work")), (1, 1));
        let half = format!("V{:.1}h", TOP + CHUNKS / 2.0);
        assert_eq!(svg.matches(&half).count(), ((AXIS.1 - AXIS.0) / COLUMN) as usize, "{svg}");
    }

    #[test]
    fn many_chunks_and_devices_make_a_small_picture() {
        let spans: Vec<_> =
            (0..100_000).map(|n| (LaneActivity::Work, 1, f64::from(n), f64::from(n) + 0.9)).collect();
        let svg = picture((0..100).map(|device| lane(&format!("gpu:{device}"), &spans)).collect());
        assert!(svg.len() < 150_000, "{}", svg.len());
        assert!(svg.contains("and 76 more devices"));
    }

    #[test]
    fn devices_that_failed_have_rows_of_their_own_however_many_there_are() {
        let mut lanes: Vec<LaneTrace> =
            (0..100).map(|n| lane(&format!("gpu:{n}"), &[(LaneActivity::Work, 100 - n, 0.0, 1.0)])).collect();
        lanes.push(lane("bad", &[(LaneActivity::Failure, 5, 0.0, 1.0)]));
        let svg = picture(lanes);
        for name in [">bad<", ">gpu:0<", ">gpu:22<", ">and 77 more devices<"] {
            assert!(svg.contains(name), "{name}: {svg}");
        }
        assert!(!svg.contains(">gpu:23<"));
    }

    #[test]
    fn colors_of_several_lanes_lie_above_each_other() {
        let svg = picture(vec![
            lane("cpu", &[(LaneActivity::Work, 1, 0.0, 8.0)]),
            lane("cpu", &[(LaneActivity::Failure, 1, 0.0, 8.0)]),
        ]);
        let (failed, work) = (svg.find("<path class=\"failed\" d=\"M178"), svg.find("<path class=\"work\""));
        assert!(failed.unwrap() < work.unwrap(), "work is drawn over the lower half of the failures");
        assert!(svg.contains(&format!("M178 70V{TOP:.1}h2V{TOP:.1}")), "{svg}");
    }

    #[test]
    fn names_cannot_change_the_picture() {
        let svg = picture(vec![lane("</text><script>\u{1b}&", &[(LaneActivity::Work, 1, 0.0, 1.0)])]);
        assert!(!svg.contains("<script>") && !svg.contains('\u{1b}'), "{svg}");
        assert!(svg.contains("&lt;/text&gt;&lt;script"), "{svg}");
    }

    #[test]
    fn ticks_are_round_and_few() {
        for (wall_s, tick_s) in [(0.06461, 0.01), (1.0, 0.1), (1.1, 0.2), (45.0, 5.0), (3e-6, 5e-7)] {
            let found = TimeScale { wall_s }.tick_s();
            assert!((found / tick_s - 1.0).abs() < 1e-9, "{wall_s}: {found}");
        }
    }
}
