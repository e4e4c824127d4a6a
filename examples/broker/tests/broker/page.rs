//! What the broker shows of its purgatories: the figures, and the page.

use crate::process::{Broker, command};
use crate::programs::{available, eventually, run};
use crate::requests::{FETCH, create_topic, fetch, produce, receive_fetched};
use serde_json::{Value, json};
use std::process::Command;

/// Asks for a path under a name of the host: the status, and the body.
fn ask(broker: &Broker, path: &str, host: &str) -> (String, String) {
    let address = broker.page.expect("it has a page");
    let mut curl = Command::new("curl");
    curl.args(["-s", "-w", "%{http_code}", "-H", &format!("Host: {host}")]);
    let output = run(curl.arg(format!("http://{address}{path}")), "");
    let mut body = String::from_utf8(output.stdout).expect("UTF-8");
    let status = body.split_off(body.len() - 3);
    (status, body)
}

fn get(broker: &Broker, path: &str) -> String {
    let (status, body) = ask(broker, path, "localhost");
    assert_eq!(status, "200", "{path}: {body}");
    body
}

/// Waits until a figure of the fetch purgatory has this value.
fn wait_for(broker: &Broker, figure: &str, value: u64) {
    let line = format!("purgatory_{figure}{{purgatory=\"fetch\"}} {value}");
    eventually(&line, || {
        get(broker, "/metrics")
            .lines()
            .any(|it| it == line)
            .then_some(())
    });
}

#[test]
fn the_figures_say_what_the_purgatories_did() {
    if !available("curl", &["--version"]) {
        return;
    }
    let broker = Broker::with(&["--metrics", "127.0.0.1:0"]);
    let (mut producer, mut consumer) = (broker.client(), broker.client());
    create_topic(&mut producer, "t", 3);
    let sent = consumer.send(FETCH, &fetch("t", 3, 60_000));
    wait_for(&broker, "num_delayed_operations", 1);
    wait_for(&broker, "size", 3);
    let oldest: Value = serde_json::from_str(&get(&broker, "/oldest")).expect("JSON");
    assert_eq!(oldest["fetch"][0]["keys"], json!(["t-0", "t-1", "t-2"]));
    produce(&mut producer, "t", b"value");
    receive_fetched(&mut consumer, sent);
    for (figure, value) in [("completed_total", 1), ("size", 0), ("expired_total", 0)] {
        wait_for(&broker, figure, value);
    }
    // A page of another site, whose name resolves to this machine, is told nothing.
    for path in ["/", "/metrics", "/oldest", "/load"] {
        for host in [
            "evil.example:80",
            "127.0.0.1.evil.example",
            "localhost.evil:1",
            "",
        ] {
            let status = ask(&broker, path, host).0;
            assert!(
                ["421", "400"].contains(&&*status),
                "{path} {host}: {status}"
            );
        }
        for host in ["127.0.0.1:9100", "[::1]:9100", "LOCALHOST"] {
            assert_eq!(ask(&broker, path, host).0, "200", "{path} {host}");
        }
    }
}

/// The demonstration's load: dozens of parked fetches, hundreds of endings a second.
#[test]
fn the_page_draws_a_busy_broker() {
    if !available("chromium", &["--version"]) {
        return;
    }
    let broker =
        Broker::run(command().args(["demo", "--seconds", "600", "--metrics", "127.0.0.1:0"]));
    let address = format!("http://{}/", broker.page.expect("it has a page"));
    let mut chromium = Command::new("chromium");
    chromium.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=20000",
        "--dump-dom",
    ]);
    if let Some(picture) = std::env::var_os("REQUEST_PURGATORY_PICTURE") {
        let picture = picture.to_string_lossy();
        chromium
            .arg(format!("--screenshot={picture}"))
            .arg("--window-size=1240,1400");
    }
    let output = run(chromium.arg(&address), "");
    let page = String::from_utf8_lossy(&output.stdout);
    assert!(page.contains("data-state=\"live\""), "{page}");
    assert!(
        page.contains("4 busy partitions get a record every 5 ms"),
        "its load: {page}"
    );
    // The figure in a tile of the section of a purgatory.
    let figure = |purgatory: &str, name: &str| {
        let (_, section) = page
            .split_once(&format!("id=\"{purgatory}\""))
            .expect("a section");
        let (_, tile) = section
            .split_once(&format!("data-figure=\"{name}\">"))
            .expect("a tile");
        let (figure, _) = tile.split_once('<').expect("an end");
        let figure = figure.trim_start_matches("peak ").replace(',', "");
        figure
            .parse::<f64>()
            .unwrap_or_else(|_| panic!("{name}: {figure}"))
    };
    assert!(
        (30.0..=68.0).contains(&figure("fetch", "parked")),
        "{}",
        figure("fetch", "parked")
    );
    // Its clock runs ahead of the broker's, so these rates are lower than they are.
    for purgatory in ["produce", "fetch"] {
        assert!(figure(purgatory, "fastest") >= 1.0, "{purgatory}");
    }
    assert!(
        page.find("id=\"produce\"") < page.find("id=\"fetch\""),
        "as a record meets them"
    );
    assert!(page.contains("<td title=\""), "the oldest: {page}");
    // There are no groups in the demonstration, so nothing is shown of them.
    assert!(
        !page.contains("id=\"joins\"") && !page.contains("class=\"alarm\""),
        "{page}"
    );
}
