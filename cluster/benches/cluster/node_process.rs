//! Node A as B sees it: a process that takes commands and answers in lines.

use crate::engine::Site;
use crate::node;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Killed when this is dropped.
pub struct NodeProcess {
    _child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl NodeProcess {
    /// Without audits, a node only hears.
    pub fn start(site: &Site, max_subscriptions: usize, audits: bool) -> Self {
        let program = std::env::current_exe().expect("it is known");
        let mut child = Command::new(program)
            .arg(node::ARGUMENT)
            .args([&site.kind.number().to_string(), &site.url])
            .args([max_subscriptions.to_string(), audits.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts once more");
        let (commands, answers) = (child.stdin.take(), child.stdout.take());
        Self {
            commands: commands.expect("a pipe"),
            answers: BufReader::new(answers.expect("a pipe")).lines(),
            _child: child,
        }
    }

    pub async fn say(&mut self, command: &str) {
        let line = format!("{command}\n");
        let said = self.commands.write_all(line.as_bytes()).await;
        said.expect("A takes commands");
    }

    /// The numbers after `word`, with which the next line begins.
    pub async fn hear(&mut self, word: &str) -> Vec<u64> {
        let line = self.answers.next_line().await.expect("a pipe");
        let line = line.expect("A lives");
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some(word), "{line}");
        words.map(|it| it.parse().expect("a number")).collect()
    }

    pub async fn expect(&mut self, word: &str) {
        self.hear(word).await;
    }

    /// Nanoseconds of CPU time.
    pub async fn cpu(&mut self) -> u64 {
        self.say("cpu").await;
        self.hear("cpu").await[0]
    }
}
