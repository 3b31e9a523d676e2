//! Which problems each kind of route may answer with.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

/// A set of problems that a route may answer with.
fn problems(of: &[(u16, &str)]) -> BTreeMap<String, RefOr<Response>> {
    // What any route may answer with: before it is asked, or when it takes too long.
    let always: &[(u16, &str)] = &[
        (400, "It could not be read: `bad_path`, `bad_json`, `bad_body`"),
        (401, "Who asks is not known: `unauthorized`"),
        (403, "It is not allowed: `forbidden`, `foreign`"),
        (431, "Its headers are too large: `headers_too_large`"),
        (503, "It cannot be done now: the `code` says which part is away; `unknown`: it may have been done"),
        (504, "It was not done in time, or its outcome is not known: `timeout`"),
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
    (408, "The body did not come in time: `too_slow`"),
    (413, "The body is too long: `too_large`"),
    (415, "The body is not JSON: `not_json`"),
];
const FIELD: (u16, &str) =
    (422, "A field is wrong, and named: `bad_field`, `missing_field`, `unknown_field`");

/// Of a route that shows what is there anyway.
pub(in super::super) struct ShowProblems;
impl IntoResponses for ShowProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[])
    }
}

/// Of a route whose path or query names something.
pub(in super::super) struct FindProblems;
impl IntoResponses for FindProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[
            (404, "It is not there: `unknown_topic`, `not_found`, `no_registry`"),
            (409, "It is in another state: `unusable`, `no_registry`"),
            FIELD,
        ])
    }
}

/// Of the route of tickets.
pub(in super::super) struct AckProblems;
impl IntoResponses for AckProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let own = [
            (404, "It is no ticket: `no_ticket`"),
            (409, "It is being done: `in_progress`"),
            (410, "The attempt is over: `gone`"),
            FIELD,
        ];
        problems(&[&own[..], &BODY[..]].concat())
    }
}

/// Of a route that changes something.
pub(in super::super) struct ChangeProblems;
impl IntoResponses for ChangeProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let own = [
            (404, "It is not there: `unknown_topic`, `not_found`"),
            (
                409,
                "It is in another state: `exists`, `conflict`, `topic_offline`, `topic_has_jobs`, `read_only`, `in_progress`, `no_registry`",
            ),
            (412, "It was changed meanwhile: `changed`"),
            FIELD,
        ];
        problems(&[&own[..], &BODY[..]].concat())
    }
}
