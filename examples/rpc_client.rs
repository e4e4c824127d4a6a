//! An RPC client over TCP that reconnects: many calls in flight on one connection, responses in any order.
//!
//! ```text
//! cargo run --release -p examples --bin rpc_client
//! ```
//!
//! [`Requests`] match the responses to the calls by id and time out those that get none. A late response is ignored; one
//! to a call that was never made ends the connection. The calls that were sent on it are told at once, before the next
//! connection is made, and each is sent again on that, until the same deadline (so they must be idempotent). While
//! the server refuses connections, the client tries again. A frame is two numbers: id and argument. Threads, and no
//! runtime.

use request_purgatory::{WaitError, future::block_on};
use request_purgatory_tracker::{Requests, Responded};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

struct Client {
    pending: Requests<u64, Option<u64>>, // `None`: the connection is lost
    connection: Mutex<Option<TcpStream>>,
    connected: Condvar,
    last_id: AtomicU64,
    refused: AtomicU64,
}

impl Client {
    fn square(&self, number: u64, timeout: Duration) -> Result<u64, WaitError> {
        let deadline = Instant::now() + timeout;
        loop {
            let id = self.last_id.fetch_add(1, Ordering::Relaxed);
            let connection = self.connection.lock().unwrap();
            // Waits for a connection, no longer than the call has time.
            let left = deadline.saturating_duration_since(Instant::now());
            let waited = self
                .connected
                .wait_timeout_while(connection, left, |it| it.is_none());
            let (mut connection, _) = waited.unwrap();
            let Some(stream) = &mut *connection else {
                return Err(WaitError::Expired);
            };
            // Before the frame is sent: no response can overtake it. And under the lock: what is pending when the connection
            // is taken away was sent on that.
            let response = self.pending.request(id, deadline).expect("a new id");
            let _ = stream.write_all(&[id, number].map(u64::to_be_bytes).concat()); // the receiver sees why not
            drop(connection);
            if let Some(square) = block_on(response)? {
                return Ok(square);
            }
        }
    }

    fn receive(&self, server: SocketAddr) -> io::Result<()> {
        loop {
            let Ok(mut from) = TcpStream::connect(server) else {
                self.refused.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(50));
                continue;
            };
            *self.connection.lock().unwrap() = Some(from.try_clone()?);
            self.connected.notify_all();
            let mut frame = [[0; 8]; 2];
            while from.read_exact(frame.as_flattened_mut()).is_ok() {
                let [id, square] = frame.map(u64::from_be_bytes);
                if let Responded::Unknown(_) = self.pending.respond(&id, Some(square)) {
                    // The server is not to be trusted. A `Late` response is just late. The last 8,192 calls that ended
                    // are remembered, and all that one `fail_all_with` has ended.
                    break;
                }
            }
            // In this order: no call is sent any more, those in flight are told, the next connection is made.
            *self.connection.lock().unwrap() = None;
            self.pending.fail_all_with(|_| None);
        }
    }
}

/// A server that starts late, forgets every tenth number, and after 300 calls of a connection no longer knows their ids.
fn serve(address: SocketAddr) -> io::Result<()> {
    thread::sleep(Duration::from_millis(200));
    let listener = TcpListener::bind(address)?;
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
    let server = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let client = Client {
        pending: Requests::new("rpc"),
        connection: Mutex::new(None),
        connected: Condvar::new(),
        last_id: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    };
    let client: &'static Client = Box::leak(Box::new(client));
    thread::spawn(move || serve(server));
    thread::spawn(move || client.receive(server));
    let [answered, timed_out] = [(); 2].map(|()| AtomicU64::new(0));
    let call = |number| match client.square(number, Duration::from_secs(2)) {
        Ok(square) => {
            assert_eq!(square, number * number);
            answered.fetch_add(1, Ordering::Relaxed);
        }
        Err(error) => {
            assert_eq!((error, number % 10), (WaitError::Expired, 0));
            timed_out.fetch_add(1, Ordering::Relaxed);
        }
    };
    let calls = |caller: u64| (10 * caller..10 * (caller + 1)).for_each(call);
    thread::scope(|all| (0..200).for_each(|caller| _ = all.spawn(move || calls(caller))));
    let (answered, timed_out) = (answered.into_inner(), timed_out.into_inner());
    let connections = client.pending.unknown() + 1;
    let refused = client.refused.load(Ordering::Relaxed);
    println!("{answered} calls answered, {timed_out} timed out, over {connections} connections");
    println!("{refused} attempts to connect were refused");
    assert_eq!((answered, timed_out, connections > 1), (1_800, 200, true));
    assert!(refused > 0);
    Ok(())
}
