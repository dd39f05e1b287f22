//! Metrics as text, in Prometheus' own format and as OpenMetrics has it.

use std::fmt::Write;

use super::Metrics;

/// The format of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::web) enum Format {
    /// Prometheus' text format 0.0.4, for clients that ask for nothing else.
    Prometheus,
    /// OpenMetrics 1.0, which Prometheus asks for.
    OpenMetrics,
}

impl Format {
    pub(in crate::web) fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What the samples of a family are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A value that rises and falls.
    Gauge,
    /// A value that only grows. Its samples have the suffix `_total`.
    Counter,
    /// Labels that do not change. Its sample is 1, and has the suffix `_info`.
    Info,
}

/// A metric with all its samples.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
    /// Labels in braces, and the value.
    pub(super) samples: Vec<(String, f64)>,
}

impl Metrics {
    /// The metrics as text.
    pub(in crate::web) fn to_text(&self, format: Format) -> String {
        let mut text = String::new();
        for family in &self.families {
            // Writing to a string does not fail.
            let _ = family.write(&mut text, format);
        }
        if format == Format::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }
}

impl Family {
    fn write(&self, text: &mut String, format: Format) -> std::fmt::Result {
        let Family { name, kind, unit, help, samples } = self;
        let (suffix, type_name) = match kind {
            Kind::Gauge => ("", "gauge"),
            Kind::Counter => ("_total", "counter"),
            Kind::Info => ("_info", "info"),
        };
        match format {
            Format::Prometheus => {
                // It knows no information, and its families have the names of their samples.
                let type_name = if *kind == Kind::Info { "gauge" } else { type_name };
                writeln!(text, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {type_name}")?;
            }
            Format::OpenMetrics => {
                writeln!(text, "# TYPE {name} {type_name}")?;
                if !unit.is_empty() {
                    writeln!(text, "# UNIT {name} {unit}")?;
                }
                writeln!(text, "# HELP {name} {help}")?;
            }
        }
        for (labels, value) in samples {
            writeln!(text, "{name}{suffix}{labels} {}", number(*value))?;
        }
        Ok(())
    }
}

/// A number as both formats have it.
fn number(value: f64) -> String {
    match value {
        _ if value.is_nan() => "NaN".into(),
        f64::INFINITY => "+Inf".into(),
        f64::NEG_INFINITY => "-Inf".into(),
        _ => value.to_string(),
    }
}

/// Labels in braces.
pub(super) fn labels(pairs: &[(&str, &str)]) -> String {
    let mut text = String::from("{");
    for (index, (name, value)) in pairs.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{name}=\"{value}\"");
    }
    text + "}"
}
