//! The page's files, and the headers of all answers.
//!
//! Decision: no framework, no build step, nothing from another host. The files are in the program,
//! as they are in this directory. Plots are uPlot's, under the MIT licence, whose text is in the
//! file that is served. Texts from jobs reach the page as text nodes alone, and the policy below
//! runs no script that is not one of these files. The price is a page that is written by hand.

use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

/// Files of this program only, no frames, no forms.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The headers of every answer, errors included.
const HEADERS: [(HeaderName, &str); 5] = [
    // The page is of this moment, and private.
    (CACHE_CONTROL, "no-store"),
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    // The first address has the token.
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// A file of the page: its path, media type and text.
pub(super) struct PageFile {
    pub(super) path: &'static str,
    pub(super) media_type: &'static str,
    pub(super) text: &'static str,
}

/// All of them.
pub(super) const FILES: [PageFile; 6] = [
    PageFile { path: "/", media_type: "text/html; charset=utf-8", text: include_str!("assets/page.html") },
    PageFile {
        path: "/page.css",
        media_type: "text/css; charset=utf-8",
        text: include_str!("assets/page.css"),
    },
    PageFile {
        path: "/page.js",
        media_type: "text/javascript; charset=utf-8",
        text: include_str!("assets/page.js"),
    },
    PageFile { path: "/icon.svg", media_type: "image/svg+xml", text: include_str!("assets/icon.svg") },
    PageFile {
        path: "/uPlot.css",
        media_type: "text/css; charset=utf-8",
        text: concat!(
            "/*\n",
            include_str!("assets/uPlot.LICENSE"),
            "\n*/\n",
            include_str!("assets/uPlot.min.css")
        ),
    },
    PageFile {
        path: "/uPlot.js",
        media_type: "text/javascript; charset=utf-8",
        text: concat!(
            "/*\n",
            include_str!("assets/uPlot.LICENSE"),
            "\n*/\n",
            include_str!("assets/uPlot.iife.min.js")
        ),
    },
];

/// An answer of one text.
pub(super) fn answer(media_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Adds the headers of every answer.
pub(super) async fn with_headers(mut response: Response) -> Response {
    let headers = HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: AGENT-21
    fn page_loads_nothing_from_elsewhere_and_runs_no_inline_script() {
        let page = FILES[0].text;
        for part in page.split(['<', '>']).skip(1).step_by(2) {
            assert!(!part.contains("http") && !part.contains(" on") && !part.contains("style="), "{part}");
        }
        assert_eq!(page.matches("<script").count(), page.matches("<script src=\"/").count());
        for (_, link) in page.match_indices("=\"/").map(|(at, _)| (at, &page[at + 2..])) {
            let path = link.split('"').next().unwrap_or_default();
            let known = FILES.iter().any(|file| file.path == path) || path.starts_with("/metrics");
            assert!(known || path.starts_with("/api/v1/"), "{path}");
        }
        let script = FILES[2].text;
        for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "://"] {
            assert!(!script.contains(way), "{way}");
        }
    }

    #[test]
    fn licence_of_the_plots_is_served_with_them() {
        for file in &FILES[4..] {
            assert!(file.text.contains("Permission is hereby granted"), "{}", file.path);
            assert!(file.text.contains("Leon Sorokin"), "{}", file.path);
        }
    }
}
