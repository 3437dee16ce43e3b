//! The proxy of a request, for messages. An error that names only the origin misleads while the
//! proxy is down.
//!
//! The client takes its proxy from the process's environment. The same rules are applied here.

use hyper_util::client::proxy::matcher::Matcher;

/// The proxy of requests to `address`, without its credentials.
pub(crate) fn of(address: &str) -> Option<String> {
    named(&Matcher::from_env(), address)
}

fn named(matcher: &Matcher, address: &str) -> Option<String> {
    let proxy = matcher.intercept(&address.parse().ok()?)?;
    let uri = proxy.uri();
    let port = uri.port().map(|port| format!(":{port}")).unwrap_or_default();
    Some(format!("{}://{}{port}", uri.scheme_str().unwrap_or("http"), uri.host()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: BUCKET-7
    fn proxy_is_named_without_its_password() {
        let matcher =
            Matcher::builder().https("http://me:hush@proxy.example.org:3128").no("inside.example.org");
        let matcher = matcher.build();
        let name = |address| named(&matcher, address);
        assert_eq!(name("https://s3.eu-west-1.amazonaws.com").unwrap(), "http://proxy.example.org:3128");
        assert_eq!(name("https://inside.example.org"), None);
        assert_eq!(name("http://s3.eu-west-1.amazonaws.com"), None);
    }
}
