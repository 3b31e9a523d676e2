//! What clients of a pull topic send and get: over dq's TCP port, over HTTP, and with beanstalkd's protocol (to
//! beanstalkd itself, or to dq's port for its clients).

use std::borrow::Cow;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::super::daemon::PULL_TOPIC as TOPIC;
use super::super::workloads::{JobTemplate, head_of, post};
use protocol::beanstalk::BeanstalkResponse;
use protocol::dq::Framing;

/// The longest answer that is read, in bytes.
const ANSWER_MAX: usize = 16 << 20;

/// The lease of a job, in seconds: longer than any measurement.
const LEASE_S: u64 = 3600;

/// The kind of a request. How its answer is read depends on the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PullCommandKind {
    Add,
    Reserve,
    Ack,
}

/// A job that a client has reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PulledJob {
    /// The number with which the job was added.
    pub number: u64,
    /// What an ack needs besides the number: the token, or beanstalkd's id of the job.
    pub proof: String,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PullAnswer {
    /// The request was done.
    Done,
    /// The reserved jobs.
    Jobs(Vec<PulledJob>),
    /// The request was refused. This is the text of the answer.
    Refused(String),
}

/// The requests of the clients, and how their answers are read.
pub(super) trait PullProtocol: Sync {
    /// Appends a request that stores the job with this number.
    fn add(&self, number: u64, delay: Duration, out: &mut Vec<u8>);

    /// Appends requests that reserve up to `max` jobs together, and wait for the first job. Returns how many answers
    /// will come.
    fn reserve(&self, max: usize, wait: Duration, out: &mut Vec<u8>) -> usize;

    /// Appends a request that says that a job is done.
    fn ack(&self, job: &PulledJob, out: &mut Vec<u8>);

    /// Reads the first answer. Returns how many bytes it has. `None`: the answer is not complete.
    fn answer(&self, kind: PullCommandKind, bytes: &[u8]) -> Result<Option<(usize, PullAnswer)>>;
}

/// Returns the text of an unexpected answer.
fn refused(bytes: &[u8]) -> PullAnswer {
    PullAnswer::Refused(String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned())
}

/// A job in an answer of dq. The other fields are not read.
#[derive(Deserialize)]
struct ReserveAnswerJob<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    token: Cow<'a, str>,
}

/// The field with the jobs in an answer of dq, over TCP or HTTP.
#[derive(Deserialize)]
struct ReserveAnswer<'a> {
    #[serde(borrow, alias = "data")]
    jobs: Vec<ReserveAnswerJob<'a>>,
}

fn reserved(json: &[u8]) -> Result<PullAnswer> {
    let answer: ReserveAnswer<'_> = serde_json::from_slice(json).context("an answer to a reserve")?;
    let job = |job: ReserveAnswerJob<'_>| {
        Ok(PulledJob { number: job.id.parse().context("the id of a job")?, proof: job.token.into_owned() })
    };
    Ok(PullAnswer::Jobs(answer.jobs.into_iter().map(job).collect::<Result<_>>()?))
}

/// dq's TCP port.
#[derive(Debug)]
pub(super) struct TcpPullProtocol {
    body: String,
}

impl TcpPullProtocol {
    pub(super) fn new(size: u32) -> TcpPullProtocol {
        TcpPullProtocol { body: JobTemplate::body(size as usize) }
    }
}

fn frame(json: &str, out: &mut Vec<u8>) {
    let framed = Framing::Binary.append(json.as_bytes(), out);
    debug_assert!(framed);
}

impl PullProtocol for TcpPullProtocol {
    fn add(&self, number: u64, delay: Duration, out: &mut Vec<u8>) {
        let (body, delay_ms) = (&self.body, delay.as_millis());
        let json = format!(
            r#"{{"cmd":"add","topic":"{TOPIC}","id":"{number}","delay_ms":{delay_ms},"body":{body}}}"#
        );
        frame(&json, out);
    }

    fn reserve(&self, max: usize, wait: Duration, out: &mut Vec<u8>) -> usize {
        let wait_s = wait.as_secs();
        let json = format!(
            r#"{{"cmd":"reserve","topic":"{TOPIC}","max":{max},"wait":"{wait_s}s","lease":"{LEASE_S}s"}}"#
        );
        frame(&json, out);
        1
    }

    fn ack(&self, job: &PulledJob, out: &mut Vec<u8>) {
        let PulledJob { number, proof } = job;
        frame(&format!(r#"{{"cmd":"ack","topic":"{TOPIC}","id":"{number}","token":"{proof}"}}"#), out);
    }

    fn answer(&self, kind: PullCommandKind, bytes: &[u8]) -> Result<Option<(usize, PullAnswer)>> {
        let Some(json) = Framing::Binary.frame(bytes, ANSWER_MAX)? else { return Ok(None) };
        let (end, text) = (json.end, &bytes[json]);
        let is_done = text.starts_with(b"{\"code\":1");
        let answer = match kind {
            _ if !is_done => refused(text),
            PullCommandKind::Reserve => reserved(text)?,
            PullCommandKind::Add | PullCommandKind::Ack => PullAnswer::Done,
        };
        Ok(Some((end, answer)))
    }
}

/// The HTTP API.
#[derive(Debug)]
pub(super) struct HttpPullProtocol {
    body: String,
}

impl HttpPullProtocol {
    pub(super) fn new(size: u32) -> HttpPullProtocol {
        HttpPullProtocol { body: JobTemplate::body(size as usize) }
    }
}

impl PullProtocol for HttpPullProtocol {
    fn add(&self, number: u64, delay: Duration, out: &mut Vec<u8>) {
        let (body, delay_s) = (&self.body, delay.as_secs_f64());
        let json = format!(r#"{{"id":"{number}","delay":{delay_s:.3},"body":{body}}}"#);
        post(&format!("/v1/topics/{TOPIC}/jobs"), &json, out);
    }

    fn reserve(&self, max: usize, wait: Duration, out: &mut Vec<u8>) -> usize {
        let json = format!(r#"{{"max":{max},"wait":"{}s","lease":"{LEASE_S}s"}}"#, wait.as_secs());
        post(&format!("/v1/topics/{TOPIC}/reserve"), &json, out);
        1
    }

    fn ack(&self, job: &PulledJob, out: &mut Vec<u8>) {
        let PulledJob { number, proof } = job;
        post(&format!("/v1/topics/{TOPIC}/jobs/{number}/ack"), &format!(r#"{{"token":"{proof}"}}"#), out);
    }

    fn answer(&self, kind: PullCommandKind, bytes: &[u8]) -> Result<Option<(usize, PullAnswer)>> {
        let Some((head, length)) = head_of(bytes) else { return Ok(None) };
        let Some(body) = bytes.get(head..head + length) else { return Ok(None) };
        let answer = match kind {
            _ if bytes.get(9) != Some(&b'2') => refused(&bytes[..head + length]),
            PullCommandKind::Reserve => reserved(body)?,
            PullCommandKind::Add | PullCommandKind::Ack => PullAnswer::Done,
        };
        Ok(Some((head + length, answer)))
    }
}

/// beanstalkd's protocol. It reserves one job at a time, so a client sends several commands at once. A body begins with
/// the number of its job, because beanstalkd chooses the ids.
#[derive(Debug)]
pub(super) struct BeanstalkPullProtocol {
    size: usize,
}

/// The number of dq's priority `normal`. This number is one of the three levels. A number that is not a level causes
/// more work in dq, for example a note about the job.
const NORMAL_PRIORITY: u32 = 1 << 31;

impl BeanstalkPullProtocol {
    pub(super) fn new(size: u32) -> BeanstalkPullProtocol {
        BeanstalkPullProtocol { size: size as usize }
    }
}

impl PullProtocol for BeanstalkPullProtocol {
    fn add(&self, number: u64, delay: Duration, out: &mut Vec<u8>) {
        let (delay_s, size) = (delay.as_secs(), self.size);
        let body = format!("{number:<size$}");
        // Writing to memory does not fail.
        let _ = write!(out, "put {NORMAL_PRIORITY} {delay_s} {LEASE_S} {}\r\n{body}\r\n", body.len());
    }

    fn reserve(&self, max: usize, wait: Duration, out: &mut Vec<u8>) -> usize {
        // Like a client of dq, the client waits only for the first job. Further jobs come with the same answers only if
        // they are already there.
        let _ = write!(out, "reserve-with-timeout {}\r\n", wait.as_secs());
        (1..max).for_each(|_| out.extend_from_slice(b"reserve-with-timeout 0\r\n"));
        max
    }

    fn ack(&self, job: &PulledJob, out: &mut Vec<u8>) {
        let _ = write!(out, "delete {}\r\n", job.proof);
    }

    fn answer(&self, kind: PullCommandKind, bytes: &[u8]) -> Result<Option<(usize, PullAnswer)>> {
        let Some((response, length)) = BeanstalkResponse::parse(bytes).context("a response")? else {
            return Ok(None);
        };
        let answer = match (kind, response) {
            (PullCommandKind::Add, BeanstalkResponse::Inserted(_))
            | (PullCommandKind::Ack, BeanstalkResponse::Deleted) => PullAnswer::Done,
            (PullCommandKind::Reserve, BeanstalkResponse::TimedOut) => PullAnswer::Jobs(Vec::new()),
            (PullCommandKind::Reserve, BeanstalkResponse::Reserved { id, body }) => {
                let Some(number) = std::str::from_utf8(&body).ok().and_then(|b| b.trim_end().parse().ok())
                else {
                    bail!("job {id} has a body that nobody has put");
                };
                PullAnswer::Jobs(vec![PulledJob { number, proof: id.to_string() }])
            }
            _ => refused(&bytes[..length]),
        };
        Ok(Some((length, answer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u64, proof: &str) -> PulledJob {
        PulledJob { number, proof: proof.to_owned() }
    }

    #[test]
    fn jobs_are_read_from_the_answers_of_each_protocol() {
        let tcp = TcpPullProtocol::new(12);
        let json = br#"{"code":1,"msg":"succ","data":[{"topic":"default","id":"7","body":{"id":"8"},"token":"AQ"}]}"#;
        let mut framed = Vec::new();
        assert!(Framing::Binary.append(json, &mut framed));
        let jobs = PullAnswer::Jobs(vec![job(7, "AQ")]);
        assert_eq!(tcp.answer(PullCommandKind::Reserve, &framed[..framed.len() - 1]).unwrap(), None);
        assert_eq!(tcp.answer(PullCommandKind::Reserve, &framed).unwrap(), Some((framed.len(), jobs)));
        let (mut gone, text) = (Vec::new(), r#"{"code":0,"err":"gone"}"#);
        assert!(Framing::Binary.append(text.as_bytes(), &mut gone));
        let answer = tcp.answer(PullCommandKind::Ack, &gone).unwrap();
        assert_eq!(answer, Some((gone.len(), PullAnswer::Refused(text.to_owned()))));

        let http = HttpPullProtocol::new(12);
        let whole =
            b"HTTP/1.1 200 OK\r\ncontent-length: 36\r\n\r\n{\"jobs\":[{\"id\":\"7\",\"token\":\"A/+\"}]} ";
        let jobs = PullAnswer::Jobs(vec![job(7, "A/+")]);
        assert_eq!(http.answer(PullCommandKind::Reserve, whole).unwrap(), Some((whole.len(), jobs)));
        assert_eq!(http.answer(PullCommandKind::Reserve, &whole[..60]).unwrap(), None);

        let beanstalk = BeanstalkPullProtocol::new(12);
        let two = b"RESERVED 3 12\r\n7           \r\nTIMED_OUT\r\n";
        let jobs = PullAnswer::Jobs(vec![job(7, "3")]);
        assert_eq!(beanstalk.answer(PullCommandKind::Reserve, two).unwrap(), Some((29, jobs)));
        let none = PullAnswer::Jobs(Vec::new());
        assert_eq!(beanstalk.answer(PullCommandKind::Reserve, &two[29..]).unwrap(), Some((11, none)));
        let answer = beanstalk.answer(PullCommandKind::Ack, b"NOT_FOUND\r\n").unwrap();
        assert_eq!(answer, Some((11, PullAnswer::Refused("NOT_FOUND\r\n".to_owned()))));
    }
}
