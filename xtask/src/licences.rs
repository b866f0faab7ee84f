//! What the workspace depends on has a licence of `deny.toml`, and comes from crates.io.
//!
//! **Problem.** `cargo deny` checks this and more. It is a program of its own, which takes longer to build than memtide: a bare machine,
//! such as the one that checks each change, has none.
//!
//! **Rule.** This reads the same list, `licenses.allow` of `deny.toml`, and what `cargo metadata` says of each crate. `cargo deny` runs, too, where there
//! is one.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

/// The only place that crates may come from, as `cargo metadata` names it.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Why the check could not run.
#[derive(Debug, thiserror::Error)]
pub enum LicencesError {
    /// `cargo metadata` failed.
    #[error("cargo metadata: {0}")]
    Metadata(String),
    /// `deny.toml` cannot be read.
    #[error("deny.toml: {0}")]
    List(String),
}

/// The part of `deny.toml` that is used.
#[derive(Debug, Deserialize)]
struct Deny {
    licenses: Licenses,
}

#[derive(Debug, Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

/// The part of `cargo metadata` that is used.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None`: a crate of the workspace.
    source: Option<String>,
}

/// What must be put right, a line each.
///
/// # Errors
/// If a list cannot be read.
pub fn run(root: &Path) -> Result<Vec<String>, LicencesError> {
    let text = std::fs::read_to_string(root.join("deny.toml"))
        .map_err(|error| LicencesError::List(error.to_string()))?;
    let deny: Deny = toml::from_str(&text).map_err(|error| LicencesError::List(error.to_string()))?;
    let arguments = [
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--all-features",
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
    ];
    let output = Command::new(crate::cargo())
        .args(arguments)
        .current_dir(root)
        .output()
        .map_err(|error| LicencesError::Metadata(error.to_string()))?;
    if !output.status.success() {
        return Err(LicencesError::Metadata(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).map_err(|error| LicencesError::Metadata(error.to_string()))?;
    Ok(metadata.packages.iter().filter_map(|package| wrong(package, &deny.licenses.allow)).collect())
}

/// What is wrong with a crate.
fn wrong(package: &Package, allowed: &BTreeSet<String>) -> Option<String> {
    let Package { name, version, license, source } = package;
    let source = source.as_ref()?;
    if source != CRATES_IO {
        return Some(format!("{name} {version} comes from {source}, not from crates.io"));
    }
    let Some(license) = license else { return Some(format!("{name} {version} names no licence")) };
    match spdx::Expression::parse_mode(license, spdx::ParseMode::LAX) {
        Ok(expression) if expression.evaluate(|one| allowed.contains(&one.to_string())) => None,
        Ok(_) => Some(format!("{name} {version} has the licence {license}: see deny.toml")),
        Err(error) => {
            Some(format!("{name} {version}: the licence {license} cannot be read: {}", error.reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_and_sources_are_judged() {
        let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
        let judge = |license: Option<&str>, source: Option<&str>| {
            let [license, source] = [license, source].map(|text| text.map(str::to_owned));
            wrong(&Package { name: "it".to_owned(), version: "1.0.0".to_owned(), license, source }, &allowed)
        };
        let here = Some(CRATES_IO);
        let good = [
            "MIT",
            "GPL-3.0-only OR MIT",
            "MIT/Apache-2.0",
            "(MIT OR GPL-2.0-only) AND Apache-2.0 WITH LLVM-exception",
        ];
        for license in good {
            assert_eq!(judge(Some(license), here), None, "{license}");
        }
        assert_eq!(judge(None, None), None, "a crate of the workspace");
        for license in ["GPL-3.0-only", "MIT AND GPL-2.0-only", "MPL-2.0"] {
            assert!(judge(Some(license), here).unwrap().contains("see deny.toml"), "{license}");
        }
        assert!(judge(None, here).unwrap().contains("names no licence"));
        assert!(judge(Some("my own"), here).unwrap().contains("cannot be read"));
        assert!(judge(Some("MIT"), Some("git+https://example.org")).unwrap().contains("not from crates.io"));
    }
}
