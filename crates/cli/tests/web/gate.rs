//! Who may ask, and what.

use std::fs;
use std::net::TcpStream;

use memtide_api::explain::Explanation;
use memtide_api::recent::LastMinutes;
use memtide_stand_in::qemu::process::Stage;

use crate::server::Server;
use crate::{daemon, guest};

pub fn strangers_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path(), &format!("gate{}", std::process::id()));
    let server = Server::start(&daemon.socket());
    let (host, bearer) = (server.host().to_owned(), format!("Bearer {}", server.token()));
    let (own, right) = (("Host", host.as_str()), ("Authorization", bearer.as_str()));
    let port = host.split_once(':').unwrap().1;
    let rebound = format!("rebound.example:{port}");
    let origin = format!("http://{host}");
    let other = format!("http://127.0.0.1:{}", port.parse::<u16>().unwrap() ^ 1);
    let wrong = format!("Bearer {}", "0".repeat(64));
    let history = "GET /v1/history";
    for (request, headers, status) in [
        (history, vec![own, right], 200),
        (history, vec![own, right, ("Origin", &origin)], 200),
        (history, vec![own], 401),
        (history, vec![own, ("Authorization", &wrong)], 401),
        (history, vec![own, ("Cookie", &bearer)], 401),
        ("GET /v1/history?token=x", vec![own], 401),
        (history, vec![("Host", &rebound), right], 403),
        (history, vec![("Host", "localhost"), right], 403),
        (history, vec![own, right, ("Origin", "https://example.org")], 403),
        (history, vec![own, right, ("Origin", &other)], 403),
        (history, vec![own, right, ("Sec-Fetch-Site", "cross-site")], 403),
        // An order from another site's form, and what a browser asks before another site may set a header.
        ("POST /v1/holds", vec![own, ("Origin", "https://example.org")], 403),
        (
            "OPTIONS /v1/holds",
            vec![own, ("Origin", "https://example.org"), ("Access-Control-Request-Headers", "authorization")],
            403,
        ),
        // The files hold no secret, but no other site may use them, and no rebound name leads to them.
        ("GET /", vec![own], 200),
        ("GET /page.js", vec![own, ("Sec-Fetch-Site", "cross-site")], 403),
        ("GET /", vec![("Host", &rebound)], 403),
        ("GET /../Cargo.toml", vec![own], 401),
        ("GET /manifest.json", vec![own, right], 404),
        // What the page does not need stays out of reach.
        ("GET /metrics", vec![own, right], 404),
        ("GET /v1/ksm", vec![own, right], 404),
        ("POST /v1/cgroup-reclaims", vec![own, right], 404),
    ] {
        let (given, answer) = server.answer(request, &headers, "");
        assert_eq!(given, status, "{request} {headers:?}: {answer}");
        let head = answer.to_lowercase();
        assert!(head.contains("content-security-policy: default-src 'none';"), "{answer}");
        assert!(!head.contains("access-control-allow") && !head.contains("set-cookie"), "{answer}");
    }
    let (status, answer) = server.trusted("POST /v1/holds", &" ".repeat(20_000));
    assert_eq!(status, 413, "{answer}");
    let (status, answer) = server.trusted("POST /v1/holds", "{\"hold\": \"hold\", \"guest\": \"nobody\"}");
    assert!(status == 404 && answer.contains("no such guest"), "the daemon answers: {answer}");
    let elsewhere = format!("127.0.0.2:{port}");
    assert!(TcpStream::connect(elsewhere).is_err(), "no other address of this machine");
}

pub fn the_server_has_no_rights() {
    let directory = tempfile::tempdir().unwrap();
    let prefix = format!("rights{}", std::process::id());
    let first = daemon(directory.path(), &prefix);
    let server = Server::start(&first.socket());
    // It has answered once, so it is confined by now.
    assert_eq!(server.trusted("GET /v1/history", "").0, 200);
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    for line in ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}\n{status}");
    }
    first.end();
    let (status, answer) = server.trusted("GET /v1/history", "");
    assert!(status == 502 && answer.contains("no daemon answers"), "{status} {answer}");
    let _second = daemon(directory.path(), &prefix);
    assert_eq!(server.trusted("GET /v1/history", "").0, 200, "a new daemon is found");
}

pub fn history_and_explanations() {
    let directory = tempfile::tempdir().unwrap();
    let prefix = format!("past{}", std::process::id());
    let stage = Stage::new(directory.path()).unwrap();
    let name = format!("{prefix}-1");
    let _guest = guest(&stage, &name);
    let daemon = daemon(directory.path(), &prefix);
    daemon.until("a guest", |status| status.guests.len() == 1);
    daemon.ask(&["hold", &name]);
    let server = Server::start(&daemon.socket());
    let body = |request: &str| {
        let (status, answer) = server.trusted(request, "");
        assert_eq!(status, 200, "{answer}");
        let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        // In chunks or whole.
        body[body.find('{').unwrap()..=body.rfind('}').unwrap()].to_owned()
    };
    let past: LastMinutes = serde_json::from_str(&body("GET /v1/history")).unwrap();
    assert!(past.points.windows(2).all(|two| two[0].at < two[1].at) && !past.forgot);
    assert!(
        past.events.iter().any(|event| event.guest.as_deref() == Some(&name)
            && event.says == "is left alone: the operator's order"),
        "{past:#?}"
    );
    let status = daemon.status();
    assert_eq!(past.points[0].capacity, status.host.capacity);
    let later = format!("GET /v1/history?since={}", past.now.as_millis());
    let later: LastMinutes = serde_json::from_str(&body(&later)).unwrap();
    assert!(
        later.points.iter().all(|point| point.at > past.now)
            && later.events.iter().all(|event| event.at > past.now)
    );
    let told: Explanation =
        serde_json::from_str(&body(&format!("GET /v1/guests/{name}/explanation"))).unwrap();
    assert!(told.sections[0].title.starts_with(&format!("{name}: held")), "{told:#?}");
    let text = daemon.ask(&["explain", &name]);
    for section in &told.sections {
        assert!(text.contains(&section.title), "{}\n{text}", section.title);
    }
}
