//! What a user's program does with this crate: `?` takes each of its errors, and its page is short.

use request_purgatory_cluster::memory::MemoryEngine;
use request_purgatory_cluster::{
    BoxError, ClusterWaits, EngineError, Epoch, FeedError, InterestError, KeyError, Position,
    Source, StartError, WaitError,
};
use std::error::Error;
use std::time::Duration;

/// Both conversions of `?` exist, and keep the sentence.
fn converts<E: ToString>(error: impl Fn() -> E)
where
    Box<dyn Error>: From<E>,
    Box<dyn Error + Send + Sync>: From<E>,
    anyhow::Error: From<E>,
{
    let sentence = error().to_string();
    assert!(sentence.contains(' '), "{sentence}");
    let boxed = Box::<dyn Error>::from(error()).to_string();
    let threaded = Box::<dyn Error + Send + Sync>::from(error()).to_string();
    let any = anyhow::Error::from(error()).to_string();
    assert_eq!([boxed, threaded, any], [&*sentence; 3]);
}

#[test]
fn every_error_converts() {
    let position = Position {
        epoch: Epoch(1),
        version: 2,
    };
    let key = || KeyError::TooLong {
        length: 2,
        limit: 1,
    };
    converts(|| EngineError::from("the disk is full"));
    converts(|| EngineError::TimedOut(Duration::from_secs(1)));
    converts(|| EngineError::Reset(position));
    converts(|| FeedError::Connect("the port is closed".into()));
    converts(|| FeedError::Lagged);
    converts(key);
    converts(|| InterestError::Key(key()));
    converts(|| StartError::NoRuntime);
    converts(|| WaitError::Interest(InterestError::TooManyKeys));
    converts(|| "no position".parse::<Position>().expect_err("a text"));
}

/// A program that tells causes one after the other finds each below the next.
#[test]
fn every_error_names_its_cause() {
    let key = || KeyError::TooLong {
        length: 2,
        limit: 1,
    };
    let refused = || InterestError::Key(key());
    let below = |error: &dyn Error| error.source().map(ToString::to_string);
    let is_closed = || BoxError::from("the port is closed");
    for error in [FeedError::Connect(is_closed()), FeedError::Cut(is_closed())] {
        assert_eq!(below(&error), Some(is_closed().to_string()));
    }
    assert_eq!(
        below(&EngineError::Store(is_closed())),
        Some(is_closed().to_string())
    );
    assert_eq!(
        below(&WaitError::Interest(refused())),
        Some(refused().to_string())
    );
    assert_eq!(below(&refused()), Some(key().to_string()));
}

/// A source that calls an engine with `?` hands on what that says.
#[test]
fn an_error_of_an_engine_comes_out_of_its_box_as_it_was() {
    let position = Position {
        epoch: Epoch(1),
        version: 2,
    };
    let boxed = BoxError::from(EngineError::Reset(position));
    let again = EngineError::from(boxed);
    assert!(
        matches!(again, EngineError::Reset(it) if it == position),
        "{again:?}"
    );
}

/// A function of a user whose result is of this type, with every call of this crate that can fail.
macro_rules! calls {
    ($name:ident, $result:ty) => {
        async fn $name(engine: &MemoryEngine<u64>) -> $result {
            use request_purgatory_cluster::{Cluster, Config};
            let node = Cluster::start(engine.clone(), engine.clone(), Config::default())?;
            let waits = ClusterWaits::new(&node)?;
            let _interest = node.interest([7])?;
            waits.wait_past(7, 0, Duration::from_secs(20)).await?;
            let _position = "1f-42".parse::<Position>()?;
            engine.refuse_reads(true);
            engine.versions(&[7]).await?;
            Ok(())
        }
    };
}

calls!(boxed, Result<(), Box<dyn Error>>);
calls!(any, anyhow::Result<()>);

#[tokio::test]
async fn a_read_that_fails_is_told_through_a_question_mark() {
    for is_boxed in [true, false] {
        let engine = MemoryEngine::new();
        engine.commit(7);
        let told = match is_boxed {
            true => boxed(&engine).await.map_err(|error| error.to_string()),
            false => any(&engine).await.map_err(|error| error.to_string()),
        };
        assert_eq!(told, Err("the store refuses reads".to_owned()));
    }
}

/// Construct, commit, wait and shut down: for each engine, in 20 lines that compile (they are documentation tests).
#[test]
fn the_page_shows_each_engine_in_twenty_lines() {
    let page = include_str!("../README.md");
    for engine in ["RedisEngine::connect", "NatsEngine::connect"] {
        let mut programs = page.split("```").filter(|it| it.starts_with("rust"));
        let program = programs.find(|it| it.contains(&format!("{engine}(")));
        let program = program.expect("there is one").trim_end();
        for call in [
            "Cluster::start(",
            ".commit(",
            ".wait_past_position(",
            ".shutdown()",
        ] {
            assert!(program.contains(call), "{engine}: {call}");
        }
        let lines = program.lines().skip(1).count();
        assert!(lines <= 20, "{engine}: {lines} lines");
    }
}

/// The tests of the documentation run it. What a newcomer pastes first must need no server.
#[test]
fn the_first_example_of_the_page_runs_as_it_stands() {
    let page = include_str!("../README.md");
    let first = page.split("```").find(|it| it.starts_with("rust"));
    let first = first.expect("there is an example");
    assert!(first.starts_with("rust\n"), "it is compiled and run");
    assert!(first.contains("MemoryEngine") && first.contains("fn main()"));
}
