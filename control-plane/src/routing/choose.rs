//! What each row would cost a request, and which one costs least.
//!
//! One formula in seconds: the prompt tokens the row still has to read for others and for this one, the time to a first
//! step beside those it decodes for, in a hot pool a charge for computing, and what others lose by it. A busy row takes part
//! with the wait for it, so waiting for the row that holds a conversation and reading it anew elsewhere are compared directly.

use super::glance::Glance;
use super::heat::Mode;
use super::index::HOLDERS;
use super::known::Home;
use super::router::{Line, Router};
use super::row::{Cache, Match, Offer, Wish};
use super::{Ask, Reason, RowIndex};

/// Weight of what others lose, against what this request gains; this and the next two are the best of those tried in the
/// simulation (chat at 0.45 conversations a second, agents at 0.12 and 0.2).
const DISPLACEMENT: f64 = 1.0;
/// Seconds that a second of computing is charged with in every mode: it delays whoever comes next, which a request that looks
/// at its own first token alone does not see.
const LEAST_PRICE: f64 = 0.5;
/// The same for each request that waits for want of a slot, by row.
const SHORTAGE_PRICE: f64 = 4.0;
/// Weight of what a row holds already, for a conversation that is new: keeps rows evenly filled.
const PLACEMENT: f64 = 0.3;
/// Seconds of reading ahead of it that make a conversation leave a shared pool that holds it: lower gates collapse under
/// load, because every move is read anew and makes the next one likelier (ROUTING 2.6).
const LEAVE_POOL_AFTER: f64 = 18.0;
/// Part of a prompt that must match before its beginning counts as known.
const KNOWN_PART: f64 = 0.5;
/// Rows that may hold a popular beginning, beyond its share of the pool.
const HOLDER_MARGIN: f64 = 1.25;
/// Requests above the mean that make a popular beginning spread to another row.
const SPREAD_ABOVE: f64 = 1.1;
/// Added where the prompt is longer than the row's context: chosen only if nothing else is there.
const TOO_LONG: f64 = 1e6;
/// Seconds that a row is preferred by for being the home of a session, all else being equal.
const HOME_BONUS: f64 = 0.001;
/// Most places a prompt is looked for at.
const MAX_MATCHES: usize = 8;

/// The best row for a request, free or not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    pub row: RowIndex,
    pub offer: Offer,
    /// A slot can be had now.
    pub free: bool,
    pub reason: Reason,
    /// Predicted seconds to the first token.
    pub first_token: f64,
    /// Prompt tokens it will have to read.
    pub uncached: f64,
    pub mode: Mode,
    /// Where no slot can be had now: what the best free one would have cost. It is waited no longer than that.
    pub passed_up: Option<f64>,
}

/// What a request is, for the formula.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// Bytes of its prompt.
    bytes: f64,
    weight: u32,
    /// Seconds it is charged with for each second of computing, beside its own first token.
    price: f64,
    /// Weight of what a row holds already: nothing for a conversation's next turn, which fills no row any more.
    placement: f64,
}

/// What a row would give it.
#[derive(Debug, Clone, Copy)]
struct Given {
    /// A slot can be had now.
    free: bool,
    /// Seconds to the first token, but for the reading of the prompt itself.
    before: f64,
    /// Tokens it need not read.
    cached: f64,
    /// Seconds that others lose by it.
    displaced: f64,
}

/// What one row would cost a request.
#[derive(Debug, Clone, Copy)]
struct Quote {
    row: RowIndex,
    free: bool,
    /// It goes on with something the row has read.
    cached: bool,
    /// Seconds, this request's and others'.
    cost: f64,
    /// The same with what the row holds already: tells rows apart and is no reason to wait for a busy one.
    crowded: f64,
    /// Predicted seconds to the first token.
    first_token: f64,
    /// Prompt tokens to read.
    uncached: f64,
}

impl Quote {
    /// The formula.
    #[inline]
    fn of(index: RowIndex, row: &Glance, given: Given, terms: &Terms) -> Self {
        let whole = terms.bytes * row.tokens_per_byte;
        let uncached = (whole - given.cached).max(1.0);
        let read = uncached / row.prefill;
        let first_token = given.before + read;
        let too_long = if row.context > 0 && whole > f64::from(row.context) { TOO_LONG } else { 0.0 };
        let cost = first_token + terms.price * read + DISPLACEMENT * given.displaced + too_long;
        Self {
            row: index,
            free: given.free,
            cached: given.cached > 0.0,
            cost,
            crowded: cost + terms.placement * row.living,
            first_token,
            uncached,
        }
    }

    /// Of two rows the one with less to read; of two ways on one row the cheaper one.
    fn is_more_at_home(&self, other: &Self) -> bool {
        if self.row == other.row { self.cost < other.cost } else { self.uncached < other.uncached }
    }

    /// Better of two that are both free or both busy; among equals the row with the smaller part of its slots taken.
    #[inline]
    fn is_better(&self, other: &Self, share: impl Fn(&Self) -> f64) -> bool {
        let gain = other.crowded - self.crowded;
        gain > 1e-9 || (gain >= -1e-9 && share(self) < share(other))
    }
}

impl Router {
    /// Where this prompt, or the beginning of it, was seen.
    pub(super) fn matches(&self, ask: &Ask, now: f64) -> Vec<Match> {
        let mut found: Vec<Match> = Vec::new();
        let mut add = |home: Home, bytes: u64, turn: bool, session: bool| {
            let alive = self.row(home.row).is_some_and(|row| row.incarnation == home.incarnation && row.still_holds(home.stamp));
            if !alive || found.len() >= MAX_MATCHES {
                return;
            }
            let same = |known: &&mut Match| known.home.incarnation == home.incarnation && known.home.stamp == home.stamp;
            match found.iter_mut().find(same) {
                Some(known) => {
                    known.session |= session;
                    if bytes > known.bytes {
                        known.bytes = bytes;
                        known.turn = turn;
                    }
                }
                None => found.push(Match { home, bytes, turn, session }),
            }
        };
        for end in ask.prefix.ends.iter().rev() {
            if let Some(home) = self.tails.get(end.hash).filter(|home| self.has_tail(home, end.hash)) {
                add(home, end.bytes, true, false);
                break;
            }
        }
        let depth = self.index.depth(&ask.prefix.blocks);
        if depth > 0
            && let Some(block) = ask.prefix.blocks.get(depth - 1)
        {
            let bytes = (depth * super::prefix::BLOCK_BYTES) as u64;
            for holder in self.index.holders(*block) {
                if let Some(row) = self.row(holder.row) {
                    add(Home { row: holder.row, incarnation: row.incarnation, stamp: holder.stamp, bytes, at: now }, bytes, false, false);
                }
            }
        }
        if let Some(home) = ask.session.and_then(|session| self.sessions.get(session)) {
            add(home, 0, false, true);
        }
        found
    }

    /// Whether a sequence still ends, at one of its turns, where the map of ends says so.
    fn has_tail(&self, home: &Home, hash: u64) -> bool {
        match self.row(home.row).map(|row| &row.cache) {
            Some(Cache::Slots(shadow)) => shadow.find(home.stamp).is_some_and(|(_, held)| held.tails.iter().any(|tail| tail.hash == hash)),
            Some(Cache::Pool(_)) => true,
            None => false,
        }
    }

    /// The best row; `None` = none may be used at all. `free_only` = rows without a free slot do not count. To be asked after
    /// a [`Router::look`].
    pub(super) fn choose(&self, line: &Line, ask: &Ask, free_only: bool, now: f64) -> Option<Choice> {
        let matches = self.matches(ask, now);
        let known = matches.iter().any(|found| found.turn || found.session);
        let terms = Terms {
            bytes: ask.prefix.bytes as f64,
            weight: ask.weight,
            price: LEAST_PRICE + line.heat.price(line.mode, now) + SHORTAGE_PRICE * shortage(line),
            placement: if known { 0.0 } else { PLACEMENT },
        };
        let usable = usable(line, ask);
        let share = |quote: &Quote| self.glance(quote.row).map_or(1.0, Glance::share);
        let (mut now_free, mut later): (Option<Quote>, Option<Quote>) = (None, None);
        let mut home: Option<Quote> = None;
        let mut least_ahead = f64::INFINITY;
        // Among equals, each in turn.
        let (last, first) = line.rows.split_at(line.turn % line.rows.len().max(1));
        for index in first.iter().chain(last).copied() {
            let Some(row) = self.glance(index).filter(|row| usable(row)) else { continue };
            least_ahead = least_ahead.min(row.ahead);
            // Most rows have seen nothing of it.
            let seen = matches.iter().any(|found| found.home.row == index);
            let offers = if seen {
                [Some(false), (!free_only).then_some(true)].map(|later| self.closer_look(index, row, ask, &matches, line, later?, now))
            } else {
                [strangers(row, &terms), None]
            };
            for given in offers.into_iter().flatten().filter(|given| given.free || !free_only) {
                let mut quote = Quote::of(index, row, given, &terms);
                if seen && is_home(row, &matches) {
                    quote.cost -= HOME_BONUS;
                    quote.crowded -= HOME_BONUS;
                    if home.as_ref().is_none_or(|known| quote.is_more_at_home(known)) {
                        home = Some(quote);
                    }
                }
                let best = if quote.free { &mut now_free } else { &mut later };
                if best.as_ref().is_none_or(|best| quote.is_better(best, share)) {
                    *best = Some(quote);
                }
            }
        }
        let best = match (now_free, later) {
            // Waiting while a slot is free is for what has been read already.
            (Some(free), Some(busy)) => Some(if busy.cost < free.cost && busy.cached { busy } else { free }),
            (free, busy) => free.or(busy),
        };
        let mode = line.effective_mode();
        let strict = home.filter(|home| {
            let row = self.glance(home.row);
            // Where all its slots are taken, the wait for one is weighed as any other.
            mode == Mode::Sticky || (home.free && row.is_some_and(|row| row.pool && row.ahead - least_ahead <= LEAVE_POOL_AFTER))
        });
        let popular = || {
            let index = (!free_only).then(|| self.popular(line, ask, &matches, &usable)).flatten()?;
            let row = self.glance(index)?;
            let given = self.closer_look(index, row, ask, &matches, line, !row.has_room(ask.weight), now)?;
            Some(Quote::of(index, row, given, &terms))
        };
        let chosen = strict.or_else(popular).or(best)?;
        let passed_up = now_free.filter(|free| !chosen.free && (mode != Mode::Sticky || free.row == chosen.row));
        self.settle(&chosen, passed_up.map(|free| free.cost), ask, &matches, line, now)
    }

    /// What a row that knows something of a prompt would give it, now or later.
    #[expect(clippy::too_many_arguments, reason = "all that one look needs, once for each row that knows the prompt")]
    fn closer_look(
        &self,
        index: RowIndex,
        glance: &Glance,
        ask: &Ask,
        matches: &[Match],
        line: &Line,
        later: bool,
        now: f64,
    ) -> Option<Given> {
        let row = self.row(index)?;
        let wish = wish(ask, matches, glance, later);
        let offer = row.offer(&wish, &line.returns, now)?;
        let before = match (later, wish.room) {
            (false, _) => glance.first_when_free,
            // Its own slot works on an earlier request of the same conversation.
            (true, true) => offer.wait + row.speed.decode * f64::from(glance.learned),
            (true, false) => glance.first_when_full,
        };
        Some(Given { free: !later, before, cached: offer.cached, displaced: offer.displaced / glance.prefill })
    }

    /// The choice that a quote stands for, with its slot and its reason.
    fn settle(&self, quote: &Quote, passed_up: Option<f64>, ask: &Ask, matches: &[Match], line: &Line, now: f64) -> Option<Choice> {
        let (row, glance) = (self.row(quote.row)?, self.glance(quote.row)?);
        let offer = row.offer(&wish(ask, matches, glance, !quote.free), &line.returns, now)?;
        let mine = matches.iter().filter(|found| found.home.incarnation == row.incarnation);
        let reason = match mine.max_by_key(|found| (found.turn, found.session)) {
            Some(found) if found.session && !found.turn => Reason::Session,
            Some(found) if found.turn && offer.cached > 0.0 => Reason::Conversation,
            Some(_) if offer.cached > 0.0 => Reason::Prefix,
            _ if matches.iter().any(|found| found.turn || found.session) => Reason::Moved,
            _ => Reason::Fastest,
        };
        Some(Choice {
            row: quote.row,
            offer,
            free: quote.free,
            reason,
            first_token: quote.first_token,
            uncached: quote.uncached,
            mode: line.effective_mode(),
            passed_up,
        })
    }

    /// A new conversation whose beginning shared pools hold: popular beginnings may live on as many rows as their share of
    /// the traffic deserves, others on one.
    fn popular(&self, line: &Line, ask: &Ask, matches: &[Match], usable: &impl Fn(&Glance) -> bool) -> Option<RowIndex> {
        let shared = |found: &&Match| !found.turn && !found.session && found.bytes as f64 >= ask.prefix.bytes as f64 * KNOWN_PART;
        let holders: Vec<RowIndex> = matches
            .iter()
            .filter(shared)
            .filter(|found| self.glance(found.home.row).is_some_and(|row| usable(row) && row.pool))
            .map(|found| found.home.row)
            .collect();
        let load = |index: &RowIndex| self.glance(*index).map_or(f64::INFINITY, |row| f64::from(row.in_flight) + row.ahead);
        let best = holders.iter().copied().min_by(|one, two| load(one).total_cmp(&load(two)))?;
        let rows: Vec<RowIndex> = line.rows.iter().copied().filter(|index| self.glance(*index).is_some_and(usable)).collect();
        let depth = self.index.depth(&ask.prefix.blocks);
        let share = ask.prefix.blocks.get(depth.checked_sub(1)?).map_or(0.0, |block| line.popularity.share(*block));
        let allowed = (share * rows.len() as f64 * HOLDER_MARGIN).ceil().max(1.0);
        let mean = rows.iter().filter_map(|index| self.glance(*index)).map(|row| f64::from(row.in_flight)).sum::<f64>() / rows.len() as f64;
        let crowded = self.glance(best).is_some_and(|row| f64::from(row.in_flight) > mean * SPREAD_ABOVE + 1.0);
        // The index names no more holders than these; where more are deserved, any row may be one.
        let everywhere = holders.len() >= HOLDERS && allowed > holders.len() as f64;
        let lightest = |among: &mut dyn Iterator<Item = RowIndex>| among.min_by(|one, two| load(one).total_cmp(&load(two)));
        if everywhere {
            lightest(&mut rows.into_iter())
        } else if crowded && (holders.len() as f64) < allowed {
            lightest(&mut rows.into_iter().filter(|index| !holders.contains(index))).or(Some(best))
        } else {
            Some(best)
        }
    }
}

fn wish<'a>(ask: &Ask, matches: &'a [Match], row: &Glance, later: bool) -> Wish<'a> {
    Wish { bytes: ask.prefix.bytes, matches, room: row.has_room(ask.weight), steered: ask.weight <= 1, later }
}

/// What a row gives a prompt it knows nothing of; `None` = a slot is free by count, but none of them rests.
#[inline]
fn strangers(row: &Glance, terms: &Terms) -> Option<Given> {
    let free = row.has_room(terms.weight);
    // A request for several slots is placed by the engine.
    let displaced = if free && terms.weight <= 1 { row.displaced } else { 0.0 };
    let before = if free { row.first_when_free } else { row.first_when_full };
    displaced.is_finite().then_some(Given { free, before, cached: 0.0, displaced })
}

/// Requests that wait for want of a slot, for each row: whoever computes makes them all wait longer.
fn shortage(line: &Line) -> f64 {
    (line.queue.len() as f64 - f64::from(line.sums.free)).max(0.0) / line.rows.len().max(1) as f64
}

/// Which rows of a line a request may use: open, not failed for it already, not left alone. Where most of a pool is to be left
/// alone, it is more likely that something else is wrong, and all of it is tried.
fn usable<'a>(line: &Line, ask: &'a Ask) -> impl Fn(&Glance) -> bool + use<'a> {
    let fail_open = line.sums.shut * 2 > line.sums.open;
    move |row: &Glance| row.open && (fail_open || row.allowed) && !ask.avoid.contains(&row.incarnation)
}

/// Whether a conversation lives on this row: it goes on there, or its key says so.
fn is_home(row: &Glance, matches: &[Match]) -> bool {
    matches.iter().any(|found| found.home.incarnation == row.incarnation && (found.turn || found.session))
}
