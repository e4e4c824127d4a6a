//! The client: one thread writes calls, one reads responses, and each call waits for its own.

use crate::frame::Frame;
use request_purgatory::{tracker::RequestError, tracker::Requests, tracker::ResponseFuture};
use std::io::{self, BufReader, BufWriter, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// What became of the calls.
pub(crate) struct Outcome {
    pub(crate) answered: u64,
    pub(crate) timed_out: u64,
    /// Responses to calls that had timed out.
    pub(crate) late: u64,
    /// Calls whose response was another's.
    pub(crate) wrong: u64,
    pub(crate) took: Duration,
}

/// Makes `calls` calls to the server at `address`, all in flight at once.
pub(crate) fn make_calls(
    address: SocketAddr,
    calls: u64,
    timeout: Duration,
) -> io::Result<Outcome> {
    let stream = TcpStream::connect(address)?;
    let pending = Requests::<u64, u64>::builder("rpc")
        .build()
        .map_err(io::Error::other)?;
    let reader = {
        let (pending, stream) = (pending.clone(), stream.try_clone()?);
        thread::spawn(move || read_responses(&pending, stream))
    };

    let start = Instant::now();
    let requests = send(&pending, &stream, calls, timeout)?;
    let mut outcome = Outcome {
        answered: 0,
        timed_out: 0,
        late: 0,
        wrong: 0,
        took: Duration::ZERO,
    };
    for request in requests {
        // (A request is a future as well; here one thread waits for them in turn.)
        let number = *request.id();
        match request.wait_blocking() {
            Ok(response) => {
                outcome.answered += 1;
                outcome.wrong += u64::from(response != number * number);
            }
            Err(RequestError::TimedOut) => outcome.timed_out += 1,
            Err(other) => return Err(io::Error::other(other)),
        }
    }
    outcome.took = start.elapsed();

    // The server ends the connection when it has sent what it had to say: the late responses have been read then.
    stream.shutdown(Shutdown::Write)?;
    reader
        .join()
        .map_err(|_| io::Error::other("the reader panicked"))??;
    outcome.late = pending.late();
    Ok(outcome)
}

/// Sends all calls. Each is expected before it is sent, so that no response can overtake that.
fn send(
    pending: &Requests<u64, u64>,
    stream: &TcpStream,
    calls: u64,
    timeout: Duration,
) -> io::Result<Vec<ResponseFuture<u64, u64>>> {
    let mut stream = BufWriter::new(stream);
    let mut requests = Vec::new();
    for id in 0..calls {
        let request = pending.request(id, timeout);
        requests.push(request.map_err(|error| io::Error::other(error.to_string()))?);
        Frame { id, number: id }.write(&mut stream)?;
    }
    stream.flush()?;
    Ok(requests)
}

/// Hands each response to whoever waits for it.
fn read_responses(pending: &Requests<u64, u64>, stream: TcpStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(response) = Frame::read(&mut stream)? {
        pending.respond(&response.id, response.number);
    }
    Ok(())
}
