//! What the page may ask of the daemon. Everything else that the daemon answers, such as its metrics or a reclaim from a cgroup, stays out of reach.

use hyper::Method;

/// Whether the page may send this request.
#[must_use]
pub fn are_open(method: &Method, path: &str) -> bool {
    match *method {
        Method::GET => matches!(path, "/v1/events" | "/v1/history") || is_explanation(path),
        Method::POST => matches!(path, "/v1/holds" | "/v1/reclaims"),
        _ => false,
    }
}

/// `/v1/guests/NAME/explanation`, where the name is one segment.
fn is_explanation(path: &str) -> bool {
    let name = path.strip_prefix("/v1/guests/").and_then(|rest| rest.strip_suffix("/explanation"));
    name.is_some_and(|name| !name.is_empty() && !name.contains('/') && name != "." && name != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_requests_of_the_page_pass() {
        for (method, path, open) in [
            (Method::GET, "/v1/events", true),
            (Method::GET, "/v1/history", true),
            (Method::GET, "/v1/guests/web%2F1/explanation", true),
            (Method::POST, "/v1/holds", true),
            (Method::POST, "/v1/reclaims", true),
            (Method::GET, "/v1/holds", false),
            (Method::POST, "/v1/cgroup-reclaims", false),
            (Method::GET, "/v1/ksm", false),
            (Method::GET, "/metrics", false),
            (Method::GET, "/v1/guests/web1", false),
            (Method::GET, "/v1/guests//explanation", false),
            (Method::GET, "/v1/guests/../explanation", false),
            (Method::GET, "/v1/guests/../../metrics", false),
            (Method::DELETE, "/v1/events", false),
            (Method::CONNECT, "/v1/events", false),
        ] {
            assert_eq!(are_open(&method, path), open, "{method} {path}");
        }
    }
}
