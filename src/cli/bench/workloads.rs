//! The requests of a measurement's clients: an add to dq over TCP or HTTP, the same work straight to Redis, a callback.

use anyhow::{Result, bail};

use super::load::Workload;
use protocol::dq::Framing;

/// The longest answer that is read, in bytes.
const ANSWER_MAX: usize = 1 << 20;

/// The jobs that are added.
#[derive(Debug, Clone)]
pub(super) struct JobTemplate {
    /// The prefix of the ids, so that two runs never have the same ids.
    pub run: String,
    /// The number of topics: the jobs use `t0`, `t1` … in turn.
    pub topics: u32,
    /// The body, JSON.
    pub body: String,
    /// The delay until a job is due, in milliseconds. It is the first number, plus a random number that is smaller than
    /// the second number.
    pub delay_ms: (u64, u64),
}

impl JobTemplate {
    /// Returns a body of `bytes` bytes.
    pub(super) fn body(bytes: usize) -> String {
        format!("{{\"pad\":\"{}\"}}", "x".repeat(bytes.saturating_sub(10)))
    }

    /// Returns the topic of a job.
    pub(super) fn topic(&self, number: u64) -> String {
        format!("t{}", number % u64::from(self.topics))
    }

    /// Returns the id of a job.
    pub(super) fn id(&self, number: u64) -> String {
        format!("{}{number}", self.run)
    }

    /// Returns when a job is due, in milliseconds from now. The job's number is the seed of the random part. (If the
    /// delay changed by a fixed step from job to job, many jobs could become due at the same moment, at some rates of
    /// adds.)
    pub(super) fn delay(&self, number: u64) -> u64 {
        let (first, span) = self.delay_ms;
        first + if span == 0 { 0 } else { fastrand::Rng::with_seed(number).u64(..span) }
    }
}

/// Adds over dq's TCP port.
#[derive(Debug)]
pub(super) struct TcpAddWorkload(pub JobTemplate);

impl Workload for TcpAddWorkload {
    fn ask(&mut self, number: u64, out: &mut Vec<u8>) {
        let JobTemplate { run, body, .. } = &self.0;
        let (topic, delay) = (self.0.topic(number), self.0.delay(number));
        let json = format!(
            r#"{{"cmd":"add","topic":"{topic}","id":"{run}{number}","delay_ms":{delay},"body":{body}}}"#
        );
        let framing = if json.len() > 9999 { Framing::Binary } else { Framing::Digits };
        let framed = framing.append(json.as_bytes(), out);
        debug_assert!(framed);
    }

    fn answer(&self, bytes: &[u8]) -> Result<Option<(usize, bool)>> {
        let Some(framing) = bytes.first().and_then(|first| Framing::from_first_byte(*first)) else {
            if bytes.is_empty() {
                return Ok(None);
            }
            bail!("dq-server answers {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(80)]));
        };
        let frame = framing.frame(bytes, ANSWER_MAX)?;
        Ok(frame.map(|json| (json.end, bytes[json].starts_with(b"{\"code\":1"))))
    }
}

/// Adds over HTTP.
#[derive(Debug)]
pub(super) struct HttpAddWorkload(pub JobTemplate);

impl Workload for HttpAddWorkload {
    fn ask(&mut self, number: u64, out: &mut Vec<u8>) {
        let JobTemplate { run, body, .. } = &self.0;
        let (topic, delay_s) = (self.0.topic(number), self.0.delay(number) as f64 / 1000.0);
        let json = format!(r#"{{"id":"{run}{number}","delay":{delay_s:.3},"body":{body}}}"#);
        post(&format!("/v1/topics/{topic}/jobs"), &json, out);
    }

    fn answer(&self, bytes: &[u8]) -> Result<Option<(usize, bool)>> {
        http_answer(bytes)
    }
}

/// Pauses or resumes topics. Request number 0 is for `t0`, number 1 for `t1`, and so on.
#[derive(Debug)]
pub(super) struct PauseWorkload(pub &'static str);

impl Workload for PauseWorkload {
    fn ask(&mut self, number: u64, out: &mut Vec<u8>) {
        post(&format!("/v1/topics/t{number}/{}", self.0), "", out);
    }

    fn answer(&self, bytes: &[u8]) -> Result<Option<(usize, bool)>> {
        http_answer(bytes)
    }
}

/// Looks for the records of single jobs, among `count` jobs that have ended.
#[derive(Debug)]
pub(super) struct FindWorkload {
    pub run: &'static str,
    pub count: u64,
}

impl Workload for FindWorkload {
    fn ask(&mut self, number: u64, out: &mut Vec<u8>) {
        let id = fastrand::Rng::with_seed(number).u64(..self.count);
        let head = format!("GET /v1/find?id={}{id} HTTP/1.1\r\nhost: localhost\r\n\r\n", self.run);
        out.extend_from_slice(head.as_bytes());
    }

    fn answer(&self, bytes: &[u8]) -> Result<Option<(usize, bool)>> {
        const FOUND: &[u8] = b"\"outcome\":\"delivered\"";
        let answer = http_answer(bytes)?;
        Ok(answer
            .map(|(length, good)| (length, good && bytes[..length].windows(FOUND.len()).any(|w| w == FOUND))))
    }
}

/// Calls a receiver without dq, to measure the receiver alone. (It uses another path, because these calls belong to no
/// job.)
#[derive(Debug)]
pub(super) struct DirectCallWorkload(pub String);

impl Workload for DirectCallWorkload {
    fn ask(&mut self, _number: u64, out: &mut Vec<u8>) {
        post("/alone", &self.0, out);
    }

    fn answer(&self, bytes: &[u8]) -> Result<Option<(usize, bool)>> {
        http_answer(bytes)
    }
}

/// Appends a POST of JSON.
pub(super) fn post(path: &str, json: &str, out: &mut Vec<u8>) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        json.len()
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(json.as_bytes());
}

/// Returns where the head of an HTTP message ends, and how long the body after it is. `None`: the head is not complete.
pub(super) fn head_of(bytes: &[u8]) -> Option<(usize, usize)> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let lines = bytes[..end].split(|b| *b == b'\n');
    let mut length = lines.filter_map(|line| {
        let colon = line.iter().position(|b| *b == b':')?;
        line[..colon].eq_ignore_ascii_case(b"content-length").then(|| {
            let value = line[colon + 1..].trim_ascii();
            value.iter().fold(0, |n, d| n * 10 + usize::from(d.wrapping_sub(b'0')))
        })
    });
    Some((end, length.next_back().unwrap_or(0)))
}

fn http_answer(bytes: &[u8]) -> Result<Option<(usize, bool)>> {
    let Some((head, body)) = head_of(bytes) else { return Ok(None) };
    let whole = head + body;
    Ok((bytes.len() >= whole).then(|| (whole, bytes.get(9) == Some(&b'2'))))
}

/// The work of an add, sent straight to Redis. It writes the job into a hash, and its due time into a sorted set.
#[derive(Debug)]
pub(super) struct RedisFloorWorkload(pub JobTemplate);

impl Workload for RedisFloorWorkload {
    fn ask(&mut self, number: u64, out: &mut Vec<u8>) {
        let body = &self.0.body;
        let (topic, id) = (self.0.topic(number), self.0.id(number));
        let due = (host::now_ms() as u64 + self.0.delay(number)).to_string();
        command(&["HSET", &format!("bench:b:{topic}"), &id, body], out);
        command(&["ZADD", &format!("bench:d:{topic}"), &due, &id], out);
    }

    fn answer(&self, bytes: &[u8]) -> Result<Option<(usize, bool)>> {
        let mut read = 0;
        let mut good = true;
        // Each request is answered with two lines.
        for _ in 0..2 {
            let Some(end) = bytes[read..].iter().position(|b| *b == b'\n') else { return Ok(None) };
            good &= bytes[read] == b':';
            read += end + 1;
        }
        Ok(Some((read, good)))
    }
}

fn command(words: &[&str], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parser_reads_one_complete_answer_at_a_time() {
        let tcp =
            TcpAddWorkload(JobTemplate { run: String::new(), topics: 1, body: "1".into(), delay_ms: (0, 0) });
        let answer = br#"0036{"code":1,"msg":"succ","data":[]}   0002{}"#;
        assert_eq!(tcp.answer(answer).unwrap(), Some((40, true)));
        assert_eq!(tcp.answer(&answer[40..]).unwrap(), Some((6, false)));
        assert_eq!(tcp.answer(&answer[..39]).unwrap(), None);
        assert!(tcp.answer(b"HTTP").is_err());
        let http = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 503 x\r\n\r\n";
        assert_eq!(http_answer(http).unwrap(), Some((45, true)));
        assert_eq!(http_answer(&http[45..]).unwrap(), Some((18, false)));
        assert_eq!(http_answer(&http[..44]).unwrap(), None);
        let redis = RedisFloorWorkload(tcp.0.clone());
        assert_eq!(redis.answer(b":1\r\n:1\r\n:0").unwrap(), Some((8, true)));
        assert_eq!(redis.answer(b":1\r\n-ERR\r\n").unwrap(), Some((10, false)));
        assert_eq!(redis.answer(b":1\r\n:1").unwrap(), None);
    }
}
