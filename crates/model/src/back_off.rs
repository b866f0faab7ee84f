//! Pauses that become longer.

use serde::{Deserialize, Serialize};

use crate::{Moment, Span};

/// A pause that doubles each time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackOff {
    /// The end of the pause; `None`: there was none yet.
    pub until: Option<Moment>,
    /// The length of the last pause.
    pub span: Span,
}

impl BackOff {
    /// Another pause from `now` on: twice as long as the last one, within `first` and `longest`.
    #[must_use]
    pub fn again(self, now: Moment, first: Span, longest: Span) -> Self {
        let span = self.span.doubled().clamp(first, longest);
        Self { until: Some(now.after(span)), span }
    }

    /// Whether the pause lasts at `now`.
    #[must_use]
    pub fn lasts(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Whether there was none yet.
    pub(crate) const fn is_over(&self) -> bool {
        self.until.is_none()
    }
}
