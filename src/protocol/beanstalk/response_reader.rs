//! Reads responses, as a client does. A server needs this reader only to check its own responses.

use std::borrow::Cow;

use super::number::unsigned;
use super::response::{BeanstalkResponse, WORDS};
use super::tube::TubeName;
use super::yaml::YamlDocument;

/// The bytes are not a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are no response of beanstalkd")]
pub struct BeanstalkResponseError;

impl<'a> BeanstalkResponse<'a> {
    /// Reads the first response of `bytes`, and returns it with its length. None: the response has not arrived in full.
    pub fn parse(bytes: &'a [u8]) -> Result<Option<(BeanstalkResponse<'a>, usize)>, BeanstalkResponseError> {
        let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
        let (line, rest) = (&bytes[..end], &bytes[end + 2..]);
        let (word, arguments) = match line.iter().position(|byte| *byte == b' ') {
            Some(blank) => (&line[..blank], Some(&line[blank + 1..])),
            None => (line, None),
        };
        let Some(arguments) = arguments else {
            let word =
                WORDS.iter().find(|(text, _)| text.as_bytes() == word).ok_or(BeanstalkResponseError)?;
            return Ok(Some((word.1.clone(), end + 2)));
        };
        let numbers: Option<Vec<u64>> = arguments.split(|byte| *byte == b' ').map(number).collect();
        let response = match (word, numbers.as_deref().unwrap_or_default()) {
            (b"INSERTED", [id]) => BeanstalkResponse::Inserted(*id),
            (b"BURIED", [id]) => BeanstalkResponse::PutBuried(*id),
            (b"WATCHING", [count]) => BeanstalkResponse::Watching(*count),
            (b"KICKED", [count]) => BeanstalkResponse::Kicked(*count),
            (b"USING", _) => {
                BeanstalkResponse::Using(TubeName::new(arguments).ok_or(BeanstalkResponseError)?)
            }
            (b"RESERVED" | b"FOUND" | b"OK", [of_job @ .., size]) => {
                let Some(block) = block(rest, *size)? else { return Ok(None) };
                let body = Cow::Borrowed(block);
                let response = match (word, of_job) {
                    (b"RESERVED", [id]) => BeanstalkResponse::Reserved { id: *id, body },
                    (b"FOUND", [id]) => BeanstalkResponse::Found { id: *id, body },
                    (b"OK", []) => {
                        BeanstalkResponse::Ok(YamlDocument::parse(block).ok_or(BeanstalkResponseError)?)
                    }
                    _ => return Err(BeanstalkResponseError),
                };
                return Ok(Some((response, end + 2 + block.len() + 2)));
            }
            _ => return Err(BeanstalkResponseError),
        };
        Ok(Some((response, end + 2)))
    }
}

fn number(mut text: &[u8]) -> Option<u64> {
    let is_number = text.first().is_some_and(u8::is_ascii_digit);
    unsigned(&mut text, u64::MAX).filter(|_| is_number && text.is_empty())
}

/// Returns the `size` bytes before a CRLF. None: these bytes have not arrived in full.
fn block(bytes: &[u8], size: u64) -> Result<Option<&[u8]>, BeanstalkResponseError> {
    let Some(size) = usize::try_from(size).ok().filter(|size| bytes.len().saturating_sub(*size) >= 2) else {
        return Ok(None);
    };
    match &bytes[size..size + 2] {
        b"\r\n" => Ok(Some(&bytes[..size])),
        _ => Err(BeanstalkResponseError),
    }
}
