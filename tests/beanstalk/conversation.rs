//! The table of conversations: its format, and the player that checks that a server follows it. Both beanstalkd and dq
//! can be the server.
#![allow(dead_code)]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long a step waits for the bytes that it expects.
const PATIENCE: Duration = Duration::from_secs(20);

/// One conversation of the table.
pub struct Conversation {
    pub name: String,
    pub steps: Vec<Step>,
}

/// A step, with the line of the table where it stands, and the connection that it is about.
pub struct Step {
    pub line: usize,
    pub client: u8,
    pub act: Act,
    /// What replaces `act` if the server is dq.
    pub of_dq: Option<Act>,
}

/// The server that answers in a conversation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Server {
    Beanstalkd,
    Dq,
}

pub enum Act {
    Send(Vec<Part>),
    Expect(Vec<Part>),
    Closed,
}

/// A part of the bytes that are sent or expected.
#[derive(Clone)]
pub enum Part {
    Bytes(Vec<u8>),
    /// A number. It is the same at each place with this name.
    Named(String),
    AnyNumber,
    AnyText,
    /// The number of bytes of the next expectation, without its CRLF.
    Length,
}

/// The number that each name stands for.
pub type Numbers = HashMap<String, Vec<u8>>;

/// Returns all conversations of the table.
pub fn table() -> Vec<Conversation> {
    let mut conversations: Vec<Conversation> = Vec::new();
    for (line, text) in include_str!("conversations.txt").lines().enumerate() {
        let line = line + 1;
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if let Some(name) = text.strip_prefix("== ") {
            conversations.push(Conversation { name: name.to_owned(), steps: Vec::new() });
            continue;
        }
        let (text, is_of_dq) = match text.strip_prefix('~') {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (client, act) = match text.as_bytes()[0] {
            digit @ b'1'..=b'9' => (digit - b'0', &text[1..]),
            _ => (1, text),
        };
        let act = match act {
            "." => Act::Closed,
            _ if act.starts_with(">>") => Act::Send(parts(raw(act))),
            _ if act.starts_with("<<") => Act::Expect(parts(raw(act))),
            _ if act.starts_with('>') => Act::Send(parts(&with_end(act))),
            _ if act.starts_with('<') => Act::Expect(parts(&with_end(act))),
            _ => panic!("line {line} of the table is no step: {text}"),
        };
        let conversation = conversations.last_mut().expect("a conversation has a name");
        if is_of_dq {
            let step = conversation.steps.last_mut().expect("it stands instead of another step");
            assert_eq!(step.client, client, "line {line}");
            step.of_dq = Some(act);
        } else {
            conversation.steps.push(Step { line, client, act, of_dq: None });
        }
    }
    conversations
}

fn raw(act: &str) -> &str {
    act[2..].strip_prefix(' ').expect("a blank follows the sign")
}

fn with_end(act: &str) -> String {
    format!("{}\\r\\n", act[1..].strip_prefix(' ').unwrap_or(&act[1..]))
}

fn parts(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => {
                let (byte, length) = match rest.as_bytes()[0] {
                    b'r' => (b'\r', 1),
                    b'n' => (b'\n', 1),
                    b't' => (b'\t', 1),
                    b'0' => (0, 1),
                    b'\\' => (b'\\', 1),
                    b'x' => (u8::from_str_radix(&rest[1..3], 16).unwrap(), 3),
                    other => panic!("no such escape: {}", char::from(other)),
                };
                bytes.push(byte);
                rest = &rest[length..];
            }
            '{' => {
                let (name, after) = rest.split_once('}').expect("a brace is closed");
                rest = after;
                if let Some((byte, count)) = name.split_once('*') {
                    bytes.extend(byte.repeat(count.parse().unwrap()).bytes());
                    continue;
                }
                parts.push(Part::Bytes(std::mem::take(&mut bytes)));
                parts.push(match name {
                    "?" => Part::AnyNumber,
                    "text" => Part::AnyText,
                    "length" => Part::Length,
                    name => Part::Named(name.to_owned()),
                });
            }
            c => bytes.extend(c.to_string().bytes()),
        }
    }
    parts.push(Part::Bytes(bytes));
    parts
}

/// Returns the bytes to send.
pub fn sent(parts: &[Part], numbers: &Numbers) -> Vec<u8> {
    let of_part = |part: &Part| match part {
        Part::Bytes(bytes) => bytes.clone(),
        Part::Named(name) => numbers.get(name).expect("a number comes before it is sent").clone(),
        _ => panic!("a client sends no wildcard"),
    };
    parts.iter().flat_map(of_part).collect()
}

/// How bytes compare with what is expected.
#[derive(Debug, PartialEq, Eq)]
pub enum Match {
    /// The bytes begin with all that is expected. The value is the length of the expected part.
    Whole(usize),
    /// More bytes are needed.
    Partial,
    Mismatch,
}

/// Compares bytes with what is expected, and learns the numbers of new names.
pub fn compare(parts: &[Part], bytes: &[u8], numbers: &mut Numbers) -> Match {
    let mut place = 0;
    for part in parts {
        let rest = &bytes[place..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        place += match part {
            Part::Bytes(expected) => match expected.iter().zip(rest).all(|(a, b)| a == b) {
                true if rest.len() >= expected.len() => expected.len(),
                true => return Match::Partial,
                false => return Match::Mismatch,
            },
            Part::AnyText => match rest.iter().position(|byte| b"\n\"".contains(byte)) {
                Some(length) => length,
                None => return Match::Partial,
            },
            // A number is complete when a byte follows that is not a digit. Without such a byte, more bytes are needed.
            Part::Named(_) | Part::AnyNumber | Part::Length if digits == rest.len() => return Match::Partial,
            Part::Named(_) | Part::AnyNumber | Part::Length if digits == 0 => return Match::Mismatch,
            Part::Named(name) => {
                let known = numbers.entry(name.clone()).or_insert_with(|| rest[..digits].to_vec());
                if *known != rest[..digits] {
                    return Match::Mismatch;
                }
                digits
            }
            Part::AnyNumber | Part::Length => digits,
        };
    }
    Match::Whole(place)
}

/// Plays a conversation, and returns what each connection got. A difference is an error.
pub fn play(
    conversation: &Conversation,
    server: Server,
    connect: impl Fn() -> TcpStream,
) -> Result<HashMap<u8, Vec<u8>>, String> {
    let mut clients: HashMap<u8, (TcpStream, Vec<u8>)> = HashMap::new();
    let mut got: HashMap<u8, Vec<u8>> = HashMap::new();
    let mut numbers = Numbers::new();
    for Step { line, client, act, of_dq } in &conversation.steps {
        let act = of_dq.as_ref().filter(|_| server == Server::Dq).unwrap_or(act);
        let (stream, unread) = clients.entry(*client).or_insert_with(|| {
            let stream = connect();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_nodelay(true).unwrap();
            (stream, Vec::new())
        });
        let failed = |why: String, unread: &[u8]| {
            let unread = &unread[..unread.len().min(300)];
            format!("{:?}, line {line}: {why}, and got \"{}\"", conversation.name, unread.escape_ascii())
        };
        let mut read = |unread: &mut Vec<u8>| {
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes).map_err(|error| failed(error.to_string(), unread))?;
            unread.extend_from_slice(&bytes[..count]);
            Ok::<_, String>(count)
        };
        match act {
            Act::Send(parts) => {
                stream.write_all(&sent(parts, &numbers)).map_err(|error| failed(error.to_string(), unread))?
            }
            Act::Expect(parts) => loop {
                match compare(parts, unread, &mut numbers) {
                    Match::Whole(length) => {
                        got.entry(*client).or_default().extend(unread.drain(..length));
                        break;
                    }
                    Match::Mismatch => return Err(failed("another answer is expected".to_owned(), unread)),
                    Match::Partial => {
                        if read(unread)? == 0 {
                            return Err(failed("the connection was closed".to_owned(), unread));
                        }
                    }
                }
            },
            Act::Closed => {
                if read(unread)? != 0 {
                    return Err(failed("the connection was not closed".to_owned(), unread));
                }
            }
        }
    }
    // A connection must get only the expected bytes. The player sends `quit`, and reads all bytes that are left.
    for (client, (mut stream, mut unread)) in clients {
        let closed =
            conversation.steps.iter().any(|step| step.client == client && matches!(step.act, Act::Closed));
        if closed {
            continue;
        }
        let _ = stream.write_all(b"quit\r\n");
        stream.read_to_end(&mut unread).map_err(|error| format!("{:?}: {error}", conversation.name))?;
        if !unread.is_empty() {
            let shown = unread.escape_ascii();
            return Err(format!(
                "{:?}: client {client} got \"{shown}\" beside what it expects",
                conversation.name
            ));
        }
    }
    Ok(got)
}
