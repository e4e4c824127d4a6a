//! HTTP, on nodes within the test.

mod support;

use gateway::store::MemoryStore;
use request_purgatory_cluster::Config;
use std::time::Duration;
use support::{Node, get, post, request, settings};

#[tokio::test]
async fn a_post_to_one_node_answers_a_poll_on_another() {
    let store = MemoryStore::new();
    let (one, other) = (Node::start(&store).await, Node::start(&store).await);
    let poll = tokio::spawn(get(other.address, "/topics/news?after=0&wait=30"));
    other.parked(1).await;
    let posted = post(one.address, "/topics/news", "hello \"you\"").await;
    assert_eq!(posted.status, 201);
    let answer = poll.await.expect("no panic");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "application/json");
    let json = answer.json();
    assert_eq!(json["events"][0]["body"], "hello \"you\"");
    assert_eq!(json["events"][0]["version"], 1);
    assert_eq!(json["skipped"], 0);
    assert_eq!(answer.position(), posted.position());

    // The position leads to the next event, and not to this one again.
    let path = format!("/topics/news?after={}&wait=30", answer.position());
    let poll = tokio::spawn({
        let (address, path) = (one.address, path.clone());
        async move { get(address, &path).await }
    });
    one.parked(1).await;
    post(other.address, "/topics/news", "again").await;
    let answer = poll.await.expect("no panic");
    assert_eq!(answer.json()["events"].as_array().map(Vec::len), Some(1));
    assert_eq!(answer.json()["events"][0]["body"], "again");
}

#[tokio::test]
async fn without_a_wait_the_store_is_read_at_once() {
    let store = MemoryStore::new();
    let node = Node::start(&store).await;
    assert_eq!(get(node.address, "/topics/a").await.status, 204);
    for number in 0..120 {
        post(node.address, "/topics/a", number.to_string()).await;
    }
    // A node that has never heard of the topic.
    let fresh = Node::start(&store).await;
    let first = get(fresh.address, "/topics/a").await;
    assert_eq!(first.json()["events"].as_array().map(Vec::len), Some(100));
    let path = format!("/topics/a?after={}", first.position());
    let rest = get(fresh.address, &path).await;
    assert_eq!(rest.json()["events"].as_array().map(Vec::len), Some(20));
    assert_eq!(rest.json()["events"][0]["body"], "100");
    let path = format!("/topics/a?after={}", rest.position());
    assert_eq!(get(fresh.address, &path).await.status, 204);
}

#[tokio::test]
async fn time_passes_with_204() {
    let node = Node::start(&MemoryStore::new()).await;
    let answer = get(node.address, "/topics/a?after=0&wait=0.05").await;
    assert_eq!((answer.status.as_u16(), &*answer.body), (204, ""));
    assert_eq!(node.gateway.stats().expired, 1);
}

#[tokio::test]
async fn bad_input_is_refused_with_a_sentence() {
    let node = Node::start(&MemoryStore::new()).await;
    let long = format!("/topics/{}", "x".repeat(257));
    for (method, path, body, status) in [
        ("GET", "/topics/a?after=x", "".into(), 400),
        ("GET", "/topics/a?wait=61", "".into(), 400),
        ("GET", "/topics/a?until=1", "".into(), 400),
        ("GET", "/topics/%ff", "".into(), 400),
        ("POST", "/topics/%ff", "x".into(), 400),
        ("GET", &long, "".into(), 400),
        ("POST", &long, "".into(), 400),
        ("POST", "/topics/a", vec![0xff], 400),
        ("POST", "/topics/a", vec![b'x'; 65_537], 413),
        ("DELETE", "/topics/a", "".into(), 405),
        ("GET", "/topics", "".into(), 404),
        ("GET", "/topics/a/b", "".into(), 404),
    ] {
        let answer = request(node.address, method, path, body).await;
        let answer = answer.expect("it is answered");
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        assert!(
            answer.body.contains(' '),
            "{method} {path}: {}",
            answer.body
        );
    }
    assert_eq!(node.gateway.stats().posts, 0);
    let largest = post(node.address, "/topics/a", vec![b'x'; 65_536]).await;
    assert_eq!(largest.status, 201);
}

#[tokio::test]
async fn a_lost_store_is_answered_with_410() {
    let store = MemoryStore::new();
    let node = Node::start(&store).await;
    let position = post(node.address, "/topics/a", "x").await.position();
    let path = format!("/topics/a?after={position}&wait=30");
    let poll = tokio::spawn({
        let address = node.address;
        async move { get(address, &path).await }
    });
    node.parked(1).await;
    store.flush();
    let answer = poll.await.expect("no panic");
    assert_eq!(answer.status, 410, "{}", answer.body);
    let onward = answer.position();
    assert!(
        onward.ends_with("-0"),
        "it goes on from the beginning: {onward}"
    );
    // A position of the old history stays worth nothing when the store is filled again.
    for _ in 0..3 {
        post(node.address, "/topics/a", "y").await;
    }
    for wait in ["0", "10"] {
        let path = format!("/topics/a?after={position}&wait={wait}");
        assert_eq!(get(node.address, &path).await.status, 410);
    }
    assert_eq!(get(node.address, "/topics/a?after=9").await.status, 410);
    for after in ["0", &onward] {
        let anew = get(node.address, &format!("/topics/a?after={after}&wait=10")).await;
        assert_eq!(anew.json()["events"].as_array().map(Vec::len), Some(3));
    }
    let stats = node.gateway.stats();
    assert_eq!((stats.gone, stats.woken), (4, 2));
    assert_eq!((stats.refused, stats.expired), (0, 0));
}

#[tokio::test]
async fn bodies_are_read_once_for_all_polls() {
    const POLLS: usize = 200;
    let store = MemoryStore::new();
    let (node, other) = (Node::start(&store).await, Node::start(&store).await);
    let polls = (0..POLLS).map(|_| tokio::spawn(get(node.address, "/topics/a?after=0&wait=30")));
    let polls = polls.collect::<Vec<_>>();
    node.parked(POLLS).await;
    post(other.address, "/topics/a", "x").await;
    for poll in polls {
        assert_eq!(poll.await.expect("no panic").status, 200);
    }
    assert_eq!((store.reads(), node.gateway.stats().fetches), (1, 1));
    assert_eq!(node.gateway.stats().woken, POLLS as u64);
}

#[tokio::test]
async fn a_store_that_is_down_is_503_and_parked_polls_stay() {
    let store = MemoryStore::new();
    let mut settings = settings();
    // (The figures of all nodes of a process are told together.)
    settings.name = "down".into();
    settings.cluster = Config {
        backoff: (Duration::from_millis(20), Duration::from_millis(100)),
        ..Config::default()
    };
    let node = Node::start_with(&store, settings).await;
    let poll = tokio::spawn(get(node.address, "/topics/a?after=0&wait=30"));
    node.parked(1).await;
    store.set_down(true);
    let refused = post(node.address, "/topics/a", "x").await;
    assert_eq!(refused.status, 503);
    assert!(refused.headers.contains_key("retry-after"));
    for _ in 0..3 {
        assert_eq!(get(node.address, "/topics/a").await.status, 503);
    }
    assert_eq!(node.gateway.stats().parked, 1);
    store.set_down(false);
    assert_eq!(post(node.address, "/topics/a", "x").await.status, 201);
    assert_eq!(poll.await.expect("no panic").status, 200);
    assert_eq!(post(node.address, "/topics/a", "y").await.status, 201);
    let metrics = get(node.address, "/metrics").await.body;
    for (figure, count) in [
        ("posts", 2),
        ("failed_posts", 1),
        ("woken_polls", 1),
        ("expired_polls", 0),
        ("gone_polls", 0),
        ("refused_polls", 3),
        ("body_reads", 1),
    ] {
        let line = format!("gateway_{figure}_total{{node=\"down\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn a_full_node_refuses_one_more() {
    let store = MemoryStore::new();
    let mut settings = settings();
    settings.max_polls = 1;
    let node = Node::start_with(&store, settings).await;
    let poll = tokio::spawn(get(node.address, "/topics/a?after=0&wait=30"));
    node.parked(1).await;
    let refused = get(node.address, "/topics/b?after=0&wait=30").await;
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("--max-polls"), "{}", refused.body);
    post(node.address, "/topics/a", "x").await;
    assert_eq!(poll.await.expect("no panic").status, 200);
}

#[tokio::test]
async fn a_client_that_goes_away_takes_its_poll_along() {
    let node = Node::start(&MemoryStore::new()).await;
    let poll = tokio::spawn(get(node.address, "/topics/a?after=0&wait=30"));
    node.parked(1).await;
    poll.abort();
    node.parked(0).await;
}

#[tokio::test]
async fn the_page_and_the_figures_are_there() {
    let node = Node::start(&MemoryStore::new()).await;
    node.gateway.set_peers(vec!["http://10.0.0.2:8080".into()]);
    let page = get(node.address, "/").await;
    let policy = page.headers["content-security-policy"].to_str();
    let policy = policy.expect("it is text");
    assert!(policy.contains("default-src 'none'"), "{policy}");
    assert!(policy.contains("connect-src 'self' http://10.0.0.2:8080;"));
    for part in ["page.js", "page.css"] {
        assert!(page.body.contains(part));
        assert_eq!(get(node.address, &format!("/{part}")).await.status, 200);
    }
    // What the script shows, the page explains.
    let script = include_str!("../src/page/page.js");
    let shown = script
        .split_once("const rest = {")
        .and_then(|(_, rest)| rest.split_once('}'));
    for figure in shown.expect("its figures").0.split(',') {
        let (word, _) = figure.split_once(':').expect("a name");
        let explained = format!("data-word=\"{}\"", word.trim().trim_matches('"'));
        assert!(page.body.contains(&explained), "{explained}");
    }
    let stats = get(node.address, "/stats").await;
    assert_eq!(stats.headers["access-control-allow-origin"], "*");
    assert_eq!(stats.json()["peers"][0], "http://10.0.0.2:8080");
    assert_eq!(stats.json()["name"], "node");
    // For Prometheus: the figures of the purgatory, of the cluster, and its own.
    let metrics = get(node.address, "/metrics").await;
    assert!(
        metrics.headers["content-type"]
            .to_str()
            .is_ok_and(|it| it.starts_with("text/plain"))
    );
    for line in [
        "purgatory_num_delayed_operations{purgatory=\"node\"} ",
        "purgatory_cluster_sessions_total{cluster=\"cluster\"} ",
        "gateway_posts_total{node=\"node\"} ",
    ] {
        assert!(metrics.body.contains(line), "{line}: {}", metrics.body);
    }
}
