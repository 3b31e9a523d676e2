//! A client of the TCP protocol for the demo and the tests. It sends one request at a time, or several in a row.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use protocol::dq::{Framing, HEADER};

/// A connection to dq-server.
#[derive(Debug)]
pub struct TcpClient {
    /// The socket.
    pub stream: TcpStream,
    framing: Framing,
}

impl TcpClient {
    /// Connects to dq-server.
    pub fn connect(address: SocketAddr, framing: Framing) -> io::Result<TcpClient> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.set_nodelay(true)?;
        Ok(TcpClient { stream, framing })
    }

    /// Sends requests without waiting for their answers.
    pub fn send(&mut self, requests: &[Value]) -> io::Result<()> {
        self.send_in_pieces(requests, 1)
    }

    /// Sends requests without waiting, in `pieces` writes. A write may end in the middle of a frame.
    pub fn send_in_pieces(&mut self, requests: &[Value], pieces: usize) -> io::Result<()> {
        let mut bytes = Vec::new();
        for request in requests {
            if !self.framing.append(request.to_string().as_bytes(), &mut bytes) {
                return Err(io::Error::other("the request is too long for this framing"));
            }
        }
        let piece = bytes.len().div_ceil(pieces.max(1)).max(1);
        bytes.chunks(piece).try_for_each(|chunk| self.stream.write_all(chunk))
    }

    /// Waits for the next answer.
    pub fn receive(&mut self) -> io::Result<Value> {
        let mut header = [0; HEADER];
        self.stream.read_exact(&mut header)?;
        let length = match self.framing {
            Framing::Binary => u32::from_be_bytes(header) as usize,
            Framing::Digits => {
                let digits = std::str::from_utf8(&header).map_err(io::Error::other)?;
                digits.parse().map_err(io::Error::other)?
            }
        };
        let mut json = vec![0; length];
        self.stream.read_exact(&mut json)?;
        Ok(serde_json::from_slice(&json)?)
    }

    /// Sends a request, and waits for its answer.
    pub fn ask(&mut self, request: &Value) -> io::Result<Value> {
        self.send(std::slice::from_ref(request))?;
        self.receive()
    }
}
