//! The files of the page. They are part of the program, and the package has them for Cockpit.

use crate::look;

/// A file of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageFile {
    /// Its name.
    pub name: &'static str,
    /// Its type, as HTTP names it.
    pub kind: &'static str,
    /// What is in it.
    pub text: String,
}

/// How the page reaches the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through `memtide web`.
    Web,
    /// Through Cockpit.
    Cockpit,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files that are the same everywhere.
const FILES: [(&str, &str, &str); 11] = [
    ("base.css", CSS, look::BASE),
    ("page.css", CSS, include_str!("../page/page.css")),
    ("page.js", SCRIPT, include_str!("../page/page.js")),
    ("daemon.js", SCRIPT, include_str!("../page/daemon.js")),
    ("dom.js", SCRIPT, include_str!("../page/dom.js")),
    ("words.js", SCRIPT, include_str!("../page/words.js")),
    ("host.js", SCRIPT, include_str!("../page/host.js")),
    ("guests.js", SCRIPT, include_str!("../page/guests.js")),
    ("log.js", SCRIPT, include_str!("../page/log.js")),
    ("orders.js", SCRIPT, include_str!("../page/orders.js")),
    ("icon.svg", "image/svg+xml", include_str!("../page/icon.svg")),
];

/// The place in the page for the script that only Cockpit has.
const COCKPIT_GOES_HERE: &str = "<!-- cockpit -->";
/// Cockpit serves it at this place to all its pages.
const COCKPIT: &str = "<script src=\"../base1/cockpit.js\"></script>";

/// All files of the page for this way.
#[must_use]
pub fn of(way: Way) -> Vec<PageFile> {
    let script = if way == Way::Cockpit { COCKPIT } else { "" };
    let index = include_str!("../page/index.html").replace(COCKPIT_GOES_HERE, script);
    let mut files = vec![
        PageFile { name: "index.html", kind: HTML, text: index },
        PageFile { name: "palette.css", kind: CSS, text: look::style() },
        PageFile { name: "names.js", kind: SCRIPT, text: look::names() },
    ];
    if way == Way::Cockpit {
        let text = include_str!("../page/manifest.json").to_owned();
        files.push(PageFile { name: "manifest.json", kind: "application/json", text });
    }
    let same = FILES.map(|(name, kind, text)| PageFile { name, kind, text: text.to_owned() });
    files.extend(same);
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_nobody_else_and_runs_nothing_in_its_text() {
        for file in of(Way::Web).into_iter().chain(of(Way::Cockpit)) {
            let text = file.text.replace("http://www.w3.org/2000/svg", "");
            for elsewhere in ["http://", "https://", "//cdn", "@import", "url("] {
                assert!(!text.contains(elsewhere), "{}: {elsewhere}", file.name);
            }
            for unsafe_way in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "style=",
                "onclick=",
            ] {
                assert!(!text.contains(unsafe_way), "{}: {unsafe_way}", file.name);
            }
        }
        let [web, cockpit] = [Way::Web, Way::Cockpit].map(|way| of(way)[0].text.clone());
        assert!(!web.contains("cockpit") && cockpit.contains(COCKPIT));
    }
}
