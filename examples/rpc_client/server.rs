//! The server: it squares numbers, some of them slowly, and forgets some calls.

use crate::frame::Frame;
use request_purgatory::Timer;
use std::io::{self, BufReader, BufWriter, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

/// Serves one connection.
pub(crate) struct Server {
    address: SocketAddr,
}

impl Server {
    /// `patience` is what its clients have: slow answers take up to twice as long.
    pub(crate) fn start(patience: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        thread::spawn(move || {
            let served = listener.accept();
            let served = served.and_then(|(stream, _)| serve(stream, patience));
            if let Err(error) = served {
                eprintln!("server: {error}");
            }
        });
        Ok(Self { address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Answers calls until the client sends no more and all slow answers have been given.
fn serve(stream: TcpStream, patience: Duration) -> io::Result<()> {
    let (answers, ready) = channel::<Frame>();
    let writer = {
        let stream = stream.try_clone()?;
        thread::spawn(move || write_answers(&ready, stream))
    };
    // What takes long is modelled by a timer: no thread waits for it.
    let later = answers.clone();
    let slow = Timer::builder("slow-answers")
        .build(move |answer: Frame| {
            // The client may have gone.
            let _ = later.send(answer);
        })
        .map_err(io::Error::other)?;
    let mut calls = BufReader::new(stream);
    while let Some(call) = Frame::read(&mut calls)? {
        let answer = Frame {
            id: call.id,
            number: call.number * call.number,
        };
        match call.id % 10 {
            // Forgotten.
            0 => {}
            // From nothing to twice the client's patience: about half of them come too late.
            1 => {
                let share = (call.id / 10 % 200) as u32;
                let started = slow.start(patience * share / 100, answer);
                started.map_err(|error| io::Error::other(error.to_string()))?;
            }
            _ => drop(answers.send(answer)),
        }
    }
    while !slow.is_empty() {
        thread::sleep(Duration::from_millis(1));
    }
    // With the last sender the writer ends, and with it the connection.
    drop((slow, answers));
    writer
        .join()
        .map_err(|_| io::Error::other("the writer panicked"))?
}

/// Writes answers as they come, and sends them on whenever there is none to add.
fn write_answers(ready: &Receiver<Frame>, stream: TcpStream) -> io::Result<()> {
    let mut stream = BufWriter::new(stream);
    loop {
        let answer = match ready.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Disconnected) => return stream.flush(),
            Err(TryRecvError::Empty) => {
                stream.flush()?;
                match ready.recv() {
                    Ok(answer) => answer,
                    Err(_) => return Ok(()),
                }
            }
        };
        answer.write(&mut stream)?;
    }
}
