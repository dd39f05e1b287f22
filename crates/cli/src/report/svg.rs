//! Draws the lanes of a trace as an SVG picture.

use super::{
    analysis::{Analysis, DeviceTimes},
    percent,
    trace::{ParsedActivity, ParsedLane, ParsedSpan, ParsedTrace},
};
use crate::{
    escape,
    output::{format_count, format_time},
};

/// The width of the picture, in pixels.
const WIDTH: f64 = 960.0;
/// The left and right edge of the time axis.
const AXIS: (f64, f64) = (178.0, 936.0);
/// The top of the first row.
const TOP: f64 = 46.0;
/// The distance between rows.
const ROW: f64 = 46.0;
/// The height of a row's chunks.
const CHUNKS: f64 = 24.0;
/// The offset and the height of a row's copies.
const COPIES: (f64, f64) = (26.0, 8.0);
/// The maximum number of devices that are drawn.
const MAX_ROWS: usize = 24;
/// The maximum number of chunks of a lane that are drawn one above the other.
const MAX_TRACKS: usize = 4;
/// Spans narrower than this are drawn together with their neighbours.
const MIN_SPAN: f64 = 1.5;
/// The width of a column in the row of a device with several lanes.
const COLUMN: f64 = 2.0;
/// The height of the axis, the legend and the margins below the rows.
const BOTTOM: f64 = 66.0;

/// The colors of the page, for light and dark backgrounds. The picture draws its own background, so that it is readable
/// on both.
const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#24292f}\
.small{font-size:11px;fill:#57606a}\
.page{fill:#fff}.row{fill:#f1f3f5}.grid{stroke:#d8dee4}\
.work{fill:#2f6fbd}.speculative{fill:#2a9d74}.wasted{fill:#c93c37}.prepare{fill:#9a8fc7}.copy{fill:#e0962f}\
@media(prefers-color-scheme:dark){\
text{fill:#e6edf3}.small{fill:#9aa4af}\
.page{fill:#161b22}.row{fill:#21262d}.grid{stroke:#373e47}\
.work{fill:#4c8fdb}.speculative{fill:#3fb58b}.wasted{fill:#e5534b}.copy{fill:#e8a84c}}";

/// A kind of span, with its class in the style and its text in the legend.
struct Kind {
    class: &'static str,
    legend: &'static str,
    contains: fn(ParsedActivity) -> bool,
}

const PREPARATION: Kind = Kind {
    class: "prepare",
    legend: "preparation",
    contains: |activity| activity == ParsedActivity::Preparation,
};
const COPY: Kind =
    Kind { class: "copy", legend: "copy between host and device", contains: |it| it == ParsedActivity::Copy };
const CHUNK_KINDS: [Kind; 4] = [
    PREPARATION,
    Kind { class: "work", legend: "chunk", contains: |activity| activity == ParsedActivity::Work },
    Kind {
        class: "speculative",
        legend: "speculative copy",
        contains: |activity| activity == ParsedActivity::Speculative,
    },
    Kind {
        class: "wasted",
        legend: "chunk not used",
        contains: |activity| matches!(activity, ParsedActivity::Dropped | ParsedActivity::Failure),
    },
];

/// Returns the picture of a run: a row for each device, with its chunks above and its copies below. The lanes of a device
/// that has several are one row, whose height is the number of lanes that work.
pub(super) fn draw(trace: &ParsedTrace, analysis: &Analysis) -> String {
    let scale = TimeScale { wall_s: analysis.wall_s.max(1e-12) };
    let shown = &analysis.devices[..analysis.devices.len().min(MAX_ROWS)];
    let rows_end = TOP + ROW * shown.len() as f64;
    let height = rows_end + BOTTOM;
    let title = format!(
        "{} items in {} chunks on {} devices in {}",
        format_count(analysis.items),
        format_count(analysis.chunks),
        analysis.devices.len(),
        format_time(analysis.wall_s)
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n{}",
        text(16.0, 26.0, "", &title)
    );
    svg += &axis(&scale, rows_end);
    for (index, device) in shown.iter().enumerate() {
        let lanes: Vec<&ParsedLane> = trace.lanes.iter().filter(|lane| lane.device == device.id).collect();
        svg += &row(device, &lanes, TOP + ROW * index as f64, &scale);
    }
    if let Some(left_out) = analysis.devices.len().checked_sub(MAX_ROWS + 1) {
        let message = format!("and {} more devices", format_count(left_out as u64 + 1));
        svg += &text(16.0, rows_end + 16.0, " class=\"small\"", &message);
    }
    svg + &legend(trace, height - 16.0) + "</svg>\n"
}

/// Maps times to horizontal positions.
struct TimeScale {
    wall_s: f64,
}

impl TimeScale {
    fn x(&self, seconds: f64) -> f64 {
        AXIS.0 + (AXIS.1 - AXIS.0) * (seconds / self.wall_s).clamp(0.0, 1.0)
    }

    /// Returns the distance of ticks in seconds: 1, 2 or 5 times a power of ten, at most ten ticks.
    fn tick_s(&self) -> f64 {
        let power = 10f64.powf((self.wall_s / 10.0).log10().floor());
        let steps = [1.0, 2.0, 5.0].map(|step| step * power);
        steps.into_iter().find(|step| self.wall_s / step <= 10.0).unwrap_or(10.0 * power)
    }
}

fn axis(scale: &TimeScale, rows_end: f64) -> String {
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
            format!("<path class=\"grid\" d=\"M{x:.1} {}V{rows_end}\"/>\n", TOP - 6.0)
                + &text(x, rows_end + 16.0, " class=\"small\" text-anchor=\"middle\"", &label)
        })
        .collect()
}

fn row(device: &DeviceTimes, lanes: &[&ParsedLane], top: f64, scale: &TimeScale) -> String {
    let lane_count = if lanes.len() > 1 { format!("{} lanes, ", lanes.len()) } else { String::new() };
    let small = format!("{lane_count}{} of the items", percent(device.share));
    let mut row = text(16.0, top + 14.0, "", &device.id)
        + &text(16.0, top + 30.0, " class=\"small\"", &small)
        + &format!(
            "<rect class=\"row\" x=\"{}\" y=\"{top}\" width=\"{}\" height=\"{CHUNKS}\"/>\n",
            AXIS.0,
            AXIS.1 - AXIS.0
        );
    match lanes {
        [lane] => row += &chunks(lane, top, scale),
        _ => {
            for kind in &CHUNK_KINDS {
                row += &path(kind.class, &busy_lanes(lanes, kind.contains, top, scale));
            }
        }
    }
    let copies = lanes.iter().flat_map(|lane| &lane.spans).filter(|span| (COPY.contains)(span.activity));
    row + &path(COPY.class, &bars(copies.collect(), top + COPIES.0, COPIES.1, scale))
}

/// Draws each chunk of a lane. Chunks that are in flight at the same time lie above each other.
fn chunks(lane: &ParsedLane, top: f64, scale: &TimeScale) -> String {
    let is_drawn = |span: &&ParsedSpan| CHUNK_KINDS.iter().any(|kind| (kind.contains)(span.activity));
    let mut spans: Vec<&ParsedSpan> = lane.spans.iter().filter(is_drawn).collect();
    spans.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
    let mut tracks: Vec<Vec<&ParsedSpan>> = Vec::new();
    for span in spans {
        // Times in traces are rounded to nanoseconds.
        let is_free =
            |track: &Vec<&ParsedSpan>| track.last().is_none_or(|last| last.until_s <= span.from_s + 2e-9);
        match tracks.iter().position(is_free) {
            Some(track) => tracks[track].push(span),
            None if tracks.len() < MAX_TRACKS => tracks.push(vec![span]),
            None => tracks[MAX_TRACKS - 1].push(span),
        }
    }
    let height = CHUNKS / tracks.len().max(1) as f64;
    let mut drawn = String::new();
    for kind in &CHUNK_KINDS {
        let of_kind = |track: &Vec<&'_ ParsedSpan>| -> Vec<ParsedSpan> {
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
fn bars(mut spans: Vec<&ParsedSpan>, top: f64, height: f64, scale: &TimeScale) -> String {
    spans.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
    let mut bars: Vec<(f64, f64)> = Vec::new();
    for span in spans {
        let (from, until) = (scale.x(span.from_s), scale.x(span.until_s));
        match bars.last_mut() {
            Some(last)
                if from < last.1
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

/// Returns a path whose height is the part of the lanes that are in a span of a kind.
fn busy_lanes(
    lanes: &[&ParsedLane],
    is_counted: fn(ParsedActivity) -> bool,
    top: f64,
    scale: &TimeScale,
) -> String {
    let columns = ((AXIS.1 - AXIS.0) / COLUMN) as usize;
    let mut busy = vec![0.0; columns];
    for span in lanes.iter().flat_map(|lane| &lane.spans).filter(|span| is_counted(span.activity)) {
        let column = |seconds| (scale.x(seconds) - AXIS.0) / COLUMN;
        let (from, until) = (column(span.from_s), column(span.until_s));
        let touched = from as usize..(until.ceil() as usize).min(columns);
        for (index, busy) in busy.iter_mut().enumerate().take(touched.end).skip(touched.start) {
            *busy += (until.min(index as f64 + 1.0) - from.max(index as f64)) / lanes.len() as f64;
        }
    }
    if busy.iter().all(|busy| *busy == 0.0) {
        return String::new();
    }
    let bottom = top + CHUNKS;
    let steps: String =
        busy.iter().map(|busy| format!("V{:.1}h{COLUMN}", bottom - CHUNKS * busy.min(1.0))).collect();
    format!("M{} {bottom}{steps}V{bottom}z", AXIS.0)
}

/// Draws the meaning of the colors that occur.
fn legend(trace: &ParsedTrace, baseline: f64) -> String {
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

fn path(class: &str, data: &str) -> String {
    if data.is_empty() { String::new() } else { format!("<path class=\"{class}\" d=\"{data}\"/>\n") }
}

fn text(x: f64, y: f64, attributes: &str, text: &str) -> String {
    let text = escape::single_line(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\"{attributes}>{text}</text>\n")
}

#[cfg(test)]
mod test {
    use super::{super::analysis::test::lane, *};

    fn picture(lanes: Vec<ParsedLane>) -> String {
        let trace = ParsedTrace { lanes };
        draw(&trace, &Analysis::new(&trace))
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
                    (ParsedActivity::Preparation, 0, 0.0, 1.0),
                    (ParsedActivity::Work, 5, 1.0, 5.0),
                    (ParsedActivity::Copy, 5, 1.0, 2.0),
                    (ParsedActivity::Work, 5, 5.0, 8.0),
                    (ParsedActivity::Speculative, 2, 8.0, 10.0),
                ],
            ),
            lane("vulkan:1", &[(ParsedActivity::Failure, 5, 0.0, 9.0)]),
        ]);
        let counts = ["prepare", "work", "copy", "speculative", "wasted"].map(|class| bars(&svg, class));
        assert_eq!(counts, [1, 2, 1, 1, 1], "{svg}");
        for part in
            [">cuda:0<", ">vulkan:1<", ">0 s<", ">10 s<", ">speculative copy<", "12 items in 4 chunks"]
        {
            assert!(svg.contains(part), "{part}: {svg}");
        }
    }

    #[test]
    fn chunks_in_flight_at_once_do_not_cover_each_other() {
        let one = [(ParsedActivity::Work, 1, 0.0, 4.0), (ParsedActivity::Work, 1, 4.0, 8.0)];
        let two = [(ParsedActivity::Work, 1, 0.0, 4.0), (ParsedActivity::Work, 1, 2.0, 8.0)];
        let tall = format!("v{CHUNKS:.1}");
        let half = format!("v{:.1}", CHUNKS / 2.0);
        assert_eq!(picture(vec![lane("gpu", &one)]).matches(&tall).count(), 2);
        assert_eq!(picture(vec![lane("gpu", &two)]).matches(&half).count(), 2);
    }

    #[test]
    fn the_cores_of_a_processor_are_one_row_and_its_height_is_how_many_work() {
        let lanes = vec![lane("cpu", &[(ParsedActivity::Work, 1, 0.0, 8.0)]), lane("cpu", &[])];
        let svg = picture(lanes);
        assert_eq!((svg.matches(">cpu<").count(), bars(&svg, "work")), (1, 1));
        let half = format!("V{:.1}h", TOP + CHUNKS / 2.0);
        assert_eq!(svg.matches(&half).count(), ((AXIS.1 - AXIS.0) / COLUMN) as usize, "{svg}");
    }

    #[test]
    fn many_chunks_and_devices_make_a_small_picture() {
        let spans: Vec<_> =
            (0..100_000).map(|n| (ParsedActivity::Work, 1, f64::from(n), f64::from(n) + 0.9)).collect();
        let svg = picture((0..100).map(|device| lane(&format!("gpu:{device}"), &spans)).collect());
        assert!(svg.len() < 150_000, "{}", svg.len());
        assert!(svg.contains("and 76 more devices"));
    }

    #[test]
    fn names_cannot_change_the_picture() {
        let svg = picture(vec![lane("</text><script>\u{1b}&", &[(ParsedActivity::Work, 1, 0.0, 1.0)])]);
        assert!(!svg.contains("<script>") && !svg.contains('\u{1b}'), "{svg}");
        assert!(svg.contains("&lt;/text&gt;&lt;script&gt;"));
    }

    #[test]
    fn ticks_are_round_and_few() {
        for (wall_s, tick_s) in [(0.06461, 0.01), (1.0, 0.1), (1.1, 0.2), (45.0, 5.0), (3e-6, 5e-7)] {
            let found = TimeScale { wall_s }.tick_s();
            assert!((found / tick_s - 1.0).abs() < 1e-9, "{wall_s}: {found}");
        }
    }
}
