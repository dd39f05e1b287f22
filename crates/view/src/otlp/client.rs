//! The HTTP client of the exporter: `ureq`, which blocks the exporter's thread and needs no runtime and no TLS library.

use std::time::Duration;

use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use ureq::Agent;

/// Maximum time of a request if `OTEL_EXPORTER_OTLP_TIMEOUT` says nothing: that of OpenTelemetry.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of an answer that are read.
const MAX_ANSWER: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
}

impl Client {
    pub(super) fn new() -> Self {
        let asked = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
        let asked = asked.into_iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
        let config = Agent::config_builder()
            .timeout_global(Some(asked.map_or(TIMEOUT, Duration::from_millis)))
            // The exporter looks at the status itself.
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .build();
        Client { agent: config.into() }
    }
}

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let response = self.agent.run(Request::from_parts(parts, &body[..]))?;
        let (parts, body) = response.into_parts();
        let body = body.into_with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(parts, body.into()))
    }
}
