//! How long conversations pause, and so how likely one that rests is to go on.
//!
//! People come back after a minute, agents after two seconds, and both end without saying so. What a slot holds is worth keeping
//! by the chance that somebody asks for it, and that is counted, not assumed: of all conversations of a pool, those that came
//! back after a longer pause than this one's, against those that began (each of which ends once).

/// Pauses are counted in this many steps.
const STEPS: usize = 29;
/// Seconds of the shortest one; each further one is longer by [`STEP_FACTOR`].
const SHORTEST: f64 = 0.25;
/// Square root of two: the last step begins at 68 minutes.
const STEP_FACTOR: f64 = std::f64::consts::SQRT_2;
/// Turns after which what was counted before weighs half.
const FORGET_AFTER: f64 = 1024.0;
/// Turns that every step is taken to have had before the first one was seen,
const RETURNED_AT_FIRST: f64 = 0.15;
/// and conversations that are taken to have begun.
const BEGAN_AT_FIRST: f64 = 0.5;
/// A conversation less likely to go on than this is taken for ended.
pub(super) const ENDED_BELOW: f64 = 0.05;

/// Pauses and beginnings of the conversations of one pool.
#[derive(Debug, Clone)]
pub struct Returns {
    /// Conversations that came back after a pause of this step or a longer one.
    after: [f64; STEPS + 1],
    began: f64,
}

impl Default for Returns {
    fn default() -> Self {
        Self { after: std::array::from_fn(|step| RETURNED_AT_FIRST * (STEPS - step) as f64), began: BEGAN_AT_FIRST }
    }
}

/// Where a pause lies among the steps: two for each doubling, straight between powers of two. Read off the number's own
/// exponent, for a decision asks for hundreds of these.
fn position(seconds: f64) -> f64 {
    let bits = (seconds / SHORTEST).max(1.0).to_bits();
    let doublings = f64::from((bits >> 52) as u32) - 1023.0;
    let between = f64::from_bits((bits & ((1 << 52) - 1)) | 1.0_f64.to_bits()) - 1.0;
    (2.0 * (doublings + between)).min(STEPS as f64)
}

impl Returns {
    /// A conversation went on after so many seconds.
    pub fn returned(&mut self, pause: f64) {
        let at = position(pause);
        for (step, count) in self.after.iter_mut().take(STEPS).enumerate() {
            *count += f64::from(step as f64 <= at);
        }
        self.forget();
    }

    /// A conversation began.
    pub fn began(&mut self) {
        self.began += 1.0;
        self.forget();
    }

    fn forget(&mut self) {
        if self.began + self.after.first().copied().unwrap_or_default() > FORGET_AFTER {
            self.began /= 2.0;
            self.after.iter_mut().for_each(|count| *count /= 2.0);
        }
    }

    /// The chance, 0 to 1, that a conversation that has rested for so many seconds goes on.
    pub fn chance(&self, rested: f64) -> f64 {
        let at = position(rested);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "position() is between 0 and STEPS")]
        let step = at as usize;
        let count = |step: usize| self.after.get(step).copied().unwrap_or_default();
        let longer = count(step) + (count(step + 1) - count(step)) * (at - step as f64);
        longer / (longer + self.began)
    }

    /// Seconds of rest that halve the chance.
    pub fn half_life(&self) -> f64 {
        let half = self.chance(0.0) / 2.0;
        let step = self.after.iter().position(|longer| longer / (longer + self.began) < half).unwrap_or(STEPS);
        SHORTEST * STEP_FACTOR.powf(step as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chance_follows_the_pauses_that_were_seen() {
        let (mut people, mut agents) = (Returns::default(), Returns::default());
        for _ in 0..200 {
            people.began();
            agents.began();
            for pause in [5.0, 20.0, 60.0] {
                people.returned(pause);
                agents.returned(pause / 20.0);
            }
        }
        assert!((0.7..0.8).contains(&people.chance(0.0)), "{}", people.chance(0.0));
        assert!(people.chance(10.0) > 0.5 && people.chance(10.0) < people.chance(2.0));
        assert!(people.chance(300.0) < ENDED_BELOW);
        assert!((20.0..90.0).contains(&people.half_life()), "{}", people.half_life());
        assert!(agents.chance(10.0) < ENDED_BELOW && agents.chance(1.0) > 0.4);
    }

    #[test]
    fn before_anything_is_seen_a_conversation_is_likely_to_go_on_for_minutes() {
        let unseen = Returns::default();
        assert!(unseen.chance(0.0) > 0.8 && unseen.chance(300.0) > 0.5, "{}", unseen.chance(300.0));
        assert!(unseen.chance(1e9) <= f64::EPSILON);
    }

    #[test]
    fn what_changed_is_learned_and_the_chance_never_grows_with_the_pause() {
        let mut returns = Returns::default();
        for _ in 0..5000 {
            returns.returned(1.0);
        }
        for _ in 0..5000 {
            returns.began();
        }
        assert!(returns.chance(0.0) < 0.05);
        let chances: Vec<f64> = (0..2000).map(|second| returns.chance(f64::from(second) * 3.0)).collect();
        assert!(chances.windows(2).all(|pair| pair[1] <= pair[0] + 1e-12));
    }
}
