//! What the broker shows of its purgatories: the figures, and the page.

use crate::browser::Browser;
use crate::http;
use crate::process::{PATIENCE, command};
use crate::requests::{Fetch, create_topic, produce};
use crate::wire::Connection;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A broker that shows its metrics. Killed when dropped.
struct Shown {
    child: Child,
    broker: SocketAddr,
    metrics: SocketAddr,
}

impl Shown {
    fn start(arguments: &[&str]) -> Self {
        let mut child = command()
            .args(arguments)
            .args(["--metrics", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the broker");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut next = || lines.next().expect("a line").expect("read a line");
        let (first, second) = (next(), next());
        // What it prints later is read, so that it can go on printing.
        thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let address = |line: &str, before: &str| {
            let found = line.strip_prefix(before).and_then(|rest| {
                let address = rest.split(';').next()?;
                address.parse().ok()
            });
            found.unwrap_or_else(|| panic!("no address in {line:?}"))
        };
        let says = if arguments[0] == "serve" {
            "listening on "
        } else {
            "broker on "
        };
        Self {
            child,
            broker: address(&first, says),
            metrics: address(&second, "metrics on http://"),
        }
    }

    fn get(&self, path: &str) -> String {
        let (status, body) = http::ask(self.metrics, "GET", path, "");
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// The figures of a purgatory, as Prometheus would read them.
    fn figures(&self, purgatory: &str) -> BTreeMap<String, f64> {
        let label = format!("{{purgatory=\"{purgatory}\"}} ");
        let text = self.get("/metrics");
        text.lines()
            .filter_map(|line| line.split_once(&label))
            .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
            .collect()
    }

    fn wait_for(&self, purgatory: &str, figure: &str, value: f64) {
        let begun = Instant::now();
        while self.figures(purgatory)[figure] != value {
            let figures = self.figures(purgatory);
            assert!(
                begun.elapsed() < PATIENCE,
                "{figure} is not {value}: {figures:#?}"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn oldest(&self) -> Value {
        serde_json::from_str(&self.get("/oldest")).expect("JSON")
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_figures_say_what_the_purgatories_did() {
    let broker = Shown::start(&["serve", "--listen", "127.0.0.1:0"]);
    let mut producer = Connection::open(broker.broker);
    let mut consumers = [(); 2].map(|()| Connection::open(broker.broker));
    create_topic(&mut producer, "t", 3);

    let fetch = Fetch::new("t", 60_000).of_partitions(3);
    let sent = consumers.each_mut().map(|consumer| fetch.send(consumer));
    broker.wait_for("fetch", "purgatory_num_delayed_operations", 2.0);
    broker.wait_for("fetch", "purgatory_size", 6.0);
    let oldest = broker.oldest();
    let parked = oldest["fetch"].as_array().expect("a list");
    assert_eq!(parked.len(), 2);
    for operation in parked {
        assert_eq!(operation["keys"], serde_json::json!(["t-0", "t-1", "t-2"]));
        let time = |name: &str| operation[name].as_f64().expect("seconds");
        let whole = time("age") + time("remaining");
        assert!((59.9..60.1).contains(&whole), "{operation}");
    }

    produce(&mut producer, "t", b"value");
    for (consumer, sent) in consumers.iter_mut().zip(sent) {
        fetch.receive(consumer, sent);
    }
    broker.wait_for("fetch", "purgatory_num_delayed_operations", 0.0);
    let expired = Fetch::new("t", 20).at(1).run(&mut consumers[0]);
    assert!(expired[0].records.is_empty());
    broker.wait_for("fetch", "purgatory_expired_total", 1.0);
    let figures = broker.figures("fetch");
    let expected = [
        ("purgatory_size", 0.0),
        ("purgatory_completed_total", 2.0),
        ("purgatory_cancelled_total", 0.0),
        ("purgatory_rejected_total", 0.0),
        ("purgatory_panicked_total", 0.0),
        ("purgatory_missed_checks_total", 0.0),
        ("purgatory_park_time_seconds_count", 3.0),
        ("purgatory_lateness_seconds_count", 1.0),
    ];
    for (name, value) in expected {
        assert_eq!(figures[name], value, "{name}");
    }
    assert!(figures["purgatory_park_time_seconds_sum"] >= 0.02);
    let begun = Instant::now();
    while broker.oldest()["fetch"] != serde_json::json!([]) {
        assert!(begun.elapsed() < PATIENCE, "what ended is still shown");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The number in the tile of a purgatory.
fn tile(browser: &Browser, purgatory: &str, figure: &str) -> f64 {
    let script =
        format!("return document.querySelector('#{purgatory} [data-figure={figure}]').textContent");
    let text = browser.run(&script);
    let text = text.as_str().expect("a text").replace(',', "");
    text.parse().unwrap_or_else(|_| panic!("{figure}: {text}"))
}

/// The demonstration's load: dozens of parked fetches, hundreds of endings a second.
#[test]
fn the_page_draws_a_busy_broker() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let broker = Shown::start(&["demo", "--seconds", "600"]);
    // Long enough for a past.
    let begun = Instant::now();
    while serde_json::from_str::<Vec<Value>>(&broker.get("/history"))
        .expect("a list")
        .len()
        < 3
    {
        assert!(begun.elapsed() < PATIENCE, "no history");
        thread::sleep(Duration::from_millis(100));
    }
    browser.open(&format!("http://{}/", broker.metrics));
    // The charts begin with what was before the page was opened.
    let past = "cards.get('fetch').samples.filter(sample => sample.at < 0).length";
    browser.wait_until("return document.documentElement.dataset.state === 'live'");
    let readings = browser.run(&format!("return {past}"));
    assert!(
        readings.as_u64().is_some_and(|readings| readings >= 2),
        "{readings}"
    );
    let rows = "document.querySelectorAll('#fetch tbody tr').length";
    let bars = "[...document.querySelectorAll('#fetch .bars div')].filter(bar => bar.offsetHeight > 1).length";
    browser.wait_until(&format!("return {rows} === 8 && {bars} > 2"));
    // Several readings make a line.
    let points =
        "document.querySelector('#fetch path.completed').getAttribute('d').split('L').length";
    browser.wait_until(&format!("return {points} > 4"));
    browser.wait_until(
        "return document.querySelector('#fetch tbody').innerText.includes('idle-') \
         && document.documentElement.dataset.state === 'live'",
    );
    let hidden = "return document.querySelector('#fetch table').hidden";
    assert_eq!(browser.run(hidden), serde_json::json!(false));
    let parked = tile(&browser, "fetch", "parked");
    assert!((30.0..=68.0).contains(&parked), "{parked} parked");
    for (purgatory, figure, least) in [
        ("fetch", "watched", 30.0),
        ("fetch", "completed", 50.0),
        ("fetch", "expired", 20.0),
        ("produce", "completed", 50.0),
    ] {
        let found = tile(&browser, purgatory, figure);
        assert!(found >= least, "{purgatory} {figure}: {found}");
    }
    let loaded = browser.run("return performance.getEntriesByType('resource').map(it => it.name)");
    for name in loaded.as_array().expect("a list") {
        let name = name.as_str().expect("an address");
        let own = name.starts_with(&format!("http://{}/", broker.metrics));
        assert!(own || name.starts_with("data:"), "{name}");
    }

    // Produce requests wait for the demonstration's follower.
    let peak = "Number(document.querySelector('#produce [data-figure=most]').textContent.replace('peak ', ''))";
    browser.wait_until(&format!("return {peak} >= 1"));
    for figure in ["park", "late"] {
        let quantiles =
            format!("document.querySelector('#fetch [data-figure={figure}]').textContent");
        browser.wait_until(&format!(
            "return /^p50 .* ms, p99 .* of /.test({quantiles})"
        ));
    }
    let link = "return document.querySelector('header a').href";
    assert_eq!(
        browser.run(link),
        format!("http://{}/metrics", broker.metrics)
    );
    let alarms = "return [...document.querySelectorAll('.alarm')].map(it => it.textContent)";
    assert_eq!(browser.run(alarms), serde_json::json!([]));
    // Missed checks are coloured when they are many and the expiries came in time, and not for the load alone.
    let forgotten = "const within = seconds => [[String(seconds), 100], ['+Inf', 100]]; \
         return [[50, 100, within(0.004)], [50, 100, within(0.5)], [9, 9, within(0.004)], [50, 600, within(0.004)]] \
             .map(it => areChecksForgotten(...it))";
    assert_eq!(
        browser.run(forgotten),
        serde_json::json!([true, false, false, false])
    );
    assert_eq!(browser.complaints(), serde_json::json!([]));
    // Nothing is wider than a telephone.
    let picture = |name: &str| {
        if let Some(folder) = std::env::var_os("REQUEST_PURGATORY_PICTURES") {
            let path = std::path::Path::new(&folder).join(format!("{name}.png.base64"));
            std::fs::write(path, browser.screenshot()).expect("write the picture");
        }
    };
    browser.resize(500, 2_400);
    browser.wait_until("return document.documentElement.scrollWidth <= innerWidth");
    picture("phone");
    browser.resize(1_240, 1_300);

    let paper = "return getComputedStyle(document.body).backgroundColor";
    let colours = ["light", "dark"].map(|scheme| {
        browser.prefer(scheme);
        picture(scheme);
        browser.run(paper)
    });
    assert_ne!(colours[0], colours[1]);

    // And it says so when the broker does not answer any more.
    drop(broker);
    browser.wait_until("return document.documentElement.dataset.state === 'lost'");
}

/// Idle connections to the page end by themselves, and do not keep others out meanwhile.
#[test]
fn idle_connections_to_the_page_end() {
    let broker = Shown::start(&["serve", "--listen", "127.0.0.1:0"]);
    let mut idle: Vec<_> = (0..200)
        .map(|_| TcpStream::connect(broker.metrics).expect("connect"))
        .collect();
    // One of them had asked before.
    idle[199]
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("send");
    broker.get("/metrics");
    for socket in &mut idle {
        socket.set_read_timeout(Some(PATIENCE)).expect("not zero");
        let mut rest = Vec::new();
        // Closed or reset, whichever: it ends.
        if let Err(error) = socket.read_to_end(&mut rest) {
            let idle = [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind());
            assert!(!idle, "a connection is still open");
        }
        if let Some(word) = rest.get(9..12) {
            assert!(
                [b"200", b"408"].contains(&word.try_into().expect("three bytes")),
                "{rest:?}"
            );
        }
    }
    broker.get("/");
}

/// What a page of somebody else's, whose name resolves to this machine, would ask.
#[test]
fn names_of_others_are_refused() {
    let broker = Shown::start(&["serve", "--listen", "127.0.0.1:0"]);
    for path in ["/", "/metrics", "/history", "/oldest"] {
        let (status, _) = http::ask_host(broker.metrics, "GET", path, "evil.example:80");
        assert_eq!(status, 421, "{path}");
        broker.get(path);
    }
}
