//! Live views of a run: the options of every command that runs something, and the views while they last.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use evener_device::Inventory;
use evener_schedule::{Report, Trace};
use evener_view::report::{Html, Provenance};

use crate::{
    inline::InlineView,
    output::{display_path, write_file},
    serve::{ServeOptions, Serving},
    verbosity::Verbosity,
};

/// The options for views, which every command has that runs something.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ViewOptions {
    /// Show in the terminal what each device does, while it runs
    ///
    /// The view is on standard error, and is removed when the report is printed. If standard error is not a terminal, there
    /// is none. `evener top` shows all programs.
    #[arg(long)]
    pub(crate) view: bool,

    /// Write a report with pictures to this HTML file, to attach to a bug report or a paper
    ///
    /// The file has what each device did when, shares, sizes of chunks, prediction and result, efficiency, errors, the
    /// machine, the versions and the command line. It loads nothing from elsewhere.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) serve: ServeOptions,
}

impl ViewOptions {
    /// The files that views write, for [`check_outputs`](crate::options::check_outputs).
    pub(crate) fn outputs(&self) -> impl Iterator<Item = Option<&Path>> {
        std::iter::once(self.report.as_deref())
    }

    /// Whether a view needs the run's trace at its end.
    pub(crate) fn needs_trace(&self) -> bool {
        self.report.is_some()
    }
}

/// The views of a command, which end when this is dropped.
#[derive(Debug)]
#[must_use = "views last as long as this value"]
pub(crate) struct Views {
    inline: Option<InlineView>,
    report: Option<PathBuf>,
    #[cfg(feature = "otlp")]
    otlp: Option<evener_view::otlp::Otlp>,
    serving: Option<Serving>,
}

impl Views {
    /// Begins the views that the options ask for. Call it before the run.
    pub(crate) fn begin(options: &ViewOptions, verbosity: Verbosity) -> Result<Views> {
        let inline = if options.view { InlineView::begin(verbosity)? } else { None };
        Ok(Views {
            inline,
            serving: options.serve.begin(verbosity)?,
            report: options.report.clone(),
            #[cfg(feature = "otlp")]
            otlp: begin_otlp(),
        })
    }

    /// Whether a view shows the progress, so that the command shows no progress bar.
    pub(crate) fn show_progress(&self) -> bool {
        self.inline.is_some()
    }

    /// Ends the live views, and writes what the options ask for about a run that has ended. Call it after the run and before
    /// its report is printed. `run` is `None` if the command has no report, or no device took part.
    pub(crate) fn finish(self, run: Option<(&Report, &Trace)>) -> Result<()> {
        drop(self.inline);
        if let Some(serving) = self.serving {
            serving.finish();
        }
        #[cfg(feature = "otlp")]
        if let Some(otlp) = self.otlp {
            let exported = otlp.finish();
            tracing::info!("OpenTelemetry: {} spans sent, {} dropped", exported.sent, exported.dropped);
        }
        match (self.report, run) {
            (Some(path), Some((report, trace))) => write_report(&path, report, trace),
            (Some(path), None) => {
                let path = display_path(&path);
                tracing::warn!(
                    "{path}: not written, because no device took part, or the command has no one run"
                );
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }
}

/// Exports spans if the environment names a collector. A collector that cannot be used is no reason not to run.
#[cfg(feature = "otlp")]
fn begin_otlp() -> Option<evener_view::otlp::Otlp> {
    use evener_view::otlp::Otlp;

    let otlp = Otlp::is_asked_for().then(Otlp::begin)?;
    otlp.inspect_err(|error| tracing::warn!("no spans are exported: {error}")).ok()
}

/// Writes a run as an HTML file.
fn write_report(path: &Path, report: &Report, trace: &Trace) -> Result<()> {
    let provenance = Provenance::of_process().with_devices(&Inventory::discover());
    let html = Html::of_run(report, trace).provenance(provenance);
    write_file(path, html.to_string().as_bytes())
}

/// The socket through which `evener top` and `evener serve` find this program, while this lives.
#[cfg(unix)]
pub(crate) type Socket = evener_view::socket::Server;

/// Opens the socket if `EVENER_VIEW` asks for it. A socket that cannot be opened is no reason not to run.
#[cfg(unix)]
pub(crate) fn open_socket() -> Result<Option<Socket>> {
    use evener_view::socket::{SocketError, open_if_asked};

    match open_if_asked() {
        Err(error @ SocketError::Variable(_)) => Err(crate::UsageError(error.to_string()).into()),
        Err(error) => {
            tracing::warn!("`evener top` will not find this program: {error}");
            Ok(None)
        }
        Ok(server) => Ok(server),
    }
}

/// Programs are found through Unix sockets.
#[cfg(not(unix))]
pub(crate) fn open_socket() -> Result<Option<()>> {
    Ok(None)
}
