//! Labels of legs, roles and routes in an explanation.

use forebay_fleet::worker::{Leg, Role};
use forebay_prompt::render::Rendered;
use forebay_select::{NoPair, Route};

pub(crate) const fn leg_name(leg: Leg) -> &'static str {
    match leg {
        Leg::Whole => "whole",
        Leg::Prefill => "prefill",
        Leg::Decode => "decode",
    }
}

pub(crate) const fn role_name(role: Role) -> &'static str {
    match role {
        Role::Both => "both",
        Role::Prefill => "prefill",
        Role::Decode => "decode",
    }
}

pub(crate) const fn route_name(route: Result<Route, NoPair>) -> Option<&'static str> {
    match route {
        Ok(Route::Whole(_)) => Some("whole"),
        Ok(Route::Pair) => Some("pair"),
        Err(_) => None,
    }
}

/// The reason against a pair.
pub(crate) const fn route_because(route: Result<Route, NoPair>) -> Option<&'static str> {
    match route {
        Ok(Route::Whole(because)) => Some(because.as_str()),
        Ok(Route::Pair) => None,
        Err(why) => Some(why.as_str()),
    }
}

pub(crate) fn way(rendered: Rendered) -> &'static str {
    match rendered {
        Rendered::Plan => "plan",
        Rendered::Template => "template",
        Rendered::TextPart => "template, up to the first part that is not text",
        Rendered::Raw => "raw",
        Rendered::Beginning => "its beginning alone",
    }
}
