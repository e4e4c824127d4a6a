//! What the broker shows of its purgatories: the figures, and the page.

use super::*;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

/// The whole answer, status and headers included.
fn ask(broker: &Broker, path: &str, headers: &str) -> String {
    let mut socket = TcpStream::connect(broker.page()).expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("UTF-8");
    answer
}

fn get(broker: &Broker, path: &str) -> String {
    let answer = ask(broker, path, "host: localhost\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
    body.to_owned()
}

fn wait_for(broker: &Broker, figure: &str, value: u64) {
    let line = format!("purgatory_{figure}{{purgatory=\"fetch\"}} {value}");
    let is_there = || get(broker, "/metrics").lines().any(|it| it == line);
    eventually(&line, is_there);
}

/// And to whom: not to a browser that asks on behalf of a page from elsewhere, whose name now resolves to this machine.
#[test]
fn the_figures_say_what_the_purgatories_did() {
    let (broker, mut producer) = Broker::with_topic(21, &["--metrics", "127.1:0"]);
    let mut consumer = broker.client();
    let sent = consumer.send(FETCH, &fetch("t", 21, i32::MAX));
    wait_for(&broker, "num_delayed_operations", 1);
    wait_for(&broker, "size", 21);
    let oldest: Value = serde_json::from_str(&get(&broker, "/oldest")).expect("JSON");
    let named: Vec<_> = (0..20).map(|index| format!("t-{index}")).collect();
    assert_eq!(oldest["fetch"][0]["keys"], json!(named));
    assert_eq!(oldest["fetch"][0]["more"], 1);
    // No wait is longer, whatever a client asks for.
    let remaining = oldest["fetch"][0]["remaining"].as_f64();
    assert!(remaining.is_some_and(|it| it <= 300.0), "{oldest}");
    producer.produce("t", b"value");
    consumer.receive_fetched(sent);
    for (figure, value) in [("completed_total", 1), ("size", 0), ("expired_total", 0)] {
        wait_for(&broker, figure, value);
    }
    for path in ["/", "/metrics", "/oldest", "/load"] {
        for (host, is_here) in [
            ("host: 127.1:9100\r\n", true), // as given to it
            ("host: [::1]\r\n", true),
            ("host: 10.1.2.3:80\r\n", true),
            ("host: LocalHost:9100\r\n", true),
            ("host: evil.example\r\n", false),
            ("host: 127.0.0.1.evil.example:9100\r\n", false),
            ("host: localhost.evil.example\r\n", false),
            ("host: \r\n", false),
            ("", false),
        ] {
            let answer = ask(&broker, path, host);
            let status = if is_here { "200" } else { "4" };
            let is_right = answer.starts_with(&format!("HTTP/1.1 {status}"));
            let tells = !is_here && answer.contains("purgatory_");
            let is_closed = path != "/" || !is_here || answer.contains("default-src 'none'");
            assert!(is_right && is_closed && !tells, "{path} {host:?}: {answer}");
        }
    }
}

/// The demonstration's load: at most 68 parked fetches (few on a busy machine), hundreds of endings a second.
#[test]
fn the_page_shows_a_busy_broker() {
    if !available("chromium", &["--version"]) {
        return;
    }
    let mut broker =
        Broker::run(command().args(["demo", "--seconds", "600", "--metrics", "127.0.0.1:0"]));
    let address = format!("http://{}/", broker.page());
    let mut chromium = Command::new("chromium");
    let arguments = "--headless --no-sandbox --disable-gpu --virtual-time-budget=20000 --dump-dom";
    chromium.args(arguments.split(' '));
    let output = run(chromium.arg(&address), "");
    let page = String::from_utf8_lossy(&output.stdout);
    assert!(page.contains("data-state=\"live\""), "{page}");
    let load = "4 busy partitions get a record 5 ms after the last was acknowledged";
    assert!(page.contains(load), "{page}");
    // The figure in a tile of the section of a purgatory.
    let figure = |purgatory: &str, name: &str| {
        let section = page.split_once(&format!("id=\"{purgatory}\""));
        let (_, section) = section.expect("a section");
        let tile = section.split_once(&format!("data-figure=\"{name}\">"));
        let (figure, _) = tile.expect("a tile").1.split_once('<').expect("an end");
        figure.replace(',', "").parse::<f64>().expect("a number")
    };
    let parked = figure("fetch", "parked");
    assert!((5.0..=68.0).contains(&parked), "{parked}");
    // Its clock runs ahead of the broker's, so these rates are lower than they are.
    for purgatory in ["produce", "fetch"] {
        assert!(figure(purgatory, "completed") >= 1.0, "{purgatory}");
    }
    // As a record meets them. There are no groups in the demonstration, so nothing is shown of them.
    let places = ["produce", "fetch", "rebalances"].map(|it| page.find(&format!("id=\"{it}\"")));
    assert!(places[0] < places[1] && places[2].is_none(), "{page}");
    assert!(page.contains("<td title=\""), "the oldest: {page}");
    assert!(!page.contains("class=\"alarm\""), "{page}");
    // (It makes no reports of what is left.)
    broker.end(Signal::KILL);
}
