//! What a person sees in a browser, and does there.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memtide_api::view::Status;
use memtide_model::{Keeps, Verdict};
use memtide_stand_in::qemu::process::{Actor, Stage};
use memtide_testing::{Mortal, skip, skipped};
use memtide_web::files::{self, Way};

use crate::browser::{Browser, DESK, Look, PHONE};
use crate::common::{Daemon, until};
use crate::server::Server;
use crate::{daemon, guest};

/// Where the daemon's socket is for a page in Cockpit.
const SOCKET: &str = "/run/memtide/memtide.sock";
/// Where distributions put Cockpit's web server.
const COCKPIT: [&str; 2] = ["/usr/lib/cockpit/cockpit-ws", "/usr/libexec/cockpit-ws"];

fn guests(stage: &Stage, prefix: &str) -> Vec<Actor> {
    (1..=3).map(|nth| guest(stage, &format!("{prefix}-{nth}"))).collect()
}

fn is_held(status: &Status, name: &str) -> bool {
    let is_it = |verdict: &Verdict| matches!(verdict, Verdict::Held(hold) if hold.keeps == Keeps::Size);
    status.guests.iter().any(|guest| guest.name == name && is_it(&guest.report.verdict))
}

/// An expression that is true if the element's text contains these words.
fn says(id: &str, words: &str) -> String {
    format!("document.getElementById('{id}')?.textContent.includes({words:?}) === true")
}

/// Chooses a guest with the keyboard, and waits for its explanation.
fn explain(browser: &mut Browser, name: &str) {
    browser.value(&format!(
        "[...document.querySelectorAll('button.name')].find(it => it.textContent === {name:?}).focus()"
    ));
    browser.key("Enter");
    browser.until("an explanation", &says("why-text", "entitlement"));
}

/// Holds the guest and manages it again, as a person does.
fn gives_orders(browser: &mut Browser, daemon: &Daemon, name: &str) {
    explain(browser, name);
    browser.value("document.querySelector('[data-order=hold]').click()");
    browser.until("a question", &says("ask-text", "memtide neither takes memory from it"));
    assert!(!is_held(&daemon.status(), name), "a question is no order");
    browser.key("Enter");
    browser.until("an answer", &says("ask-answer", "held"));
    assert!(is_held(&daemon.status(), name));
    browser.key("Escape");
    browser.value("document.querySelector('[data-order=resume]').click()");
    browser.until("a question", &says("ask-text", "memtide manages"));
    browser.key("Enter");
    browser.until("an answer", &says("ask-answer", "keeps"));
    daemon.until("a managed guest", |status| status.guests.len() >= 3 && !is_held(status, name));
    browser.key("Escape");
}

pub fn a_person_gives_orders() {
    let directory = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(directory.path());
    let prefix = format!("person{}", std::process::id());
    let stage = Stage::new(directory.path()).unwrap();
    let mut all = guests(&stage, &prefix);
    let first = daemon(directory.path(), &prefix);
    let server = Server::start(&first.socket());
    browser.open(&server.url, DESK);
    browser.until(
        "three guests, live",
        &format!("document.querySelectorAll('#rows tr').length === 3 && {}", says("link", "live")),
    );
    assert_eq!(browser.value("location.hash"), "", "the token is not on the screen");
    browser.until("the sentence of the status", &says("sentence", "3 guests of 256 MiB run in "));
    browser.until("a graph", "document.querySelectorAll('#stack path')[0].getAttribute('d')?.length > 20");
    all.push(guest(&stage, &format!("{prefix}-4")));
    browser.until(
        "a new guest, and that it came",
        &format!(
            "document.querySelectorAll('#rows tr').length === 4 && {}",
            says("log", "is a new guest of 256 MiB")
        ),
    );

    let second = format!("{prefix}-2");
    gives_orders(&mut browser, &first, &second);
    browser.value("document.querySelector('[data-order=reclaim]').click()");
    browser.until("a preview", &says("ask-text", "Its balloon can take "));
    browser.picture("reclaim-desk");
    browser.value("document.getElementById('ask-no').click()");
    browser.key("Escape");
    browser.until("no dialog", "!document.querySelector('dialog[open]')");
    browser.until(
        "the orders in the log",
        &says("log", &format!("{second} is managed again: the operator's order")),
    );
    browser.key("ArrowDown");

    // The past comes from the daemon: a page that is opened now has it, too, and a reload needs no token in its address.
    browser.ask("Page.reload", serde_json::json!({}));
    browser.until("the past", &says("log", &format!("{second} is left alone: the operator's order")));

    let pid = first.pid();
    first.kill();
    until("its end", || crate::common::has_ended(pid), String::new);
    browser.until("a lost daemon", &says("link", "asking again"));
    let _second = daemon(directory.path(), &prefix);
    browser.until("a live page again", &says("link", "live"));
}

pub fn names_stay_text() {
    let directory = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(directory.path());
    let prefix = format!("text{}", std::process::id());
    let stage = Stage::new(directory.path()).unwrap();
    let name = format!("{prefix}-<b><img src><script>hacked()</script></b>");
    let _guest = guest(&stage, &name);
    let daemon = daemon(directory.path(), &prefix);
    let server = Server::start(&daemon.socket());
    browser.open(&server.url, DESK);
    browser.until("the guest", &format!("document.querySelector('#rows button')?.textContent === {name:?}"));
    explain(&mut browser, &name);
    browser.value("document.querySelector('[data-order=hold]').click()");
    browser.until("a question", &says("ask-text", &name));
    browser.key("Enter");
    browser.until("an order in the log", &says("log", &name));
    browser.picture("markup-desk");
    assert_eq!(browser.value("document.querySelectorAll('img, b, script:not([src])').length"), 0);
    let own = format!("http://{}/", server.host());
    assert!(
        browser.requests.len() > 10 && browser.requests.iter().all(|url| url.starts_with(&own)),
        "{:?}",
        browser.requests
    );
    assert_eq!(browser.value("window.violations.join()"), "", "the page keeps its own policy");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);

    // What a page could do if somebody got a script into it.
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = elsewhere.local_addr().unwrap();
    for attempt in [
        "document.body.innerHTML = '<b>x</b>'; 'done'".to_owned(),
        "new Function('return 1')(); 'done'".to_owned(),
        "const it = document.createElement('script'); it.textContent = 'window.ran = 1'; document.head.append(it); window.ran ? 'done' : 'no'".to_owned(),
        format!("fetch('http://{address}/').then(() => 'done')"),
        "fetch('/v1/history').then(it => it.ok ? 'done' : 'no')".to_owned(),
        "fetch('/metrics').then(it => it.ok ? 'done' : 'no')".to_owned(),
    ] {
        let result = browser.value(&format!("(async () => {{ try {{ return await (async () => {{ {} }})(); }} catch {{ return 'no'; }} }})()", returning(&attempt)));
        assert_eq!(result, "no", "{attempt}");
    }
}

/// The last expression of a script as its result.
fn returning(script: &str) -> String {
    match script.rsplit_once("; ") {
        Some((before, last)) => format!("{before}; return {last}"),
        None => format!("return {script}"),
    }
}

/// axe-core, where `make test-pages` has put it.
fn axe() -> Option<String> {
    let path = std::env::var_os("MEMTIDE_AXE").map(PathBuf::from);
    fs::read_to_string(path.unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("axe.min.js"))).ok()
}

/// What axe-core finds in the page as it is.
fn check(browser: &mut Browser, what: &str) {
    let found = browser.value(
        "axe.run(document, { resultTypes: ['violations', 'incomplete'] }).then(found => [...found.violations, ...found.incomplete.filter(it => it.id !== 'color-contrast')].map(it => `${it.id}: ${it.help}: ${it.nodes.map(node => node.html.slice(0, 200)).join(' | ')}`))",
    );
    assert_eq!(found, serde_json::json!([]), "{what}");
}

pub fn everybody_can_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(directory.path());
    let prefix = format!("read{}", std::process::id());
    let stage = Stage::new(directory.path()).unwrap();
    let _guests = guests(&stage, &prefix);
    let daemon = daemon(directory.path(), &prefix);
    let server = Server::start(&daemon.socket());
    let axe = axe();
    if axe.is_none() {
        skipped("whether axe-core finds anything: `make test-pages` installs it");
    }
    let name = format!("{prefix}-1");
    daemon.until("three guests", |status| status.guests.len() == 3);
    daemon.ask(&["hold", &name]);
    browser.open(&server.url, DESK);
    browser.until("a held guest", &says("rows", "held"));
    browser.until("events", &says("log", "the operator's order"));
    if let Some(axe) = &axe {
        browser.value(&format!("{axe}; 1"));
    }
    for (place, look) in [("desk", DESK), ("phone", PHONE)] {
        for is_dark in [false, true] {
            browser.look(Look { is_dark, ..look });
            let named = format!("{place}-{}", if is_dark { "dark" } else { "light" });
            browser.picture(&format!("page-{named}"));
            assert_eq!(
                browser.value("document.documentElement.scrollWidth > innerWidth"),
                false,
                "{named}: wider than the screen"
            );
            let see = |browser: &mut Browser, what: &str| {
                if axe.is_some() {
                    check(browser, &format!("{what}, {named}"));
                }
            };
            see(&mut browser, "the page");
            explain(&mut browser, &name);
            browser.picture(&format!("explain-{named}"));
            see(&mut browser, "an explanation");
            browser.value("document.querySelector('[data-order=release]').click()");
            browser.until("a question", &says("ask-text", "gets its limit"));
            see(&mut browser, "a question");
            browser.picture(&format!("ask-{named}"));
            browser.value(
                "document.getElementById('ask-no').click(); document.getElementById('why-close').click()",
            );
        }
    }
    // Sizes and spans in the same words as everywhere.
    for quantity in [
        0,
        1,
        1023,
        4096,
        1_048_575,
        1_048_576,
        10_733_223,
        104_857_600,
        105_381_888,
        1_073_741_823,
        2_201_170_739,
        10_737_418_239,
        10_737_418_240,
        109_951_162_777,
        1_099_511_627_776,
        7_700_000_000_001,
    ] {
        let word = browser.value(&format!("import('./words.js').then(it => it.bytes({quantity}))"));
        assert_eq!(word, memtide_model::Bytes::new(quantity).to_string());
    }
    for ms in [0, 999, 1_000, 4_250, 119_999, 120_000, 3_599_900, 7_200_000, 86_399_900] {
        let word = browser.value(&format!("import('./words.js').then(it => it.span({ms}))"));
        assert_eq!(word, memtide_model::Span::from_millis(ms).to_string());
    }
}

/// Cockpit's web server with this page, for the user of this test.
fn cockpit(directory: &Path, socket: &Path) -> (Mortal, String) {
    let Some(program) = COCKPIT.iter().find(|path| Path::new(path).exists()) else {
        skip("it needs Cockpit: the packages cockpit-ws and cockpit-bridge");
    };
    let page = directory.join("share/cockpit/memtide");
    fs::create_dir_all(&page).unwrap();
    for file in files::of(Way::Cockpit) {
        fs::write(page.join(file.name), file.text.replace(SOCKET, socket.to_str().unwrap())).unwrap();
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new(program);
    command.args([
        "--no-tls",
        "--address",
        "127.0.0.1",
        "--port",
        &port.to_string(),
        "--local-session",
        "cockpit-bridge",
    ]);
    let data = format!("{}:/usr/local/share:/usr/share", directory.join("share").display());
    command.env("XDG_DATA_DIRS", data).env("HOME", directory).env("XDG_RUNTIME_DIR", directory);
    let child = Mortal::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    until("Cockpit", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok(), String::new);
    (child, format!("http://127.0.0.1:{port}/cockpit/@localhost/memtide/index.html"))
}

pub fn in_cockpit() {
    let directory = tempfile::tempdir().unwrap();
    let mut browser = Browser::start(directory.path());
    let prefix = format!("cockpit{}", std::process::id());
    let stage = Stage::new(directory.path()).unwrap();
    let _guests = guests(&stage, &prefix);
    let daemon = daemon(directory.path(), &prefix);
    let (_cockpit, url) = cockpit(directory.path(), &daemon.socket());
    browser.open(&url, DESK);
    browser.until(
        "three guests, live",
        &format!("document.querySelectorAll('#rows tr').length === 3 && {}", says("link", "live")),
    );
    gives_orders(&mut browser, &daemon, &format!("{prefix}-2"));
    browser.until("the orders in the log", &says("log", "is managed again: the operator's order"));
    browser.picture("cockpit-desk");
    assert_eq!(browser.value("window.violations.join()"), "");
    daemon.end();
    browser.until("a lost daemon", &says("link", "asking again"));
}
