//! Who may ask: the page itself, for a person who has its address.
//!
//! **Problem.** Every program of this machine can connect to a loopback port, and every web site can make a browser send requests to one. With
//! *DNS rebinding*, a site even lets its own name lead to 127.0.0.1, so that the browser takes its requests for requests of the same site.
//!
//! **Rule.** Each request must name the bound address as its host: a site that rebinds its name sends that name. A request that a browser says comes from
//! another origin is refused. A request about the daemon must carry the token in its `Authorization` header, which no other origin can set without
//! being asked first, and nobody is told yes. The files of the page need no token: they are the same for everybody, and hold no secret.

use std::net::SocketAddr;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};

use crate::token::Token;

/// What browsers say about the origin of a request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Decides about requests.
#[derive(Clone)]
pub struct Gate {
    host: String,
    origin: String,
    token: Token,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its host is another one than the bound address.
    #[error(
        "this address serves memtide's page under its own number only, such as 127.0.0.1, and under no name"
    )]
    Host,
    /// It comes from another site's page.
    #[error("requests of other sites are refused")]
    Origin,
    /// It has no token, or a wrong one.
    #[error("the token is missing or wrong: open the address that `memtide web` has printed")]
    Token,
}

impl Gate {
    /// The gate of a server at this address.
    #[must_use]
    pub fn new(address: SocketAddr, token: Token) -> Self {
        Self { host: address.to_string(), origin: format!("http://{address}"), token }
    }

    /// Whether the request may have the files of the page.
    ///
    /// # Errors
    /// Why not.
    pub fn admits(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let only = |name: HeaderName| {
            let mut values = headers.get_all(name).iter();
            values.next().filter(|_| values.next().is_none())?.to_str().ok()
        };
        if only(HOST) != Some(&self.host) {
            return Err(Refusal::Host);
        }
        let from_elsewhere = headers.contains_key(ORIGIN) && only(ORIGIN) != Some(&self.origin);
        // "none": somebody typed the address, or followed a link outside of any page.
        let of_another_site =
            headers.contains_key(FETCH_SITE) && !matches!(only(FETCH_SITE), Some("same-origin" | "none"));
        if from_elsewhere || of_another_site { Err(Refusal::Origin) } else { Ok(()) }
    }

    /// Whether the request may also ask the daemon.
    ///
    /// # Errors
    /// Why not.
    pub fn trusts(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        self.admits(headers)?;
        let said = headers.get(AUTHORIZATION).and_then(|said| said.to_str().ok()?.strip_prefix("Bearer "));
        if said.is_some_and(|said| self.token.is(said)) { Ok(()) } else { Err(Refusal::Token) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn other_hosts_other_sites_and_requests_without_the_token_are_refused() {
        let token = Token::random().unwrap();
        let gate = Gate::new("127.0.0.1:9275".parse().unwrap(), token.clone());
        let host = ("host", "127.0.0.1:9275");
        let bearer = format!("Bearer {}", token.reveal());
        let right = ("authorization", bearer.as_str());
        for (pairs, admits, trusts) in [
            (vec![host], Ok(()), Err(Refusal::Token)),
            (vec![host, right], Ok(()), Ok(())),
            (vec![host, right, ("origin", "http://127.0.0.1:9275")], Ok(()), Ok(())),
            (vec![host, right, ("sec-fetch-site", "same-origin")], Ok(()), Ok(())),
            (vec![host, ("sec-fetch-site", "none")], Ok(()), Err(Refusal::Token)),
            (vec![host, ("authorization", "Bearer ")], Ok(()), Err(Refusal::Token)),
            (vec![host, ("authorization", token.reveal())], Ok(()), Err(Refusal::Token)),
            // A name that leads here, another port, no host.
            (vec![("host", "rebound.example:9275"), right], Err(Refusal::Host), Err(Refusal::Host)),
            (vec![("host", "localhost:9275"), right], Err(Refusal::Host), Err(Refusal::Host)),
            (vec![("host", "127.0.0.1"), right], Err(Refusal::Host), Err(Refusal::Host)),
            (vec![("host", "127.0.0.1:9276"), right], Err(Refusal::Host), Err(Refusal::Host)),
            (vec![right], Err(Refusal::Host), Err(Refusal::Host)),
            // Other sites, also those on another port of this machine.
            (
                vec![host, right, ("origin", "http://127.0.0.1:8000")],
                Err(Refusal::Origin),
                Err(Refusal::Origin),
            ),
            (vec![host, right, ("origin", "null")], Err(Refusal::Origin), Err(Refusal::Origin)),
            (vec![host, right, ("sec-fetch-site", "cross-site")], Err(Refusal::Origin), Err(Refusal::Origin)),
            (vec![host, right, ("sec-fetch-site", "same-site")], Err(Refusal::Origin), Err(Refusal::Origin)),
        ] {
            let headers = headers(&pairs);
            assert_eq!((gate.admits(&headers), gate.trusts(&headers)), (admits, trusts), "{pairs:?}");
        }
        let mut twice = headers(&[host, right]);
        twice.append(HOST, "rebound.example".parse().unwrap());
        assert_eq!(gate.trusts(&twice), Err(Refusal::Host));
    }
}
