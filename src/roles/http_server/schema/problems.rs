//! The problems that each kind of route may answer with.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

/// Builds the responses for a list of problems.
fn problems(of: &[(u16, &str)]) -> BTreeMap<String, RefOr<Response>> {
    // Every route may answer with these problems: before the handler runs, or when the handler takes too long.
    let always: &[(u16, &str)] = &[
        (400, "The request could not be read: `bad_path`, `bad_json`, `bad_body`"),
        (401, "The caller is not known: `unauthorized`"),
        (403, "The caller may not do this: `forbidden`, `foreign`"),
        (431, "The headers of the request are too large: `headers_too_large`"),
        (
            503,
            "The request cannot be done now. The `code` names the part that does not answer. With `unknown`, it may have been done",
        ),
        (504, "The request was not done in time, and its outcome is unknown: `timeout`"),
    ];
    let one = |(status, what): &(u16, &str)| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        let response =
            ResponseBuilder::new().description(*what).content("application/problem+json", content).build();
        (status.to_string(), RefOr::T(response))
    };
    always.iter().chain(of).map(one).collect()
}

const BODY: [(u16, &str); 3] = [
    (408, "The body did not arrive in time: `too_slow`"),
    (413, "The body is too long: `too_large`"),
    (415, "The body is not JSON: `not_json`"),
];
const FIELD: (u16, &str) =
    (422, "The field that `field` names is wrong: `bad_field`, `missing_field`, `unknown_field`");

/// The problems of a route that only shows things.
pub(in super::super) struct ReadErrorResponses;
impl IntoResponses for ReadErrorResponses {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[])
    }
}

/// The errors of a route whose path or query names a topic or a job that may not exist.
pub(in super::super) struct LookupErrorResponses;
impl IntoResponses for LookupErrorResponses {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[
            (404, "It does not exist: `unknown_topic`, `not_found`, `no_registry`"),
            (409, "Its state does not allow this: `unusable`, `no_registry`"),
            FIELD,
        ])
    }
}

/// The problems of the route of tickets.
pub(in super::super) struct AckErrorResponses;
impl IntoResponses for AckErrorResponses {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let own = [
            (404, "It is not a valid ticket: `no_ticket`"),
            (409, "The same request is being done: `in_progress`"),
            (410, "The attempt is over: `gone`"),
            FIELD,
        ];
        problems(&[&own[..], &BODY[..]].concat())
    }
}

/// The problems of the routes that reserve jobs.
pub(in super::super) struct ReserveErrorResponses;
impl IntoResponses for ReserveErrorResponses {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let own = [
            (404, "A topic does not exist: `unknown_topic`"),
            (
                409,
                "Clients do not reserve the jobs of the topic: `not_pull`. The same request is being done: `in_progress`",
            ),
            FIELD,
        ];
        problems(&[&own[..], &BODY[..]].concat())
    }
}

/// The problems of a route that changes something.
pub(in super::super) struct ChangeErrorResponses;
impl IntoResponses for ChangeErrorResponses {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let own = [
            (404, "It does not exist: `unknown_topic`, `not_found`"),
            (429, "A limit of the topic or of the token does not allow it: `quota`"),
            (
                409,
                "Its state does not allow this: `exists`, `conflict`, `topic_offline`, `topic_has_jobs`, `read_only`, `in_progress`, `no_registry`",
            ),
            (412, "It was changed meanwhile, or is not as `If-Match` or `If-None-Match` demands: `changed`"),
            FIELD,
        ];
        problems(&[&own[..], &BODY[..]].concat())
    }
}
