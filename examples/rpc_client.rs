//! An RPC client over TCP that reconnects: many calls in flight on one connection, responses in any order.
//!
//! ```text
//! cargo run --release -p examples --bin rpc_client
//! ```
//!
//! [`Requests`] match the responses to the calls by id and time out those that get none. A late response is ignored; one
//! to a call that was never made ends the connection. The calls that were sent on it are told at once, and each is sent
//! again on the next one with what is left of its time (so they must be idempotent). A frame is two numbers: id and
//! argument. Threads, and no runtime.

use request_purgatory::{Requests, WaitError, tracker::Responded};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

struct Client {
    pending: Requests<u64, Option<u64>>, // `None`: the connection is lost
    connection: Mutex<TcpStream>,
    last_id: AtomicU64,
}

impl Client {
    fn square(&self, number: u64, timeout: Duration) -> Result<u64, WaitError> {
        let deadline = Instant::now() + timeout;
        loop {
            let id = self.last_id.fetch_add(1, Ordering::Relaxed);
            let mut connection = self.connection.lock().unwrap();
            // Before the frame is sent: no response can overtake it. And under the lock, so that `fail_all_with` ends
            // what was sent on the old connection, and nothing else.
            let left = deadline.saturating_duration_since(Instant::now());
            let response = self.pending.request(id, left).expect("a new id");
            let _ = connection.write_all(&[id, number].map(u64::to_be_bytes).concat()); // the receiver sees why not
            drop(connection);
            if let Some(square) = response.wait_blocking()? {
                return Ok(square);
            }
        }
    }

    fn receive(&self, server: SocketAddr) -> io::Result<()> {
        loop {
            let (mut from, mut frame) = (self.connection.lock().unwrap().try_clone()?, [[0; 8]; 2]);
            while from.read_exact(frame.as_flattened_mut()).is_ok() {
                let [id, square] = frame.map(u64::from_be_bytes);
                if let Responded::Unknown(_) = self.pending.respond(&id, Some(square)) {
                    break; // the server is not to be trusted; a `Late` one is just late
                }
            }
            let mut connection = self.connection.lock().unwrap();
            *connection = TcpStream::connect(server)?; // callers wait for it
            self.pending.fail_all_with(|_| None);
        }
    }
}

/// A server that forgets every tenth number, and after 300 calls of a connection no longer knows their ids.
fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (mut stream, mut frame, mut calls) = (listener.accept()?.0, [[0; 8]; 2], 0);
        while stream.read_exact(frame.as_flattened_mut()).is_ok() {
            let [id, number] = frame.map(u64::from_be_bytes);
            calls += 1;
            let id = if calls < 300 { id } else { u64::MAX };
            if number % 10 != 0 {
                let _ = stream.write_all(&[id, number * number].map(u64::to_be_bytes).concat());
            }
        }
    }
}

fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = listener.local_addr()?;
    let client = Client {
        pending: Requests::new("rpc"),
        connection: Mutex::new(TcpStream::connect(server)?),
        last_id: AtomicU64::new(0),
    };
    let client: &'static Client = Box::leak(Box::new(client));
    thread::spawn(move || serve(listener));
    thread::spawn(move || client.receive(server));
    let call = |number| match client.square(number, Duration::from_secs(2)) {
        Ok(square) => assert_eq!(square, number * number),
        Err(error) => assert_eq!((error, number % 10), (WaitError::Expired, 0)),
    };
    let calls = |caller: u64| (10 * caller..10 * (caller + 1)).for_each(call);
    thread::scope(|all| (0..200).for_each(|caller| _ = all.spawn(move || calls(caller))));
    let (connections, calls) = (client.pending.unknown() + 1, client.pending.stats());
    let (answered, timed_out) = (calls.completed, calls.expired);
    println!("{answered} calls answered, {timed_out} timed out, over {connections} connections");
    assert_eq!((answered, timed_out, connections > 1), (1_800, 200, true));
    Ok(())
}
