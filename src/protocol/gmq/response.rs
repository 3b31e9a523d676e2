//! The responses, and how they are written.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::request::RequestId;

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GmqResponse<'a> {
    /// The answer to a push: the job is stored.
    Pushed,
    /// The answer to a pop: this job.
    Popped(PoppedJob<'a>),
    /// The answer to a pop: no topic had a job in time.
    Empty,
    /// The answer to an ack: the job is done.
    Acked,
    /// The answer to any call: an error, in these words.
    Failed(&'a str),
}

/// A job as a pop returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoppedJob<'a> {
    /// The id.
    pub id: &'a str,
    /// The topic.
    pub topic: &'a str,
    /// The body.
    pub body: &'a str,
    /// The delay with which the job was pushed.
    pub delay: Duration,
    /// How long the lease of the job lasts. Zero: the job has no lease.
    pub ttr: Duration,
    /// How often the job was popped before.
    pub consume_num: u64,
}

/// What gmq-redis writes for the state of a job that is leased.
const RESERVED: &str = "3";

/// A map of strings, in the order in which Go writes it.
#[derive(Serialize)]
struct GmqJobMap<'a> {
    #[serde(rename = "TTR")]
    ttr: String,
    body: &'a str,
    consume_num: String,
    delay: String,
    id: &'a str,
    status: &'a str,
    topic: &'a str,
}

impl Serialize for PoppedJob<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let map = GmqJobMap {
            ttr: self.ttr.as_secs().to_string(),
            body: self.body,
            consume_num: self.consume_num.to_string(),
            delay: self.delay.as_secs().to_string(),
            id: self.id,
            status: RESERVED,
            topic: self.topic,
        };
        map.serialize(to)
    }
}

impl GmqResponse<'_> {
    /// Appends the response to the request with this id, as one line.
    pub fn append(&self, id: &RequestId, out: &mut Vec<u8>) {
        let (result, error) = match self {
            GmqResponse::Pushed => (json(&"success"), None),
            GmqResponse::Popped(job) => (json(job), None),
            GmqResponse::Acked => (json(&true), None),
            GmqResponse::Empty => (json(&()), Some("empty")),
            GmqResponse::Failed(error) => (json(&()), Some(*error)),
        };
        let line = format!("{{\"id\":{id},\"result\":{result},\"error\":{}}}\n", json(&error));
        out.extend_from_slice(line.as_bytes());
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("responses are plain values")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gmq::GmqDecoder;

    fn written(response: &GmqResponse<'_>, id: &str) -> String {
        let request = format!(r#"{{"method":"Service.Ack","params":["1"],"id":{id}}}"#);
        let request = GmqDecoder::new(1000).decode(&mut request.as_bytes()).unwrap().unwrap();
        let mut out = Vec::new();
        response.append(&request.id, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn responses_are_lines_as_go_writes_them() {
        let job = PoppedJob {
            id: "1",
            topic: "t",
            body: "{\"a\":\"\n\"}",
            delay: Duration::from_secs(5),
            ttr: Duration::from_secs(60),
            consume_num: 2,
        };
        let map = r#"{"TTR":"60","body":"{\"a\":\"\n\"}","consume_num":"2","delay":"5","id":"1","status":"3","topic":"t"}"#;
        for (response, id, line) in [
            (GmqResponse::Pushed, "1", r#"{"id":1,"result":"success","error":null}"#.to_owned()),
            (GmqResponse::Acked, r#""a""#, r#"{"id":"a","result":true,"error":null}"#.to_owned()),
            (GmqResponse::Empty, "null", r#"{"id":null,"result":null,"error":"empty"}"#.to_owned()),
            (
                GmqResponse::Failed("a \"b\""),
                "[1, 2]",
                r#"{"id":[1,2],"result":null,"error":"a \"b\""}"#.to_owned(),
            ),
            (GmqResponse::Popped(job), "18446744073709551616", {
                format!(r#"{{"id":18446744073709551616,"result":{map},"error":null}}"#)
            }),
        ] {
            assert_eq!(written(&response, id), line + "\n");
        }
    }
}
