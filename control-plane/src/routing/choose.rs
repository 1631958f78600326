//! What each row would cost a request, and which one costs least.
//!
//! One formula in seconds: the prompt tokens the row still has to read for others and for this one, the time to a first
//! step beside those it decodes for, in a hot pool a charge for computing, and what others lose by it. A busy row takes part
//! with the wait for it, so waiting for the row that holds a conversation and reading it anew elsewhere are compared directly.

use super::heat::Mode;
use super::index::HOLDERS;
use super::known::Home;
use super::returns::Returns;
use super::router::{Line, Router};
use super::row::{Cache, Match, Offer, Row};
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
}

#[derive(Clone, Copy)]
struct Scored {
    choice: Choice,
    /// Seconds, this request's and others'.
    cost: f64,
    /// What the row holds already, in seconds of reading: tells free rows apart and is no reason to wait for a busy one.
    crowd: f64,
    in_flight: f64,
}

impl Scored {
    /// Better of two that are both free or both busy.
    fn is_better(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.cost + self.crowd, other.cost + other.crowd);
        mine < theirs - 1e-9 || ((mine - theirs).abs() <= 1e-9 && self.in_flight < other.in_flight)
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

    /// The best row; `None` = none may be used at all. `free_only` = rows without a free slot do not count.
    pub(super) fn choose(&self, line: &Line, ask: &Ask, free_only: bool, now: f64) -> Option<Choice> {
        let matches = self.matches(ask, now);
        let mode = line.effective_mode();
        let usable = self.usable(line, ask, now);
        let rows = line.rows.len().max(1);
        let price = line.heat.price(line.mode, now) + SHORTAGE_PRICE * self.shortage(line);
        let known = matches.iter().any(|found| found.turn || found.session);
        let (mut now_free, mut later): (Option<Scored>, Option<Scored>) = (None, None);
        let mut home: Option<Scored> = None;
        let mut least_pending = f64::INFINITY;
        for step in 0..line.rows.len() {
            let Some(index) = line.rows.get((line.turn + step) % rows).copied() else { continue };
            let Some(row) = self.row(index).filter(|row| usable(row)) else { continue };
            // Most rows have seen nothing of it.
            let mine: &[Match] = if matches.iter().any(|found| found.home.row == index) { &matches } else { &[] };
            let Some(scored) = score(row, index, ask, mine, &line.returns, price, known, mode, now) else { continue };
            least_pending = least_pending.min(row.pending / row.speed.prefill);
            if !free_only && is_home(row, mine) && home.as_ref().is_none_or(|known| scored.choice.uncached < known.choice.uncached) {
                home = Some(scored);
            }
            let best = if scored.choice.free { &mut now_free } else { &mut later };
            if best.as_ref().is_none_or(|best| scored.is_better(best)) {
                *best = Some(scored);
            }
        }
        let best = match (now_free, later.filter(|_| !free_only)) {
            // Waiting while a slot is free is for what has been read already.
            (Some(free), Some(busy)) => Some(if busy.cost < free.cost && busy.choice.offer.cached > 0.0 { busy } else { free }),
            (free, busy) => free.or(busy),
        };
        let strict = home.filter(|home| {
            let row = self.row(home.choice.row);
            let pool = row.is_some_and(|row| matches!(row.cache, Cache::Pool(_)));
            let ahead = row.map_or(0.0, |row| row.pending / row.speed.prefill);
            // Where all its slots are taken, the wait for one is weighed as any other.
            mode == Mode::Sticky || (pool && home.choice.free && ahead - least_pending <= LEAVE_POOL_AFTER)
        });
        if let Some(strict) = strict {
            return Some(strict.choice);
        }
        let spread = (!free_only).then(|| self.popular(line, ask, &matches, &usable, now)).flatten();
        let mut choice = spread.or(best.map(|best| best.choice))?;
        if choice.reason == Reason::Fastest && matches.iter().any(|found| found.turn || found.session) {
            choice.reason = Reason::Moved;
        }
        Some(choice)
    }

    /// Requests that wait for want of a slot, for each row: whoever computes makes them all wait longer.
    fn shortage(&self, line: &Line) -> f64 {
        if line.queue.is_empty() {
            return 0.0;
        }
        let rows = || line.rows.iter().filter_map(|index| self.row(*index)).filter(|row| row.open);
        let free: u32 = rows().map(|row| row.setup.slots.saturating_sub(row.in_flight)).sum();
        (line.queue.len() as f64 - f64::from(free)).max(0.0) / line.rows.len().max(1) as f64
    }

    /// Which rows of a line a request may use: open, not failed for it already, not left alone. Where most of a pool is to
    /// be left alone, it is more likely that something else is wrong, and all of it is tried.
    fn usable(&self, line: &Line, ask: &Ask, now: f64) -> impl Fn(&Row) -> bool {
        let open = line.rows.iter().filter_map(|index| self.row(*index)).filter(|row| row.open);
        let (all, shut) = open.fold((0, 0), |(all, shut), row| (all + 1, shut + usize::from(!row.breaker.allows(now))));
        let fail_open = shut * 2 > all;
        let avoid = ask.avoid.clone();
        move |row: &Row| row.open && !avoid.contains(&row.incarnation) && (fail_open || row.breaker.allows(now))
    }

    /// A new conversation whose beginning shared pools hold: popular beginnings may live on as many rows as their share of
    /// the traffic deserves, others on one.
    fn popular(&self, line: &Line, ask: &Ask, matches: &[Match], usable: &impl Fn(&Row) -> bool, now: f64) -> Option<Choice> {
        let shared = |found: &&Match| !found.turn && !found.session && found.bytes as f64 >= ask.prefix.bytes as f64 * KNOWN_PART;
        let holders: Vec<RowIndex> = matches
            .iter()
            .filter(shared)
            .filter(|found| self.row(found.home.row).is_some_and(|row| usable(row) && matches!(row.cache, Cache::Pool(_))))
            .map(|found| found.home.row)
            .collect();
        let load = |index: &RowIndex| {
            self.row(*index).map_or(f64::INFINITY, |row| f64::from(row.in_flight) + row.pending / row.speed.prefill.max(1.0))
        };
        let best = holders.iter().copied().min_by(|one, two| load(one).total_cmp(&load(two)))?;
        let rows: Vec<RowIndex> = line.rows.iter().copied().filter(|index| self.row(*index).is_some_and(usable)).collect();
        let depth = self.index.depth(&ask.prefix.blocks);
        let share = ask.prefix.blocks.get(depth.checked_sub(1)?).map_or(0.0, |block| line.popularity.share(*block));
        let allowed = (share * rows.len() as f64 * HOLDER_MARGIN).ceil().max(1.0);
        let mean = rows.iter().filter_map(|index| self.row(*index)).map(|row| f64::from(row.in_flight)).sum::<f64>() / rows.len() as f64;
        let crowded = self.row(best).is_some_and(|row| f64::from(row.in_flight) > mean * SPREAD_ABOVE + 1.0);
        // The index names no more holders than these; where more are deserved, any row may be one.
        let everywhere = holders.len() >= HOLDERS && allowed > holders.len() as f64;
        let lightest = |among: &mut dyn Iterator<Item = RowIndex>| among.min_by(|one, two| load(one).total_cmp(&load(two)));
        let target = if everywhere {
            lightest(&mut rows.into_iter()).unwrap_or(best)
        } else if crowded && (holders.len() as f64) < allowed {
            lightest(&mut rows.into_iter().filter(|index| !holders.contains(index))).unwrap_or(best)
        } else {
            best
        };
        let row = self.row(target)?;
        score(row, target, ask, matches, &line.returns, 0.0, true, line.effective_mode(), now).map(|scored| scored.choice)
    }
}

/// Whether a conversation lives on this row: it goes on there, or its key says so.
fn is_home(row: &Row, matches: &[Match]) -> bool {
    matches.iter().any(|found| found.home.incarnation == row.incarnation && (found.turn || found.session))
}

#[expect(clippy::too_many_arguments, reason = "a pure formula over what its two callers have at hand")]
fn score(
    row: &Row,
    index: RowIndex,
    ask: &Ask,
    matches: &[Match],
    returns: &Returns,
    price: f64,
    known: bool,
    mode: Mode,
    now: f64,
) -> Option<Scored> {
    let room = row.has_room(ask.weight, now);
    let offer = row.offer(ask.prefix.bytes, matches, room, ask.weight <= 1, returns, now)?;
    let whole = row.speed.tokens(ask.prefix.bytes);
    let uncached = (whole - offer.cached).max(1.0);
    let read = uncached / row.speed.prefill;
    let free = room && !offer.must_wait;
    let (wait, beside) = if free {
        (row.pending / row.speed.prefill, row.in_flight)
    } else if offer.must_wait && room {
        // Its own slot works on an earlier request of the same conversation.
        (f64::from(1 + row.waiters) * row.speed.service, row.learned.get())
    } else {
        (f64::from(1 + row.waiters) * row.speed.service / f64::from(row.learned.get().max(1)), row.learned.get())
    };
    let first_token = wait + read + row.speed.decode * f64::from(beside);
    let crowd = if known { 0.0 } else { PLACEMENT * row.living(returns, now) / row.speed.prefill };
    let too_long = if row.setup.context > 0 && whole > f64::from(row.setup.context) { TOO_LONG } else { 0.0 };
    let home = if is_home(row, matches) { HOME_BONUS } else { 0.0 };
    let cost = first_token - home + (LEAST_PRICE + price) * read + DISPLACEMENT * offer.displaced / row.speed.prefill + too_long;
    let mine = |found: &&Match| found.home.incarnation == row.incarnation;
    let reason = match matches.iter().filter(mine).max_by_key(|found| (found.turn, found.session)) {
        Some(found) if found.session && !found.turn => Reason::Session,
        Some(found) if found.turn && offer.cached > 0.0 => Reason::Conversation,
        Some(_) if offer.cached > 0.0 => Reason::Prefix,
        _ => Reason::Fastest,
    };
    let choice = Choice { row: index, offer, free, reason, first_token, uncached, mode };
    Some(Scored { choice, cost, crowd, in_flight: f64::from(row.in_flight) / f64::from(row.setup.slots.max(1)) })
}
