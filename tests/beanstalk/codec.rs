//! The codec follows the table: it understands what clients send, refuses what beanstalkd refuses, and writes what
//! beanstalkd answers.

use std::collections::BTreeMap;

use protocol::beanstalk::{BeanstalkCommand, BeanstalkCommandError, BeanstalkDecoder, BeanstalkResponse};

use crate::conversation::{Act, Conversation, Match, Numbers, Part, compare, sent, table};

/// What one connection of a conversation sends, and what it gets.
#[derive(Default)]
struct Exchange {
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Returns the exchanges of a conversation, with numbers in place of names, and with values in place of wildcards.
fn exchanges(conversation: &Conversation) -> BTreeMap<u8, Exchange> {
    let mut numbers = Numbers::new();
    let mut exchanges: BTreeMap<u8, Exchange> = BTreeMap::new();
    for (place, step) in conversation.steps.iter().enumerate() {
        match &step.act {
            Act::Send(parts) => {
                let exchange = exchanges.entry(step.client).or_default();
                exchange.input.extend(sent(parts, &numbers));
            }
            Act::Expect(parts) => {
                let next = conversation.steps.get(place + 1);
                let bytes = filled(parts, &mut numbers, next.map(|step| &step.act));
                // The player must accept the bytes that are filled in here.
                assert_eq!(
                    compare(parts, &bytes, &mut numbers),
                    Match::Whole(bytes.len()),
                    "line {}",
                    step.line
                );
                exchanges.entry(step.client).or_default().output.extend(bytes);
            }
            Act::Closed => {}
        }
    }
    exchanges
}

fn filled(parts: &[Part], numbers: &mut Numbers, next: Option<&Act>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        match part {
            Part::Bytes(some) => bytes.extend(some),
            Part::AnyNumber => bytes.extend(b"7"),
            Part::AnyText => bytes.extend(b"text"),
            Part::Named(name) => {
                let new = (numbers.len() + 41).to_string();
                bytes.extend(numbers.entry(name.clone()).or_insert_with(|| new.into_bytes()).iter());
            }
            Part::Length => {
                let Some(Act::Expect(next)) = next else { panic!("bytes follow their length") };
                let length = filled(next, numbers, None).len() - 2;
                bytes.extend(length.to_string().bytes());
            }
        }
    }
    bytes
}

type Decoded = Vec<Result<BeanstalkCommand, BeanstalkCommandError>>;

fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Decoded {
    let mut decoder = BeanstalkDecoder::new(65535);
    let mut decoded = Vec::new();
    for mut piece in pieces {
        while let Some(command) = decoder.decode(&mut piece) {
            decoded.push(command);
        }
    }
    decoded
}

/// Returns true if a server may answer the command with this response.
fn is_answer(command: &BeanstalkCommand, response: &BeanstalkResponse<'_>) -> bool {
    use {BeanstalkCommand as C, BeanstalkResponse as R};
    match response {
        R::Inserted(_) | R::PutBuried(_) | R::Draining => matches!(command, C::Put(_)),
        R::Using(tube) => match command {
            C::Use(used) => used == tube,
            command => *command == C::ListTubeUsed,
        },
        R::Reserved { .. } => matches!(command, C::Reserve | C::ReserveWithTimeout(_) | C::ReserveJob(_)),
        R::DeadlineSoon => matches!(command, C::Reserve | C::ReserveWithTimeout(_)),
        R::TimedOut => matches!(command, C::ReserveWithTimeout(_)),
        R::Found { .. } => {
            matches!(command, C::Peek(_) | C::PeekReady | C::PeekDelayed | C::PeekBuried)
        }
        R::Watching(_) => matches!(command, C::Watch(_) | C::Ignore(_)),
        R::NotIgnored => matches!(command, C::Ignore(_)),
        R::Kicked(_) => matches!(command, C::Kick(_)),
        R::JobKicked => matches!(command, C::KickJob(_)),
        R::Deleted => matches!(command, C::Delete(_)),
        R::Released => matches!(command, C::Release { .. }),
        R::Buried => matches!(command, C::Bury { .. }),
        R::Touched => matches!(command, C::Touch(_)),
        R::Paused => matches!(command, C::PauseTube { .. }),
        R::Ok(_) => matches!(
            command,
            C::Stats | C::StatsJob(_) | C::StatsTube(_) | C::ListTubes | C::ListTubesWatched
        ),
        R::NotFound => !matches!(
            command,
            C::Put(_) | C::Use(_) | C::Reserve | C::ReserveWithTimeout(_) | C::Watch(_) | C::Quit | C::Stats
        ),
        // The other responses are errors that the codec itself finds.
        _ => false,
    }
}

#[test]
fn the_codec_follows_the_table() {
    for conversation in table() {
        let name = &conversation.name;
        for Exchange { input, output } in exchanges(&conversation).values() {
            let mut rest = &output[..];
            for (place, decoded) in decode([&input[..]]).iter().enumerate() {
                if *decoded == Ok(BeanstalkCommand::Quit) {
                    assert!(rest.is_empty(), "{name}");
                    break;
                }
                let parsed = BeanstalkResponse::parse(rest).unwrap_or_else(|error| panic!("{name}: {error}"));
                let (response, length) = parsed.unwrap_or_else(|| panic!("{name}: no answer to {decoded:?}"));
                match decoded {
                    Ok(command) => {
                        assert!(is_answer(command, &response), "{name}, {place}: {command:?} {response:?}");
                    }
                    Err(error) => assert_eq!(BeanstalkResponse::from(*error), response, "{name}, {place}"),
                }
                let mut written = Vec::new();
                response.append(&mut written);
                assert_eq!(written, rest[..length], "{name}, {place}: {response:?}");
                assert_eq!(BeanstalkResponse::parse(&rest[..length - 1]), Ok(None), "{name}, {place}");
                rest = &rest[length..];
            }
            assert!(rest.is_empty(), "{name}: \"{}\" has no command", rest.escape_ascii());
        }
    }
}

#[test]
fn the_table_may_be_cut_anywhere() {
    for conversation in table() {
        for Exchange { input, .. } in exchanges(&conversation).values() {
            let whole = decode([&input[..]]);
            assert!(decode(input.chunks(1)) == whole, "{}", conversation.name);
            // A long input has a body that repeats one byte. All places in such a body are alike, so the test tries
            // only some of them.
            let step = 1 + input.len() / 500;
            for cut in (0..input.len()).step_by(step) {
                let (begin, end) = input.split_at(cut);
                assert!(decode([begin, end]) == whole, "{}, cut at {cut}", conversation.name);
            }
        }
    }
}

#[test]
fn the_table_has_every_command_and_error() {
    let commands = "put use reserve reserve-with-timeout reserve-job delete release bury touch watch ignore peek \
                    peek-ready peek-delayed peek-buried kick kick-job stats-job stats-tube stats list-tubes \
                    list-tube-used list-tubes-watched pause-tube quit";
    let answers = "INSERTED BURIED USING RESERVED DELETED RELEASED TOUCHED WATCHING NOT_IGNORED FOUND KICKED OK \
                   PAUSED NOT_FOUND DEADLINE_SOON TIMED_OUT BAD_FORMAT UNKNOWN_COMMAND JOB_TOO_BIG EXPECTED_CRLF";
    let all: Vec<_> = table().iter().flat_map(|one| exchanges(one).into_values()).collect();
    let has = |bytes: &[u8], word: &str| {
        let lines = bytes.split(|byte| *byte == b'\n');
        lines.map(<[u8]>::trim_ascii).any(|line| line.split(|b| *b == b' ').next() == Some(word.as_bytes()))
    };
    for command in commands.split_whitespace() {
        assert!(all.iter().any(|exchange| has(&exchange.input, command)), "{command}");
    }
    for answer in answers.split_whitespace() {
        assert!(all.iter().any(|exchange| has(&exchange.output, answer)), "{answer}");
    }
}
