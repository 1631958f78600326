//! Lists a page at a time: `?limit=` and `?cursor=`, answered with `next_cursor`. The cursor is the id of
//! the last item seen, so items that come and go between two pages neither shift nor double the others.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::error::ApiError;

/// Items of a page where the caller does not say.
const DEFAULT_LIMIT: usize = 100;
/// The most items of a page.
const MOST: usize = 1000;

/// How a cursor begins, so that one of our own is told from a guess.
const AFTER: &str = "after:";

/// Items of a page, as asked for or by default.
pub fn checked_limit(wanted: Option<usize>) -> Result<usize, ApiError> {
    match wanted {
        None => Ok(DEFAULT_LIMIT),
        Some(limit) if (1..=MOST).contains(&limit) => Ok(limit),
        Some(limit) => Err(ApiError::invalid(format!("limit: {limit} items; 1 to {MOST} are allowed on one page"))
            .field("limit")
            .hint("go on with the `next_cursor` of each page")),
    }
}

/// A cursor that no list of ours gave.
pub fn no_cursor() -> ApiError {
    ApiError::invalid("cursor: this is no cursor of this list").field("cursor").hint("take `next_cursor` of the page before as it is")
}

/// Which page.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PageParams {
    /// The most items to answer. Default 100, at most 1000.
    pub limit: Option<usize>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// One page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct Page<T> {
    /// The items.
    pub data: Vec<T>,
    /// Ask for the next page with this; `null` = this is the last one.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// Cuts a page out of a whole list. `id` must name each item uniquely, and the list must be ordered by it
    /// wherever items may vanish between two pages.
    pub fn cut(all: Vec<T>, params: &PageParams, id: impl Fn(&T) -> String) -> Result<Self, ApiError> {
        let limit = checked_limit(params.limit)?;
        let start = match &params.cursor {
            None => 0,
            Some(cursor) => {
                let last = cursor.strip_prefix(AFTER).ok_or_else(no_cursor)?;
                let after = all.iter().position(|item| id(item) == last).map(|index| index + 1);
                after.unwrap_or_else(|| all.iter().position(|item| id(item).as_str() > last).unwrap_or(all.len()))
            }
        };
        let mut rest = all.into_iter().skip(start);
        let data: Vec<T> = rest.by_ref().take(limit).collect();
        let next_cursor = rest.next().and_then(|_| data.last().map(|item| format!("{AFTER}{}", id(item))));
        Ok(Self { data, next_cursor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(all: &[&str], limit: usize, cursor: Option<&str>) -> Option<(Vec<String>, Option<String>)> {
        let params = PageParams { limit: Some(limit), cursor: cursor.map(str::to_owned) };
        let page = Page::cut(all.iter().map(|text| (*text).to_owned()).collect(), &params, String::clone).ok()?;
        Some((page.data, page.next_cursor))
    }

    #[test]
    fn pages_follow_each_other_without_a_gap_even_if_the_cursors_item_is_gone() {
        for (all, limit, cursor, data, next) in [
            (vec!["a", "b", "c"], 2, None, vec!["a", "b"], Some("after:b")),
            (vec!["a", "b", "c"], 2, Some("after:b"), vec!["c"], None),
            (vec!["a", "c", "d"], 2, Some("after:b"), vec!["c", "d"], None),
            (vec!["a", "b"], 2, None, vec!["a", "b"], None),
            (vec!["a"], 5, Some("after:z"), vec![], None),
            (vec![], 5, None, vec![], None),
        ] {
            let expected = (data.iter().map(ToString::to_string).collect(), next.map(str::to_owned));
            assert_eq!(page(&all, limit, cursor), Some(expected), "{all:?} {limit} {cursor:?}");
        }
    }

    #[test]
    fn a_limit_out_of_its_bound_and_a_cursor_of_nobodys_are_refused() {
        for (limit, cursor, good) in [(1, None, true), (1000, None, true), (0, None, false), (1001, None, false), (5, Some("x"), false)] {
            assert_eq!(page(&["a"], limit, cursor).is_some(), good, "{limit} {cursor:?}");
        }
    }
}
