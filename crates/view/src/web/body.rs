//! The body of an answer: a text that is there at once, or the updates of a page.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use super::{connection::Busy, events::Events};

/// The body of an answer, and what is given back when it was sent.
#[derive(Debug)]
pub(super) struct Body {
    content: Content,
    /// Its place among the large answers, or among the pages.
    _place: Option<OwnedSemaphorePermit>,
    /// The connection is not idle as long as this lives.
    _busy: Option<Busy>,
}

/// Maximum bytes of a frame: hyper asks for the next one when few bytes are left to be sent.
const PART: usize = 16 << 10;

#[derive(Debug)]
enum Content {
    Text(Option<Bytes>),
    Events(Box<Events>),
}

impl Body {
    pub(super) fn text(text: impl Into<Bytes>) -> Body {
        let text = text.into();
        Body { content: Content::Text(Some(text).filter(|text| !text.is_empty())), _place: None, _busy: None }
    }

    pub(super) fn events(events: Events) -> Body {
        Body { content: Content::Events(Box::new(events)), _place: None, _busy: None }
    }

    pub(super) fn holding(self, place: OwnedSemaphorePermit) -> Body {
        Body { _place: Some(place), ..self }
    }

    pub(super) fn keeping(self, busy: Busy) -> Body {
        Body { _busy: Some(busy), ..self }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.content {
            // In parts: hyper drops the body, and with it the place, as soon as the last frame is queued.
            Content::Text(text) => {
                let part = match text {
                    Some(rest) if rest.len() > PART => Some(rest.split_to(PART)),
                    _ => text.take(),
                };
                Poll::Ready(part.map(|part| Ok(Frame::data(part))))
            }
            Content::Events(events) => {
                events.poll_next(context).map(|text| text.map(|it| Ok(Frame::data(it))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.content, Content::Text(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            Content::Events(_) => SizeHint::default(),
        }
    }
}
