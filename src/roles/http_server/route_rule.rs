//! What each route needs of its caller.

use axum::http::Method;

use model::scope::RequiredAccess;

/// What a caller needs to use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteRule {
    /// Nothing.
    Anyone,
    /// Nothing. The route shows more to a caller that has the scope `read`.
    AnyoneInBrief,
    /// The ticket in the path of the request. `acks::with_ticket` checks the ticket.
    Ticket,
    /// The password in the body of the request. The route itself checks the password.
    Password,
    Read,
    Metrics,
    /// The right to look at the settings of at least one topic. The route leaves out all other topics.
    SomeTopics,
    /// The right to look at jobs of at least one topic. The route leaves out all other topics.
    SomeJobs,
    /// The right to look at the settings of the route's topic.
    Topic,
    /// The right to look at jobs of the route's topic.
    Jobs,
    Manage,
    Produce,
    Consume,
    Admin,
}

/// What each route needs. A route that is not in this table needs `admin`, so a route that was forgotten here is not
/// open to everyone.
#[rustfmt::skip]
const RULES: &[(&str, &str, RouteRule)] = &[
    ("GET",    "/",                               RouteRule::Anyone),
    ("GET",    "/console/{path}",                 RouteRule::Anyone),
    ("GET",    "/console/session",                RouteRule::Anyone),
    ("POST",   "/console/session",                RouteRule::Password),
    ("DELETE", "/console/session",                RouteRule::Anyone),
    ("GET",    "/healthz",                        RouteRule::Anyone),
    ("GET",    "/readyz",                         RouteRule::AnyoneInBrief),
    ("GET",    "/metrics",                        RouteRule::Metrics),
    ("GET",    "/openapi.json",                   RouteRule::Read),
    ("GET",    "/docs",                           RouteRule::Read),
    ("GET",    "/v1/stats",                       RouteRule::SomeTopics),
    ("GET",    "/v1/nodes",                       RouteRule::Read),
    ("GET",    "/v1/processes",                   RouteRule::Read),
    ("GET",    "/v1/alerts",                      RouteRule::Read),
    ("GET",    "/v1/alerts/channels",             RouteRule::Read),
    ("GET",    "/v1/events",                      RouteRule::Read),
    ("GET",    "/v1/history",                     RouteRule::Read),
    ("GET",    "/v1/forecast",                    RouteRule::Read),
    ("POST",   "/v1/check/topic",                 RouteRule::Read),
    ("GET",    "/v1/topics",                      RouteRule::SomeTopics),
    ("GET",    "/v1/topics/{t}",                  RouteRule::Topic),
    ("GET",    "/v1/topics/{t}/health",           RouteRule::Topic),
    ("PUT",    "/v1/topics/{t}",                  RouteRule::Manage),
    ("PATCH",  "/v1/topics/{t}",                  RouteRule::Manage),
    ("DELETE", "/v1/topics/{t}",                  RouteRule::Manage),
    ("POST",   "/v1/topics/{t}/pause",            RouteRule::Manage),
    ("POST",   "/v1/topics/{t}/resume",           RouteRule::Manage),
    ("POST",   "/v1/topics/{t}/test",             RouteRule::Manage),
    ("POST",   "/v1/topics/{t}/rotate-secret",    RouteRule::Manage),
    ("POST",   "/v1/topics/{t}/dead/redrive",     RouteRule::Manage),
    ("POST",   "/v1/topics/{t}/dead/purge",       RouteRule::Manage),
    ("GET",    "/v1/topics/{t}/jobs",             RouteRule::Jobs),
    ("POST",   "/v1/topics/{t}/jobs",             RouteRule::Produce),
    // With POST, this path adds a batch. With the other methods, it means the job with the id `batch`.
    ("POST",   "/v1/topics/{t}/jobs/batch",       RouteRule::Produce),
    ("GET",    "/v1/topics/{t}/jobs/batch",       RouteRule::Jobs),
    ("PATCH",  "/v1/topics/{t}/jobs/batch",       RouteRule::Produce),
    ("DELETE", "/v1/topics/{t}/jobs/batch",       RouteRule::Produce),
    ("GET",    "/v1/topics/{t}/jobs/{id}",        RouteRule::Jobs),
    ("PATCH",  "/v1/topics/{t}/jobs/{id}",        RouteRule::Produce),
    ("DELETE", "/v1/topics/{t}/jobs/{id}",        RouteRule::Produce),
    ("POST",   "/v1/topics/{t}/jobs/{id}/run",    RouteRule::Produce),
    ("POST",   "/v1/topics/{t}/reserve",          RouteRule::Consume),
    // The route checks the scope for each topic that the request names.
    ("POST",   "/v1/reserve",                     RouteRule::SomeJobs),
    ("POST",   "/v1/topics/{t}/jobs/{id}/ack",    RouteRule::Consume),
    ("POST",   "/v1/topics/{t}/jobs/{id}/nack",   RouteRule::Consume),
    ("POST",   "/v1/topics/{t}/jobs/{id}/extend", RouteRule::Consume),
    ("GET",    "/v1/topics/{t}/dead",             RouteRule::Jobs),
    ("GET",    "/v1/topics/{t}/records",          RouteRule::Jobs),
    ("GET",    "/v1/topics/{t}/jobs/{id}/records", RouteRule::Jobs),
    ("DELETE", "/v1/topics/{t}/jobs/{id}/records", RouteRule::Manage),
    ("GET",    "/v1/jobs",                        RouteRule::SomeJobs),
    ("GET",    "/v1/records",                     RouteRule::SomeJobs),
    // Each of these routes checks the scope for the topic of the operation.
    ("GET",    "/v1/jobs/bulk",                   RouteRule::SomeJobs),
    ("POST",   "/v1/jobs/bulk",                   RouteRule::SomeJobs),
    ("GET",    "/v1/jobs/bulk/{n}",               RouteRule::SomeJobs),
    ("POST",   "/v1/jobs/bulk/{n}/stop",          RouteRule::SomeJobs),
    ("GET",    "/v1/find",                        RouteRule::SomeJobs),
    ("POST",   "/v1/ack/{ticket}",                RouteRule::Ticket),
];

/// Whether two patterns mean the same route. The names of their parameters do not matter.
pub(super) fn is_route(known: &str, route: &str) -> bool {
    let (mut known, mut parts) = (known.split('/'), route.split('/'));
    loop {
        match (known.next(), parts.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) if a == b || a.starts_with('{') && b.starts_with('{') => {}
            _ => return false,
        }
    }
}

/// Returns what a route needs.
pub(super) fn rule(method: &Method, route: &str) -> RouteRule {
    // A HEAD request follows the rule of GET.
    let method = if method == Method::HEAD { "GET" } else { method.as_str() };
    let found = RULES.iter().find(|(m, known, _)| *m == method && is_route(known, route));
    found.map_or(RouteRule::Admin, |(_, _, rule)| *rule)
}

impl RouteRule {
    /// Returns the scope that the rule asks for. `topic` is the topic of the route. None: the route needs no scope.
    pub(super) fn need(self, topic: &str) -> Option<RequiredAccess<'_>> {
        Some(match self {
            Self::Anyone | Self::AnyoneInBrief | Self::Ticket | Self::Password => return None,
            RouteRule::Read => RequiredAccess::Read,
            RouteRule::Metrics => RequiredAccess::Metrics,
            RouteRule::SomeTopics => RequiredAccess::SomeTopics,
            RouteRule::SomeJobs => RequiredAccess::SomeJobs,
            RouteRule::Topic => RequiredAccess::Topic(topic),
            RouteRule::Jobs => RequiredAccess::Jobs(topic),
            RouteRule::Manage => RequiredAccess::Manage(topic),
            RouteRule::Produce => RequiredAccess::Produce(topic),
            RouteRule::Consume => RequiredAccess::Consume(topic),
            RouteRule::Admin => RequiredAccess::Admin,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_not_in_the_table_needs_everything() {
        for (method, route, expected) in [
            ("GET", "/healthz", RouteRule::Anyone),
            ("POST", "/v1/ack/{ticket}", RouteRule::Ticket),
            ("GET", "/v1/ack/{ticket}", RouteRule::Admin),
            ("HEAD", "/v1/stats", RouteRule::SomeTopics),
            ("POST", "/v1/stats", RouteRule::Admin),
            ("GET", "/v1/topics/{topic}/jobs/{id}", RouteRule::Jobs),
            ("GET", "/v1/topics/{name}/jobs/{key}", RouteRule::Jobs),
            ("POST", "/v1/topics/{topic}/jobs/batch", RouteRule::Produce),
            ("PUT", "/v1/topics/{topic}", RouteRule::Manage),
            ("POST", "/v1/topics/{topic}/dead/purge", RouteRule::Manage),
            ("GET", "/v1/tokens", RouteRule::Admin),
            ("GET", "/v1/topics/{topic}/jobs/{id}/more", RouteRule::Admin),
            ("GET", "/", RouteRule::Anyone),
            ("POST", "/console/session", RouteRule::Password),
            ("POST", "/", RouteRule::Admin),
            ("GET", "/console/{*path}", RouteRule::Anyone),
            ("PUT", "/console/session", RouteRule::Admin),
            ("GET", "/v1/audit", RouteRule::Admin),
            ("GET", "/v1/accounts", RouteRule::Admin),
            ("OPTIONS", "/v1/topics", RouteRule::Admin),
            ("DELETE", "/v1/topics/{topic}/jobs/{id}/records", RouteRule::Manage),
            ("DELETE", "/v1/records", RouteRule::Admin),
            ("GET", "/v1/jobs", RouteRule::SomeJobs),
            ("POST", "/v1/jobs", RouteRule::Admin),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(rule(&method, route), expected, "{method} {route}");
        }
    }
}
