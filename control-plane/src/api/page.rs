//! Lists a page at a time: `?limit=` and `?cursor=`, answered with `next_cursor`. The cursor is the id of
//! the last item seen, so items that come and go between two pages neither shift nor double the others.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Items of a page where the caller does not say.
const DEFAULT_LIMIT: usize = 100;
/// The most items of a page.
const MOST: usize = 1000;

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
    pub fn cut(all: Vec<T>, params: &PageParams, id: impl Fn(&T) -> String) -> Self {
        let limit = params.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MOST);
        let start = params.cursor.as_ref().map_or(0, |cursor| {
            let after = all.iter().position(|item| id(item) == *cursor).map(|index| index + 1);
            after.unwrap_or_else(|| all.iter().position(|item| id(item) > *cursor).unwrap_or(all.len()))
        });
        let mut rest = all.into_iter().skip(start);
        let data: Vec<T> = rest.by_ref().take(limit).collect();
        let next_cursor = rest.next().and_then(|_| data.last().map(&id));
        Self { data, next_cursor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(all: &[&str], limit: usize, cursor: Option<&str>) -> (Vec<String>, Option<String>) {
        let params = PageParams { limit: Some(limit), cursor: cursor.map(str::to_owned) };
        let page = Page::cut(all.iter().map(|text| (*text).to_owned()).collect(), &params, String::clone);
        (page.data, page.next_cursor)
    }

    #[test]
    fn pages_follow_each_other_without_a_gap_even_if_the_cursors_item_is_gone() {
        for (all, limit, cursor, data, next) in [
            (vec!["a", "b", "c"], 2, None, vec!["a", "b"], Some("b")),
            (vec!["a", "b", "c"], 2, Some("b"), vec!["c"], None),
            (vec!["a", "c", "d"], 2, Some("b"), vec!["c", "d"], None),
            (vec!["a", "b"], 2, None, vec!["a", "b"], None),
            (vec!["a"], 0, None, vec!["a"], None),
            (vec!["a"], 5, Some("z"), vec![], None),
            (vec![], 5, None, vec![], None),
        ] {
            let (found, found_next) = page(&all, limit, cursor);
            assert_eq!(
                (found, found_next.as_deref()),
                (data.iter().map(ToString::to_string).collect(), next),
                "{all:?} {limit} {cursor:?}"
            );
        }
    }
}
