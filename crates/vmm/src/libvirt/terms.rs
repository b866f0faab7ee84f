//! Writes the terms of a guest into the metadata of its domain.
//!
//! libvirt keeps them with the domain, also when it moves to another host, and tells of the change: a daemon that manages follows at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memtide_model::{Absence, TermError, Terms};

use super::connection::CallError;
use super::daemon::Link;
use super::description::{NAMESPACE, terms_in};
use super::protocol::{self, Domain, Procedure};
use super::{ConfiguredDaemon, Daemons};

/// The longest time for all of it.
const WITHIN: Duration = Duration::from_secs(20);
/// The name of the element and of its namespace.
const ELEMENT: &str = "memtide";

/// Why the terms of a domain were not written.
#[derive(Debug, thiserror::Error)]
pub enum TermsError {
    /// No daemon of libvirt listens.
    #[error("no daemon of libvirt listens here: name its socket in the configuration ([[libvirt]])")]
    NoDaemon,
    /// No daemon of libvirt answers.
    #[error("no daemon of libvirt answers: {0}")]
    Silent(Absence),
    /// No daemon has such a domain.
    #[error("libvirt has no domain `{0}`")]
    NoDomain(String),
    /// A term that nobody can follow.
    #[error(transparent)]
    Term(#[from] TermError),
    /// libvirt refuses.
    #[error("libvirt: {0}")]
    Call(#[from] CallError),
}

/// Changes terms of the domain `name`: `None` removes one. Returns all that it has now. Must be called within the runtime.
///
/// # Errors
/// If a term cannot be followed, if no daemon has the domain, or if libvirt refuses.
pub async fn set_terms(
    configured: Vec<ConfiguredDaemon>,
    name: &str,
    changes: &[(String, Option<String>)],
) -> Result<Terms, TermsError> {
    let by = Instant::now() + WITHIN;
    let (link, domain) = find(configured, name, by).await?;
    let body = link.connection.call(Procedure::DomainGetXmlDesc, &domain.with_no_flags(), by).await?;
    let xml = protocol::read_text(&body).map_err(CallError::from)?;
    let mut texts = terms_in(&xml).map_err(CallError::from)?;
    for (key, value) in changes {
        match value {
            Some(value) => _ = texts.insert(key.clone(), value.clone()),
            None if Terms::KEYS.contains(&key.as_str()) => _ = texts.remove(key),
            None => return Err(TermError::Unknown(key.clone()).into()),
        }
    }
    let (terms, mistakes) = Terms::read(&texts);
    if let Some(mistake) = mistakes.into_iter().next() {
        return Err(mistake.into());
    }
    let element = (!texts.is_empty()).then(|| element(&texts));
    let write = async |kept| {
        let arguments = domain.set_metadata(element.as_deref(), ELEMENT, NAMESPACE, kept);
        link.connection.call(Procedure::DomainSetMetadata, &arguments, by).await
    };
    match write(true).await {
        // A domain that ends with its process has nothing that is kept.
        Err(CallError::Refused(_)) if domain.id >= 0 => _ = write(false).await?,
        written => _ = written?,
    }
    Ok(terms)
}

async fn find(
    configured: Vec<ConfiguredDaemon>,
    name: &str,
    by: Instant,
) -> Result<(Link, Domain), TermsError> {
    let mut daemons = Daemons::new(configured);
    let me = rustix::process::getuid().as_raw();
    let (mut answered, mut why) = (false, None);
    for daemon in daemons.of_user(Some(me)) {
        let link = match daemon.link(std::process::id(), by).await {
            Ok(link) => link,
            Err(Absence::NoControl) => continue,
            Err(failed) => {
                why = Some(failed);
                continue;
            }
        };
        answered = true;
        match link.connection.call(Procedure::DomainLookupByName, &protocol::by_name(name), by).await {
            Ok(body) => return Ok((link, Domain::found(&body).map_err(CallError::from)?)),
            Err(CallError::Refused(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(match why {
        _ if answered => TermsError::NoDomain(name.to_owned()),
        Some(why) => TermsError::Silent(why),
        None => TermsError::NoDaemon,
    })
}

/// The element with these attributes.
fn element(texts: &BTreeMap<String, String>) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;");
    let attributes: String =
        texts.iter().map(|(key, value)| format!(" {key}='{}'", escaped(value))).collect();
    format!("<{ELEMENT}{attributes}/>")
}
