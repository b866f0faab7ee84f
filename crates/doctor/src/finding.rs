//! A finding of a rule.

use serde::Serialize;

/// The weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Everything works, but could work better.
    Hint,
    /// Something works less well than it looks, or could not be checked.
    Warning,
    /// memtide cannot do its work here, or would take memory in vain.
    Problem,
}

/// The subject of a finding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Subject {
    /// The host as a whole.
    Host,
    /// One guest.
    Guest {
        /// Its name.
        name: String,
        /// Its process; `None` for a configured guest without a process.
        pid: Option<u32>,
    },
}

/// One way to fix a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// The place of the lines, in a few words.
    pub place: String,
    /// The lines to type.
    pub lines: Vec<String>,
}

/// Something that is lacking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule's name: stable, for scripts.
    pub rule: &'static str,
    /// Its weight.
    pub severity: Severity,
    /// Its subject.
    pub subject: Subject,
    /// The fact.
    pub fact: String,
    /// Its cost.
    pub cost: String,
    /// The ways to fix it, the best first. Empty if only waiting helps.
    #[serde(rename = "mends")]
    pub fixes: Vec<Fix>,
}

impl Severity {
    /// One word for people and scripts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hint => "hint",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

impl Finding {
    pub(crate) fn of_host(rule: &'static str, severity: Severity, fact: impl Into<String>) -> Self {
        Self {
            rule,
            severity,
            subject: Subject::Host,
            fact: fact.into(),
            cost: String::new(),
            fixes: Vec::new(),
        }
    }

    pub(crate) fn costs(mut self, cost: impl Into<String>) -> Self {
        self.cost = cost.into();
        self
    }

    /// Adds a way to fix it.
    pub(crate) fn with(mut self, fix: Fix) -> Self {
        self.fixes.push(fix);
        self
    }

    /// Adds a way to fix it; adds nothing without lines.
    pub(crate) fn fix<S: Into<String>>(
        mut self,
        place: impl Into<String>,
        lines: impl IntoIterator<Item = S>,
    ) -> Self {
        let lines: Vec<String> = lines.into_iter().map(Into::into).collect();
        if !lines.is_empty() {
            self.fixes.push(Fix { place: place.into(), lines });
        }
        self
    }
}
