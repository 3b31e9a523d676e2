//! Finds where a request ends, and parses it.

use super::request::GmqRequest;
use crate::bounded::RequestBuffer;

/// The part of a request that a connection has sent so far.
#[derive(Debug)]
pub struct GmqDecoder {
    buffer: RequestBuffer,
    max_request: usize,
    scan: JsonScan,
}

/// Why a connection is closed. The bytes that follow cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GmqDecodeError {
    /// The request begins with another byte than `{`.
    #[error("a request is a JSON object, and does not begin with \"{}\"", .0.escape_ascii())]
    NotAnObject(u8),
    /// The request is longer than this number of bytes.
    #[error("a request is longer than {0} bytes")]
    TooLong(usize),
    /// The request is not JSON, or its method is not a string.
    #[error("a request is not valid: {0}")]
    Malformed(String),
}

/// The state of the search for the last byte of a JSON value.
#[derive(Debug, Default)]
struct JsonScan {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl JsonScan {
    /// Returns how many of the bytes belong to the value, up to its end. None: the value does not end in these bytes.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        for (place, byte) in bytes.iter().enumerate() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_string => self.is_escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(place + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

impl GmqDecoder {
    /// Makes the decoder of a new connection. A request has at most `max_request` bytes.
    pub fn new(max_request: usize) -> GmqDecoder {
        GmqDecoder { buffer: RequestBuffer::new(max_request), max_request, scan: JsonScan::default() }
    }

    /// Returns how many bytes of an incomplete request the decoder has.
    pub fn held(&self) -> usize {
        self.buffer.len()
    }

    /// Reads the next request, and moves `input` to the first byte after it. None: `input` is used up, and the next
    /// request is not complete. The decoder keeps the part of the request that it has read. After an error, the decoder
    /// cannot be used any more.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<GmqRequest>, GmqDecodeError> {
        if self.buffer.is_empty() {
            *input = input.trim_ascii_start();
            match input.first() {
                None => return Ok(None),
                Some(b'{') => {}
                Some(other) => return Err(GmqDecodeError::NotAnObject(*other)),
            }
        }
        // If the request does not end within the allowed bytes, and one more byte has arrived, the request is too long.
        let allowed = self.max_request - self.buffer.len();
        let end = self.scan.end(&input[..allowed.min(input.len())]);
        let Some(end) = end else {
            if input.len() > allowed {
                return Err(GmqDecodeError::TooLong(self.max_request));
            }
            self.buffer.fill(input, usize::MAX);
            return Ok(None);
        };
        self.scan = JsonScan::default();
        // A request that arrives in one piece is not copied.
        let request = if self.buffer.is_empty() {
            let (request, rest) = input.split_at(end);
            *input = rest;
            GmqRequest::parse(request)
        } else {
            let length = self.buffer.len() + end;
            self.buffer.fill(input, length);
            let bytes = self.buffer.take();
            GmqRequest::parse(&bytes)
        };
        request.map(Some).map_err(|error| GmqDecodeError::Malformed(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const MAX: usize = 500;

    /// Decodes pieces one after the other, up to the first error.
    fn decode_all<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<GmqRequest>, Option<GmqDecodeError>) {
        let mut decoder = GmqDecoder::new(MAX);
        let mut requests = Vec::new();
        for mut piece in pieces {
            loop {
                let decoded = decoder.decode(&mut piece);
                assert!(decoder.buffer.capacity() <= MAX);
                match decoded {
                    Ok(Some(request)) => requests.push(request),
                    Ok(None) => break assert!(piece.is_empty()),
                    Err(error) => return (requests, Some(error)),
                }
            }
        }
        (requests, None)
    }

    #[test]
    fn requests_need_no_separator() {
        let one = r#"{"method":"Service.Ack","params":["}]\"{"],"id":1}"#;
        for between in ["", "\n", " \t\r\n"] {
            let bytes = [one, one, one].join(between);
            let (requests, error) = decode_all([bytes.as_bytes()].into_iter());
            assert_eq!((requests.len(), error), (3, None));
        }
    }

    #[test]
    fn what_is_no_object_ends_the_connection() {
        let error = |text: &str| decode_all([text.as_bytes()].into_iter()).1.unwrap();
        assert_eq!(error("[1]"), GmqDecodeError::NotAnObject(b'['));
        assert_eq!(error("GET / HTTP/1.1"), GmqDecodeError::NotAnObject(b'G'));
        for bad in ["{}}", "{]", "{a}", r#"{"method":5}"#, "{\"method\":\"\u{1}\"}"] {
            let error = error(bad);
            assert!(
                matches!(error, GmqDecodeError::Malformed(_) | GmqDecodeError::NotAnObject(b'}')),
                "{error}"
            );
        }
    }

    #[test]
    fn a_request_has_a_greatest_length() {
        let request = |length: usize| {
            let frame = r#"{"method":"Service.Ack","params":[""],"id":1}"#;
            frame.replace("\"\"", &format!("\"{}\"", "x".repeat(length - frame.len())))
        };
        for size in [1, 7, MAX] {
            let (fits, too_long) = (request(MAX), request(MAX + 1));
            assert_eq!(decode_all(fits.as_bytes().chunks(size)).1, None);
            assert_eq!(decode_all(too_long.as_bytes().chunks(size)).1, Some(GmqDecodeError::TooLong(MAX)));
        }
    }

    fn any_request() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            "[a\"\\\\{}\\[\\]é]{0,6}".prop_map(Value::from),
            Just(json!({"id": "a", "topic": "t", "delay": "5", "TTR": 3, "body": "{\"x\":\"}\"}"})),
        ];
        let params =
            leaf.prop_recursive(3, 8, 3, |inner| prop::collection::vec(inner, 0..3).prop_map(Value::from));
        let method =
            prop::sample::select(vec!["Service.Push", "Service.Pop", "Service.Ack", "Service.No", "x"]);
        (method, params.clone(), params, any::<bool>()).prop_map(|(method, params, id, is_pretty)| {
            let request = json!({"method": method, "params": params, "id": id});
            if is_pretty { format!("{request:#}") } else { request.to_string() }
        })
    }

    proptest! {
        #[test]
        fn any_cuts_give_the_same_requests(
            requests in prop::collection::vec(any_request(), 0..5),
            garbage in prop::collection::vec(any::<u8>(), 0..5),
            size in 1usize..40,
        ) {
            let bytes = [requests.concat().as_bytes(), &garbage].concat();
            let whole = decode_all([&bytes[..]].into_iter());
            prop_assert_eq!(&decode_all(bytes.chunks(1)), &whole);
            prop_assert_eq!(&decode_all(bytes.chunks(size)), &whole);
            if requests.iter().all(|request| request.len() <= MAX) {
                prop_assert_eq!(whole.0.len(), requests.len());
            }
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let bytes = [b"{".as_slice(), &bytes].concat();
            let whole = decode_all([&bytes[..]].into_iter());
            prop_assert_eq!(&decode_all(bytes.chunks(3)), &whole);
        }
    }
}
