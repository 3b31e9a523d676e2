//! Reads the commands of one connection from its bytes. The bytes may be cut anywhere.

use super::command::{BeanstalkCommand, BeanstalkCommandError, BeanstalkLine, LINE_MAX, Put, parse};
use crate::bounded::RequestBuffer;

/// The decoder of one connection. It keeps the part of the next command that has arrived: at most one line, or one body
/// of the maximum size.
#[derive(Debug)]
pub struct BeanstalkDecoder {
    max_job_size: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The part of a line that has arrived. Empty: no line has begun.
    Line(Vec<u8>),
    /// The line is longer than [`LINE_MAX`]. The rest of the line is skipped. `after_cr`: the last byte so far is a CR.
    LongLine { after_cr: bool },
    /// The body of a put, of `size` bytes and a CRLF.
    Body { put: Put, size: usize, bytes: RequestBuffer },
    /// The body of a put that is too big. The number is how many bytes are still to come.
    Skipping(u64),
}

impl BeanstalkDecoder {
    /// Makes the decoder of a new connection. A body has at most `max_job_size` bytes. The limit of beanstalkd is
    /// 65535, or the value of its option `-z`.
    pub fn new(max_job_size: u32) -> BeanstalkDecoder {
        BeanstalkDecoder { max_job_size, state: State::Line(Vec::new()) }
    }

    /// Reads the next command, and moves `input` to the first byte after it. None: `input` is used up, and the next
    /// command is not complete. The decoder keeps the part of the command that it has read.
    pub fn decode(&mut self, input: &mut &[u8]) -> Option<Result<BeanstalkCommand, BeanstalkCommandError>> {
        while !input.is_empty() {
            let (state, result) = match std::mem::replace(&mut self.state, State::Line(Vec::new())) {
                State::Line(line) => self.read_line(line, input),
                State::LongLine { after_cr } => skip_line(after_cr, input),
                State::Body { put, size, bytes } => read_body(put, size, bytes, input),
                State::Skipping(left) => skip_body(left, input),
            };
            self.state = state;
            if result.is_some() {
                return result;
            }
        }
        None
    }

    /// Returns how many bytes of an incomplete command the decoder has.
    pub fn held(&self) -> usize {
        match &self.state {
            State::Line(line) => line.len(),
            State::Body { bytes, .. } => bytes.len(),
            State::LongLine { .. } | State::Skipping(_) => 0,
        }
    }

    /// Returns true if no part of a further command has arrived.
    pub fn is_empty(&self) -> bool {
        matches!(&self.state, State::Line(line) if line.is_empty())
    }

    /// Returns the bytes that another decoder must read first, if it continues in the place of this decoder. None: this
    /// decoder is skipping a part of the input, and has not kept this part.
    pub fn unread(&self) -> Option<Vec<u8>> {
        match &self.state {
            State::Line(line) => Some(line.clone()),
            State::Body { put: Put { priority, delay_s, ttr_s, .. }, size, bytes } => {
                let line = format!("put {priority} {delay_s} {ttr_s} {size}\r\n").into_bytes();
                Some([&line, bytes.as_slice()].concat())
            }
            State::LongLine { .. } | State::Skipping(_) => None,
        }
    }

    fn read_line(&self, mut line: Vec<u8>, input: &mut &[u8]) -> DecodeStep {
        if line.capacity() < LINE_MAX {
            line.reserve_exact(LINE_MAX - line.len());
        }
        while let Some((byte, rest)) = input.split_first() {
            *input = rest;
            line.push(*byte);
            if let Some(text) = line.strip_suffix(b"\r\n") {
                let parsed = parse(text, self.max_job_size);
                line.clear();
                return match parsed {
                    Ok(BeanstalkLine::Command(command)) => (State::Line(line), Some(Ok(command))),
                    Ok(BeanstalkLine::Body { put, size }) => {
                        let size = size as usize;
                        (State::Body { put, size, bytes: RequestBuffer::new(size + 2) }, None)
                    }
                    Ok(BeanstalkLine::TooBig { skipped }) => (State::Skipping(skipped), None),
                    Err(error) => (State::Line(line), Some(Err(error))),
                };
            }
            if line.len() == LINE_MAX {
                return (State::LongLine { after_cr: *byte == b'\r' }, None);
            }
        }
        (State::Line(line), None)
    }
}

/// The next state, and what was read.
type DecodeStep = (State, Option<Result<BeanstalkCommand, BeanstalkCommandError>>);

const NEXT_LINE: State = State::Line(Vec::new());

fn skip_line(mut after_cr: bool, input: &mut &[u8]) -> DecodeStep {
    while let Some((byte, rest)) = input.split_first() {
        *input = rest;
        if after_cr && *byte == b'\n' {
            return (NEXT_LINE, Some(Err(BeanstalkCommandError::BadFormat)));
        }
        after_cr = *byte == b'\r';
    }
    (State::LongLine { after_cr }, None)
}

fn read_body(mut put: Put, size: usize, mut bytes: RequestBuffer, input: &mut &[u8]) -> DecodeStep {
    if !bytes.fill(input, size + 2) {
        return (State::Body { put, size, bytes }, None);
    }
    let mut body = bytes.take();
    if !body.ends_with(b"\r\n") {
        return (NEXT_LINE, Some(Err(BeanstalkCommandError::ExpectedCrlf)));
    }
    body.truncate(size);
    put.body = body;
    (NEXT_LINE, Some(Ok(BeanstalkCommand::Put(put))))
}

fn skip_body(left: u64, input: &mut &[u8]) -> DecodeStep {
    let count = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
    *input = &input[count..];
    match left - count as u64 {
        0 => (NEXT_LINE, Some(Err(BeanstalkCommandError::JobTooBig))),
        left => (State::Skipping(left), None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl BeanstalkDecoder {
        fn capacity(&self) -> usize {
            match &self.state {
                State::Line(line) => line.capacity(),
                State::Body { bytes, .. } => bytes.capacity(),
                State::LongLine { .. } | State::Skipping(_) => 0,
            }
        }
    }

    const MAX: u32 = 300;

    /// Decodes pieces of input one after the other, and checks the bound of the memory.
    fn decode_all<'a>(
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Vec<Result<BeanstalkCommand, BeanstalkCommandError>> {
        let mut decoder = BeanstalkDecoder::new(MAX);
        let mut decoded = Vec::new();
        for mut piece in pieces {
            while let Some(command) = decoder.decode(&mut piece) {
                decoded.push(command);
                assert!(decoder.capacity() <= MAX as usize + 2);
            }
            assert!(piece.is_empty());
            assert!(decoder.capacity() <= MAX as usize + 2);
        }
        decoded
    }

    fn one(bytes: &[u8]) -> Vec<Result<BeanstalkCommand, BeanstalkCommandError>> {
        decode_all([bytes].into_iter())
    }

    #[test]
    fn an_announced_body_costs_nothing_until_it_comes() {
        let mut decoder = BeanstalkDecoder::new(1 << 30);
        assert_eq!(decoder.decode(&mut &b"put 0 0 1 1073741824\r\nabc"[..]), None);
        assert!(decoder.capacity() < 10);
        let mut decoder = BeanstalkDecoder::new(10);
        assert_eq!(decoder.decode(&mut &b"put 0 0 1 4294967295\r\nabc"[..]), None);
        assert_eq!(decoder.capacity(), 0);
    }

    #[test]
    fn a_line_ends_at_its_first_crlf() {
        let list = Ok(BeanstalkCommand::ListTubeUsed);
        let bad = Err(BeanstalkCommandError::BadFormat);
        let unknown = Err(BeanstalkCommandError::UnknownCommand);
        for (length, expected) in
            [(222, unknown), (223, bad.clone()), (224, bad.clone()), (1000, bad.clone())]
        {
            let bytes = [&vec![b'a'; length][..], b"\r\nlist-tube-used\r\n"].concat();
            assert_eq!(one(&bytes), [expected, list.clone()], "{length}");
        }
        assert_eq!(one(b"delete 1\rx\r\nlist-tube-used\r\n"), [bad, list]);
        assert_eq!(one(b"list-tube-used\n"), []);
    }

    #[test]
    fn the_next_command_stays_in_the_input() {
        let mut decoder = BeanstalkDecoder::new(MAX);
        let mut input: &[u8] = b"reserve\r\nput 0 0 1 1\r\na\r\nquit\r\n";
        assert_eq!(decoder.decode(&mut input), Some(Ok(BeanstalkCommand::Reserve)));
        assert_eq!(input, b"put 0 0 1 1\r\na\r\nquit\r\n");
        let put = Put { priority: 0, delay_s: 0, ttr_s: 1, body: b"a".to_vec() };
        assert_eq!(decoder.decode(&mut input), Some(Ok(BeanstalkCommand::Put(put))));
        assert_eq!(decoder.decode(&mut input), Some(Ok(BeanstalkCommand::Quit)));
        assert_eq!(decoder.decode(&mut input), None);
    }

    /// Pieces of right and wrong commands.
    fn any_input() -> impl Strategy<Value = Vec<u8>> {
        let word = prop::sample::select(vec![
            "put ",
            "0 0 1 ",
            "3",
            "250",
            "301",
            "999",
            "\r\n",
            "\r",
            "\n",
            "abc\r\n",
            "\0",
            " ",
            "-",
            "delete ",
            "reserve",
            "reserve-with-timeout ",
            "use ",
            "watch a\r\n",
            "kick ",
            "pause-tube a ",
            "quit",
            "stats",
        ]);
        let piece = prop_oneof![
            4 => word.prop_map(|word| word.as_bytes().to_vec()),
            1 => prop::collection::vec(any::<u8>(), 0..20),
            1 => (any::<u8>(), 200usize..320).prop_map(|(byte, count)| vec![byte; count]),
        ];
        prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_cuts_give_the_same_commands(
            bytes in any_input(),
            sizes in prop::collection::vec(1usize..50, 1..40),
        ) {
            let whole = one(&bytes);
            prop_assert_eq!(&decode_all(bytes.chunks(1)), &whole);
            let mut rest = &bytes[..];
            let mut pieces = Vec::new();
            for size in sizes.iter().cycle() {
                if rest.is_empty() { break; }
                let (piece, after) = rest.split_at((*size).min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            prop_assert_eq!(&decode_all(pieces.into_iter()), &whole);
        }

        #[test]
        fn another_decoder_goes_on_with_what_is_unread(bytes in any_input(), cut in 0usize..2000) {
            let whole = one(&bytes);
            let (before, after) = bytes.split_at(cut.min(bytes.len()));
            let mut decoder = BeanstalkDecoder::new(MAX);
            let (mut decoded, mut input) = (Vec::new(), before);
            while let Some(command) = decoder.decode(&mut input) {
                decoded.push(command);
            }
            if let Some(unread) = decoder.unread() {
                prop_assert_eq!(decoder.is_empty(), unread.is_empty());
                decoded.extend(one(&[&unread, after].concat()));
                prop_assert_eq!(decoded, whole);
            }
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..1000)) {
            let whole = one(&bytes);
            prop_assert_eq!(decode_all(bytes.chunks(3)), whole);
        }

        #[test]
        fn any_body_arrives_as_it_is(body in prop::collection::vec(any::<u8>(), 0..=MAX as usize)) {
            let bytes = [format!("put 1 2 0 {}\r\n", body.len()).as_bytes(), &body, b"\r\n"].concat();
            let put = Put { priority: 1, delay_s: 2, ttr_s: 1, body };
            prop_assert_eq!(decode_all(bytes.chunks(5)), [Ok(BeanstalkCommand::Put(put))]);
        }
    }
}
