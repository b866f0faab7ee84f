//! What a rule says.

use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// All works; it could work better.
    Hint,
    /// Something works less well than it looks, or could not be looked at.
    Warning,
    /// memtide cannot do its work here, or memory will be lost to guests for nothing.
    Problem,
}

/// Whom a finding concerns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Subject {
    /// The host as a whole.
    Host,
    /// One guest.
    Guest {
        /// Its name.
        name: String,
        /// Its process; `None` for a guest of the configuration that has none.
        pid: Option<u32>,
    },
}

/// One way to mend a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mend {
    /// Where the lines belong, in a few words.
    pub place: String,
    /// The lines, as they are to be typed.
    pub lines: Vec<String>,
}

/// Something that is lacking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule that found it: stable, for scripts.
    pub rule: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// Whom it concerns.
    pub subject: Subject,
    /// What is so.
    pub fact: String,
    /// What it costs.
    pub cost: String,
    /// How to mend it: one of these, the best first. Empty where only waiting helps.
    pub mends: Vec<Mend>,
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
            mends: Vec::new(),
        }
    }

    pub(crate) fn costs(mut self, cost: impl Into<String>) -> Self {
        self.cost = cost.into();
        self
    }

    /// One way more to mend it; none where there are no lines.
    pub(crate) fn mend<S: Into<String>>(
        mut self,
        place: impl Into<String>,
        lines: impl IntoIterator<Item = S>,
    ) -> Self {
        let lines: Vec<String> = lines.into_iter().map(Into::into).collect();
        if !lines.is_empty() {
            self.mends.push(Mend { place: place.into(), lines });
        }
        self
    }
}
