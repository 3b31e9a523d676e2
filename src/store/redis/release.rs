//! Releases jobs that are held back, each at its home.

use super::RedisStore;
use super::answer::{self, strange};
use super::change::on_its_way;
use super::nodes::Survey;
use super::reconcile::Elsewhere;
use super::script::Script;
use crate::job::{Due, JobKey};
use crate::store::{HELD_MS, Result};

impl RedisStore {
    /// Gives jobs that are held back their due times. It does no harm to release a job again: it is not held back any more.
    pub(super) fn release_all(&self, jobs: &[(JobKey, Due)]) -> Vec<Result<bool>> {
        let survey = self.survey_for_change();
        let was_unsure = self.is_unsure(&survey);
        let mut released = self.release_by(jobs, &survey);
        if let Some(survey) = self.survey_again(&survey, was_unsure) {
            let again = self.release_by(jobs, &survey);
            for (first, again) in released.iter_mut().zip(again) {
                if *first != Ok(true) {
                    *first = again;
                }
            }
        }
        released
    }

    fn release_by(&self, jobs: &[(JobKey, Due)], survey: &Survey) -> Vec<Result<bool>> {
        let keys: Vec<&JobKey> = jobs.iter().map(|(key, _)| key).collect();
        let elsewhere = self.bring_home(&keys, survey);
        let homes: Vec<usize> = keys.iter().map(|key| survey.map.home(key)).collect();
        let reach = |i: usize| {
            if survey.is_silent(homes[i]) {
                return Err(self.nodes.silent(homes[i]));
            }
            if elsewhere[i] == Elsewhere::OnItsWay {
                return Err(on_its_way());
            }
            self.vouches(keys[i], survey).map(|()| false)
        };
        let mut out: Vec<Result<bool>> = (0..keys.len()).map(reach).collect();
        let known: Vec<usize> = (0..keys.len()).filter(|i| out[*i].is_ok()).collect();
        let items: Vec<(&JobKey, Due, usize)> =
            known.iter().map(|i| (keys[*i], jobs[*i].1, homes[*i])).collect();
        let place = |(key, _, home): &(&JobKey, Due, usize)| Ok(self.nodes.place(*home, key));
        let words = |items: &[&(&JobKey, Due, usize)], cmd: &mut redis::Cmd| {
            for (key, due, _) in items {
                cmd.arg(key.id.as_str()).arg(answer::due(*due));
            }
        };
        let held = HELD_MS.to_string();
        let letters = self.each(Script::Release, &items, place, |(key, ..)| &key.topic, &[&held], words);
        for (i, letter) in known.into_iter().zip(letters) {
            out[i] = letter.and_then(|[letter]: [u8; 1]| match letter {
                b'd' => Ok(true),
                b'n' => Ok(false),
                _ => Err(strange("an answer")),
            });
        }
        out
    }
}
