//! What the broker shows of its purgatories: the figures, and the page.

use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;

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
    let page = get(&broker, "/");
    let named: String = (0..20).map(|index| format!("t-{index} ")).collect();
    assert!(page.contains(&format!("{named}and 1 more")), "{page}");
    // No wait is longer, whatever a client asks for.
    let (_, left) = page.rsplit_once("s<td>").expect("the time left");
    let seconds = left.split_once('s').and_then(|(it, _)| it.parse().ok());
    assert!(seconds.is_some_and(|it: f64| it <= 300.0), "{left}");
    // As a record meets them: purgatory, parked, watch entries, and what was counted.
    let rows = [
        "produce<td>0<td>0",
        "fetch<td>1<td>21",
        "rebalances<td>0",
        "sessions<td>0",
    ];
    let places = rows.map(|row| page.find(&format!("\n<tr><th>{row}")));
    assert!(places[0].is_some() && places.is_sorted(), "{page}");
    producer.produce("t", b"value");
    consumer.receive_fetched(sent);
    for (figure, value) in [("completed_total", 1), ("size", 0), ("expired_total", 0)] {
        wait_for(&broker, figure, value);
    }
    let row = "fetch<td>0<td>0<td>0<td>1<td>0<td>0<td>0";
    assert!(get(&broker, "/").contains(row), "completed");
    for path in ["/", "/metrics"] {
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
            let tells = !is_here && answer.to_lowercase().contains("purgator");
            let is_closed = path != "/" || !is_here || answer.contains("default-src 'none'");
            assert!(is_right && is_closed && !tells, "{path} {host:?}: {answer}");
        }
    }
}

#[test]
fn the_page_of_the_demonstration_says_what_its_load_is() {
    let metrics = ["demo", "--seconds", "600", "--metrics", "127.0.0.1:0"];
    let mut broker = Broker::run(command().args(metrics));
    eventually("a busy broker", || {
        let page = get(&broker, "/");
        page.contains("<p>4 busy partitions get a record 5 ms after") && page.contains(">busy-3 ")
    });
    // (It makes no reports of what is left.)
    broker.end(Signal::KILL);
}
