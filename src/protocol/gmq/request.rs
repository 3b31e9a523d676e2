//! Parses a request: from a JSON object to a call.

use std::fmt;
use std::time::Duration;

use model::job::{JobId, TopicName};
use serde_json::value::RawValue;

pub use super::fields::RpcError;
use super::fields::{NamedMembers, first_parameter, list, object, seconds, text};

/// The most topics that one pop may name.
pub const POP_TOPICS_MAX: usize = 256;

/// The most bytes that the id of a request may have. The id stays in memory until the response. (gmq's clients send
/// numbers.)
const ID_MAX: usize = 256;

/// A request, right or wrong. A wrong request gets a response too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GmqRequest {
    /// The id of the request, which the response repeats.
    pub id: RequestId,
    /// The call, or why it is refused.
    pub call: Result<Call, RpcError>,
}

/// The id of a request: any JSON value, or null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(Box<str>);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// `Service.Push`: store a job. An existing id is an error.
    Push(Push),
    /// `Service.Pop`: lease a job of the first topic that has one. At least one topic is named.
    Pop(Vec<TopicName>),
    /// `Service.Ack`: the job is done.
    Ack(JobId),
}

/// A job as a client pushes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// The topic.
    pub topic: TopicName,
    /// The id. In gmq-redis, an id is unique among the jobs of all topics.
    pub id: JobId,
    /// The body: any text.
    pub body: String,
    /// How long the job is delayed, in whole seconds.
    pub delay: Duration,
    /// How long a lease of the job lasts, in whole seconds. Zero: the client that pops the job keeps it for good.
    pub ttr: Duration,
}

impl GmqRequest {
    /// Parses a JSON object. An error means that Go would close the connection.
    pub(super) fn parse(json: &[u8]) -> Result<GmqRequest, GmqJsonError> {
        let text = std::str::from_utf8(json)?;
        let [method, params, id] = NamedMembers::parse(["method", "params", "id"], text)?.values();
        let method: String = method.map_or(Ok(String::new()), |raw| serde_json::from_str(raw.get()))?;
        let id = RequestId(id.map_or_else(|| "null".into(), |raw| without_blanks(raw.get()).into()));
        if id.0.len() > ID_MAX {
            return Err(GmqJsonError::LongId(id.0.len()));
        }
        Ok(GmqRequest { id, call: call(&method, params) })
    }
}

/// The JSON of a request is wrong.
#[derive(Debug, thiserror::Error)]
pub(super) enum GmqJsonError {
    #[error(transparent)]
    Encoding(#[from] std::str::Utf8Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("the id of the request has {0} bytes: it may have {ID_MAX}")]
    LongId(usize),
}

fn call(method: &str, params: Option<&RawValue>) -> Result<Call, RpcError> {
    let refused = |problem: &str| {
        let shown: String = method.chars().take(100).collect();
        RpcError(format!("rpc: {problem} {shown}"))
    };
    match method.rsplit_once('.') {
        None => Err(refused("service/method request ill-formed:")),
        Some(("Service", "Push")) => push(first_parameter(params)?),
        Some(("Service", "Pop")) => pop(first_parameter(params)?),
        Some(("Service", "Ack")) => Ok(Call::Ack(job_id(first_parameter(params)?)?)),
        Some(("Service", _)) => Err(refused("can't find method")),
        Some(_) => Err(refused("can't find service")),
    }
}

fn push(parameter: Option<&RawValue>) -> Result<Call, RpcError> {
    let [id, topic, body, delay, ttr] = object(["id", "topic", "body", "delay", "TTR"], parameter)?;
    let id = job_id(id)?;
    let topic = match text(topic)? {
        topic if topic.is_empty() => return Err(RpcError("job.topic is empty".to_owned())),
        topic => topic_name(&topic)?,
    };
    let (delay, ttr) = (seconds("delay", delay)?, seconds("TTR", ttr)?);
    Ok(Call::Push(Push { topic, id, body: text(body)?, delay, ttr }))
}

/// Parses the topics of a pop: a list, or a single topic.
fn pop(parameter: Option<&RawValue>) -> Result<Call, RpcError> {
    let topics = match parameter {
        Some(raw) if raw.get().starts_with(['[', '{', 't', 'f']) => list(raw, "[]string")?,
        Some(raw) => vec![raw],
        None => Vec::new(),
    };
    match topics.len() {
        0 => return Err(RpcError("topics is empty".to_owned())),
        1..=POP_TOPICS_MAX => {}
        count => {
            return Err(RpcError(format!("topics has {count} topics, which is more than {POP_TOPICS_MAX}")));
        }
    }
    topics.into_iter().map(|topic| topic_name(&text(Some(topic))?)).collect::<Result<_, _>>().map(Call::Pop)
}

fn topic_name(name: &str) -> Result<TopicName, RpcError> {
    TopicName::new(name).map_err(|error| RpcError(error.to_string()))
}

fn job_id(raw: Option<&RawValue>) -> Result<JobId, RpcError> {
    match text(raw)? {
        id if id.is_empty() => Err(RpcError("job.id is empty".to_owned())),
        id => JobId::new(id).map_err(|error| RpcError(format!("job.id: {error}"))),
    }
}

/// Returns JSON without the blanks and line breaks between its values, so that a response is one line.
fn without_blanks(json: &str) -> String {
    let (mut in_string, mut is_escaped) = (false, false);
    let is_kept = |c: &char| {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = in_string,
            '"' => in_string = !in_string,
            _ => {}
        }
        in_string || !c.is_ascii_whitespace()
    };
    json.chars().filter(is_kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> GmqRequest {
        GmqRequest::parse(json.as_bytes()).unwrap()
    }

    fn refusal(method: &str, params: &str) -> String {
        of(&format!(r#"{{"method":"{method}","params":{params},"id":1}}"#)).call.unwrap_err().to_string()
    }

    fn topic(name: &str) -> TopicName {
        TopicName::new(name).unwrap()
    }

    #[test]
    fn a_push_takes_strings_and_numbers() {
        let strings = r#"{"id":"1","topic":"t","body":"x","delay":"5","TTR":"60"}"#;
        let numbers = r#"{"id":1,"topic":"t","body":"x","delay":5,"TTR":60}"#;
        let expected = Push {
            topic: topic("t"),
            id: JobId::new("1").unwrap(),
            body: "x".to_owned(),
            delay: Duration::from_secs(5),
            ttr: Duration::from_secs(60),
        };
        for job in [strings, numbers] {
            let request = of(&format!(r#"{{"method":"Service.Push","params":[{job}],"id":7}}"#));
            assert_eq!(request.id.to_string(), "7");
            assert_eq!(request.call, Ok(Call::Push(expected.clone())));
        }
        let sparse =
            of(r#"{"method":"Service.Push","params":[{"id":"1","topic":"t","delay":"-3","TTR":null}]}"#);
        let none = Duration::ZERO;
        let expected = Push { body: String::new(), delay: none, ttr: none, ..expected };
        assert_eq!(sparse, GmqRequest { id: RequestId("null".into()), call: Ok(Call::Push(expected)) });
    }

    #[test]
    fn a_delay_that_is_no_number_is_refused() {
        for (delay, shown) in [
            (r#""5s""#, r#""5s""#),
            ("1.5", r#""1.5""#),
            ("1e3", r#""1e3""#),
            (r#""-x""#, r#""-x""#),
            (r#"" 5""#, r#"" 5""#),
            (r#""++5""#, r#""++5""#),
            ("99999999999999999999", r#""99999999999999999999""#),
        ] {
            let error = refusal("Service.Push", &format!(r#"[{{"id":"1","topic":"t","delay":{delay}}}]"#));
            assert_eq!(error, format!("job.delay {shown} is not a whole number of seconds"));
        }
    }

    #[test]
    fn a_pop_names_topics_in_their_order() {
        for (params, topics) in [
            (r#"[["b","a"]]"#, &["b", "a"][..]),
            (r#"["a"]"#, &["a"]),
            ("[7]", &["7"]),
            (r#"[["a"],"ignored"]"#, &["a"]),
        ] {
            let request = of(&format!(r#"{{"method":"Service.Pop","params":{params},"id":1}}"#));
            assert_eq!(request.call, Ok(Call::Pop(topics.iter().copied().map(topic).collect())), "{params}");
        }
        assert_eq!(refusal("Service.Pop", "[[]]"), "topics is empty");
        assert_eq!(refusal("Service.Pop", "[]"), "topics is empty");
        let many = serde_json::json!([vec!["t"; POP_TOPICS_MAX + 1]]).to_string();
        assert_eq!(refusal("Service.Pop", &many), "topics has 257 topics, which is more than 256");
        assert!(refusal("Service.Pop", r#"[["a b"]]"#).starts_with("topic \"a b\" is not"));
    }

    #[test]
    fn refusals_are_in_the_words_of_go() {
        let go = |kind, go_type| format!("json: cannot unmarshal {kind} into Go value of type {go_type}");
        for (method, params, expected) in [
            ("Push", "[{}]", "rpc: service/method request ill-formed: Push".to_owned()),
            ("Other.Push", "[{}]", "rpc: can't find service Other.Push".to_owned()),
            ("Service.Peek", "[{}]", "rpc: can't find method Service.Peek".to_owned()),
            ("Service.Push", "null", "jsonrpc: request body missing params".to_owned()),
            ("Service.Push", "{}", go("object", "[1]interface {}")),
            ("Service.Push", "[5]", go("number", "map[string]string")),
            ("Service.Push", r#"[{"id":[]}]"#, go("array", "string")),
            ("Service.Push", r#"[{"id":"1","topic":true}]"#, go("bool", "string")),
            ("Service.Push", "[]", "job.id is empty".to_owned()),
            ("Service.Push", r#"[{"id":"1"}]"#, "job.topic is empty".to_owned()),
            ("Service.Pop", "[{}]", go("object", "[]string")),
            ("Service.Pop", "[[{}]]", go("object", "string")),
            ("Service.Ack", r#"[{"id":"1"}]"#, go("object", "string")),
            ("Service.Ack", r#"[""]"#, "job.id is empty".to_owned()),
        ] {
            assert_eq!(refusal(method, params), expected, "{method} {params}");
        }
        assert_eq!(of("{}").call.unwrap_err().to_string(), "rpc: service/method request ill-formed: ");
        assert_eq!(refusal(&"x".repeat(1000), "[]").len(), 140);
    }

    #[test]
    fn members_are_found_as_go_finds_them() {
        let request = of(r#"{"METHOD":"x","Method":"Service.Ack","params":["1"],"id":1,"jsonrpc":"2.0"}"#);
        assert_eq!(request.call, Ok(Call::Ack(JobId::new("1").unwrap())));
        let push = of(r#"{"method":"Service.Push","params":[{"Id":"1","Topic":"t","ttr":9}],"id":1}"#);
        assert!(matches!(push.call, Ok(Call::Push(Push { ttr, .. })) if ttr.as_secs() == 9));
    }

    #[test]
    fn an_id_is_repeated_in_one_line() {
        let id = of("{\"id\": {\"a\\\" b\" :\n [1 , 2.50] } }").id;
        assert_eq!(id.to_string(), "{\"a\\\" b\":[1,2.50]}");
    }
}
