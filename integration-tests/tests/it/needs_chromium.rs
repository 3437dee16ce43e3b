//! The agent's page in headless Chromium, with real jobs.
//!
//! `FOREREAD_TEST_CHROMIUM` is its program. Pictures of the page are kept in `target/tmp`.

mod browser;

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use foreread_tier_testing::until;

use crate::agent_http::ShownAgent;
use crate::agent_node::Running;
use crate::control::Cluster;
use crate::support::{needed, run};
use browser::Browser;

/// The name of a job that a page must not interpret.
const HOSTILE: &str = "<img src=x onerror=document.title='hostile'>";

/// Whether the page shows the present.
const IS_LIVE: &str = "document.body?.dataset.connection === 'live'";

fn browser() -> Browser {
    let program = needed("FOREREAD_TEST_CHROMIUM");
    Browser::start(program.as_ref())
}

#[test]
#[ignore = "needs Chromium"]
// semantics: AGENT-21
fn page_shows_jobs_and_interprets_no_name() {
    let mut browser = browser();
    let agent = ShownAgent::start();
    let _jobs = [agent.endless_job(HOSTILE), agent.endless_job("/usr/bin/python3")];
    browser.open(&agent.link());
    browser.until(IS_LIVE);
    // The link was exchanged for a cookie that scripts do not see.
    assert_eq!(browser.evaluate("location.href"), format!("http://{}/", agent.address()));
    assert_eq!(browser.evaluate("document.cookie"), "");
    browser.until("document.querySelectorAll('#jobs tbody tr').length === 2");
    let names = browser.evaluate(
        "[...document.querySelectorAll('#jobs tbody td:first-child .text')].map(it => it.textContent).sort()",
    );
    assert_eq!(names, serde_json::json!([HOSTILE, "python3"]));
    let url = agent.samples.path().to_str().unwrap();
    assert_eq!(browser.evaluate("document.querySelector('#datasets .text').textContent"), url);
    // As many plots as figures, each with its canvas and with a line for each job.
    assert_eq!(browser.evaluate("document.querySelectorAll('figure .uplot canvas').length"), 3);
    browser.until("document.querySelectorAll('#plot-stalled .legend li').length === 2");
    browser.until("document.getElementById('job-count').textContent === '2'");
    browser.until("parseFloat(document.getElementById('held').textContent) > 0");
    // Neither an element nor a script of the name exists.
    assert_eq!(browser.evaluate("document.images.length"), 0);
    assert!(browser.evaluate("document.title").as_str().unwrap().ends_with("foreread agent"));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
#[ignore = "needs Chromium"]
// semantics: CONTROL-7
fn page_of_a_cluster_shows_its_nodes_and_changes() {
    let mut browser = browser();
    let mut cluster = Cluster::new("[cluster.limit]\n's3://train' = '4MB/s'\n");
    cluster.start_agent("n1", "alice", 100);
    cluster.start_agent(HOSTILE, "bob", 100);
    let _job = Running::start(cluster.job("n1", "search-1", &["--epochs", "1000"]));
    run(&mut cluster.control(&["set", "user-weight@alice=2"])).ok();
    browser.open(&cluster.link());
    browser.until(IS_LIVE);
    browser.until("document.querySelectorAll('#nodes tbody tr').length === 2");
    let names =
        "[...document.querySelectorAll('#nodes tbody tr td:first-child .text')].map(it => it.textContent)";
    assert_eq!(browser.evaluate(names), serde_json::json!(["alice@n1", format!("bob@{HOSTILE}")]));
    browser.until("document.querySelector('#jobs tbody').textContent.includes('alice@n1')");
    browser.until("document.getElementById('changes').textContent.includes('user-weight@alice=2')");
    assert!(browser.evaluate("document.title").as_str().unwrap().ends_with("foreread control"));
    assert_eq!(browser.evaluate("document.images.length"), 0);
    for (width, name) in [(1280, "wide"), (400, "narrow")] {
        browser.set_width(width);
        browser.until("document.querySelector('.uplot').clientWidth <= document.documentElement.clientWidth");
        assert_eq!(browser.evaluate("document.documentElement.scrollWidth"), width);
        let pictures = Path::new(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(pictures).unwrap();
        fs::write(pictures.join(format!("control-page-{name}.png")), browser.picture()).unwrap();
    }
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
#[ignore = "needs Chromium"]
fn page_fits_wide_and_narrow_windows_in_light_and_dark() {
    let mut browser = browser();
    let agent = ShownAgent::start();
    let _job = agent.endless_job(&"a-long-name".repeat(20));
    browser.open(&agent.link());
    browser.until("document.querySelectorAll('#jobs tbody tr').length === 1");
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(pictures).unwrap();
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.set_scheme(scheme);
        for width in [1280, 400] {
            browser.set_width(width);
            browser.until(
                "document.querySelector('.uplot').clientWidth <= document.documentElement.clientWidth",
            );
            assert_eq!(browser.evaluate("document.documentElement.scrollWidth"), width, "{scheme}");
            let sizes = "[...document.querySelectorAll('td, p, li')].filter(it => it.offsetWidth) \
                         .map(it => parseFloat(getComputedStyle(it).fontSize))";
            let sizes = browser.evaluate(sizes);
            let is_readable = |size: &serde_json::Value| size.as_f64().unwrap() >= 12.0;
            assert!(sizes.as_array().unwrap().iter().all(is_readable), "{sizes}");
            fs::write(pictures.join(format!("agent-page-{scheme}-{width}.png")), browser.picture()).unwrap();
        }
        grounds.push(browser.evaluate("getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(grounds[0], grounds[1]);
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
#[ignore = "needs Chromium"]
fn lost_connection_is_shown_and_made_again() {
    let mut browser = browser();
    let mut agent = ShownAgent::start();
    browser.open(&agent.link());
    browser.until(IS_LIVE);
    let connection = "document.getElementById('connection').textContent";
    agent.signal(Signal::STOP);
    browser.until("document.body.dataset.connection === 'lost'");
    let text = browser.evaluate(connection);
    assert!(text.as_str().unwrap().starts_with("connection lost at "), "{text}");
    agent.signal(Signal::CONT);
    browser.until(IS_LIVE);
    // The next agent has another token.
    let address = agent.address().to_string();
    agent.signal(Signal::KILL);
    until("it is gone", || run(&mut agent.agent(&["status"])).code == Some(1));
    browser.until("document.body.dataset.connection === 'lost'");
    agent.restart(&address);
    browser.until(&format!("{connection}.includes('foreread agent status')"));
    browser.open(&agent.link());
    browser.until(IS_LIVE);
}
