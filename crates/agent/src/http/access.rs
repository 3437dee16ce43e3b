//! The right to read: the socket's owner has it, and the holder of a token.
//!
//! # Decisions and price
//!
//! * *A loopback port takes a token*, because every user of the node can connect. It is random for
//!   each start of an agent. Programs send it as `Authorization: Bearer`. A browser opens
//!   `/?token=...` once and gets a cookie, so that the token leaves the address bar. The price:
//!   browsers send a cookie of a host to all of its ports. So a user who opens a page that another
//!   user serves on this node's loopback shows the cookie to that user.
//! * *The `Host` header must name this machine's loopback*, on both sockets. A web page whose name
//!   resolves to 127.0.0.1 (DNS rebinding) is refused so. Any port is accepted, because
//!   `ssh -L` forwards from another one.
//! * *Refusals are empty and end the connection.* A client without the token learns nothing, and
//!   holds no connection.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ALLOW, AUTHORIZATION, CONNECTION, COOKIE, HOST, LOCATION, SET_COOKIE, WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq;

/// Random bytes in a token.
const TOKEN_BYTES: usize = 32;

/// A secret of one run of an agent, as hexadecimal digits.
pub(super) struct AccessToken(String);

impl std::fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AccessToken")
    }
}

impl AccessToken {
    /// A new one.
    pub(super) fn random() -> io::Result<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Whether they are equal, in a time that does not depend on where they differ.
    fn is(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).into()
    }
}

/// The proof that a socket requires of its clients.
#[derive(Debug)]
pub(super) enum HttpAccess {
    /// Nothing: the socket's mode lets only its owner connect.
    Owner,
    /// A token.
    Token {
        token: AccessToken,
        /// The name of the cookie. Agents of one machine have different ones.
        cookie: String,
    },
}

impl HttpAccess {
    pub(super) fn token(token: AccessToken, port: u16) -> Self {
        Self::Token { token, cookie: format!("foreread-agent-{port}") }
    }

    /// The answer to a request that goes no further.
    fn intercept(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
        if !names_loopback(uri, headers) {
            return Some(refusal(StatusCode::FORBIDDEN, None));
        }
        if let Self::Token { token, cookie } = self {
            let is_read = method == Method::GET || method == Method::HEAD;
            if let Some(given) = token_of_link(uri).filter(|_| is_read) {
                return Some(match token.is(given) {
                    true => redirect(&format!("{cookie}={given}; Path=/; HttpOnly; SameSite=Strict")),
                    false => unauthorized(),
                });
            }
            if !bearer(headers).chain(cookies(headers, cookie)).any(|given| token.is(given)) {
                return Some(unauthorized());
            }
        }
        if method != Method::GET && method != Method::HEAD {
            let allow = (ALLOW, HeaderValue::from_static("GET, HEAD"));
            return Some(refusal(StatusCode::METHOD_NOT_ALLOWED, Some(allow)));
        }
        None
    }
}

/// Lets a request pass if its client may read.
pub(super) async fn check(State(access): State<Arc<HttpAccess>>, request: Request, next: Next) -> Response {
    match access.intercept(request.method(), request.uri(), request.headers()) {
        Some(answer) => answer,
        None => next.run(request).await,
    }
}

/// The token of `/?token=...`.
fn token_of_link(uri: &Uri) -> Option<&str> {
    let query = uri.query().filter(|_| uri.path() == "/")?;
    query.split('&').find_map(|pair| pair.strip_prefix("token="))
}

fn bearer(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers.get_all(AUTHORIZATION).into_iter().filter_map(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    })
}

fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    let texts = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(found, _)| *found == name).map(|(_, value)| value)
}

/// Whether the request is for this machine's loopback, by its one `Host` header and its address.
fn names_loopback(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).into_iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let host = host.to_str().is_ok_and(is_loopback);
    host && uri.authority().is_none_or(|authority| is_loopback(authority.as_str()))
}

/// Whether an authority is a name of loopback, with or without a port.
fn is_loopback(authority: &str) -> bool {
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|name| {
        let Some((host, rest)) = authority.split_at_checked(name.len()) else { return false };
        let is_port = |port: &str| port.parse::<u16>().is_ok();
        host.eq_ignore_ascii_case(name) && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
    })
}

/// An empty answer, after which the connection ends.
fn refusal(status: StatusCode, header: Option<(HeaderName, HeaderValue)>) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response.headers_mut().extend(header);
    response
}

fn unauthorized() -> Response {
    let scheme = (WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    refusal(StatusCode::UNAUTHORIZED, Some(scheme))
}

/// Gives a browser the cookie, and has it open the page without the token.
fn redirect(cookie: &str) -> Response {
    let Ok(cookie) = HeaderValue::from_str(cookie) else { return unauthorized() };
    let mut response = refusal(StatusCode::SEE_OTHER, Some((SET_COOKIE, cookie)));
    response.headers_mut().insert(LOCATION, HeaderValue::from_static("/"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 9464;

    fn access(token: &str) -> HttpAccess {
        HttpAccess::token(AccessToken(token.to_owned()), PORT)
    }

    fn status(access: &HttpAccess, method: Method, uri: &str, headers: &[(HeaderName, &str)]) -> u16 {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap()));
        let answer = access.intercept(&method, &uri.parse().unwrap(), &headers.collect());
        if let Some(answer) = &answer {
            assert_eq!(answer.headers()[CONNECTION], "close");
        }
        answer.map_or(200, |answer| answer.status().as_u16())
    }

    #[test]
    // semantics: AGENT-20
    fn token_is_taken_as_header_cookie_or_link_of_the_page() {
        let access = access("5ec3e7");
        let host = (HOST, "127.0.0.1:9464");
        let get = |uri, more: &[(HeaderName, &'static str)]| {
            status(&access, Method::GET, uri, &[std::slice::from_ref(&host), more].concat())
        };
        for path in ["/", "/metrics", "/api/v1/status", "/nothing"] {
            assert_eq!(get(path, &[]), 401, "{path}");
            assert_eq!(get(path, &[(AUTHORIZATION, "Bearer 5ec3e7")]), 200, "{path}");
            assert_eq!(get(path, &[(AUTHORIZATION, "bearer 5ec3e7")]), 200, "{path}");
            assert_eq!(get(path, &[(COOKIE, "a=b; foreread-agent-9464=5ec3e7; c=d")]), 200, "{path}");
        }
        for wrong in ["Bearer 5ec3e8", "Bearer 5ec3e", "Bearer 5ec3e77", "Bearer ", "Basic 5ec3e7", "5ec3e7"]
        {
            assert_eq!(get("/", &[(AUTHORIZATION, wrong)]), 401, "{wrong}");
        }
        assert_eq!(get("/", &[(COOKIE, "foreread-agent-9465=5ec3e7")]), 401);
        assert_eq!(get("/?token=5ec3e7", &[]), 303);
        assert_eq!(get("/?a=b&token=5ec3e7", &[]), 303);
        assert_eq!(get("/?token=5ec3e8", &[]), 401);
        // Only the page's link has it.
        assert_eq!(get("/metrics?token=5ec3e7", &[]), 401);
    }

    #[test]
    // semantics: AGENT-20
    fn link_is_exchanged_for_a_cookie_of_this_site_alone() {
        let headers = [(HOST, "localhost:9464".parse().unwrap())].into_iter().collect();
        let uri = "/?token=5ec3e7".parse().unwrap();
        let answer = access("5ec3e7").intercept(&Method::GET, &uri, &headers).unwrap();
        assert_eq!(answer.headers()[LOCATION], "/");
        let cookie = answer.headers()[SET_COOKIE].to_str().unwrap();
        assert_eq!(cookie, "foreread-agent-9464=5ec3e7; Path=/; HttpOnly; SameSite=Strict");
    }

    #[test]
    // semantics: AGENT-20
    fn hosts_other_than_loopback_are_refused_on_both_sockets() {
        let bearer = (AUTHORIZATION, "Bearer 5ec3e7");
        for access in [&access("5ec3e7"), &HttpAccess::Owner] {
            let of = |host: &'static str| status(access, Method::GET, "/", &[(HOST, host), bearer.clone()]);
            for host in ["127.0.0.1", "127.0.0.1:80", "localhost:1", "LOCALHOST", "[::1]:9464", "[::1]"] {
                assert_eq!(of(host), 200, "{host}");
            }
            let others =
                ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1", ""];
            for host in others.into_iter().chain(["127.0.0.1:", "127.0.0.1:80:80", "[::2]", "user@localhost"])
            {
                assert_eq!(of(host), 403, "{host}");
            }
            assert_eq!(status(access, Method::GET, "/", std::slice::from_ref(&bearer)), 403);
            let twice = [(HOST, "localhost"), (HOST, "evil.example"), bearer.clone()];
            assert_eq!(status(access, Method::GET, "/", &twice), 403);
            let address = "http://evil.example/";
            assert_eq!(status(access, Method::GET, address, &[(HOST, "localhost"), bearer.clone()]), 403);
        }
    }

    #[test]
    // semantics: AGENT-21
    fn only_reading_methods_are_answered() {
        let host = (HOST, "localhost");
        let bearer = (AUTHORIZATION, "Bearer 5ec3e7");
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::PATCH] {
            let headers = [host.clone(), bearer.clone()];
            assert_eq!(status(&access("5ec3e7"), method.clone(), "/", &headers), 405, "{method}");
            assert_eq!(status(&HttpAccess::Owner, method.clone(), "/", &headers), 405, "{method}");
            // Without the token, not even that.
            assert_eq!(status(&access("5ec3e7"), method.clone(), "/", &headers[..1]), 401, "{method}");
            assert_eq!(status(&access("5ec3e7"), method, "/?token=5ec3e7", &headers[..1]), 401);
        }
        assert_eq!(status(&HttpAccess::Owner, Method::HEAD, "/", &[host]), 200);
    }

    #[test]
    fn tokens_are_random_and_not_shown() {
        let (one, two) = (AccessToken::random().unwrap(), AccessToken::random().unwrap());
        assert_eq!(one.text().len(), 2 * TOKEN_BYTES);
        assert_ne!(one.text(), two.text());
        assert!(!format!("{one:?}").contains(one.text()));
    }
}
