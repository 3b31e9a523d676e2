//! What the connections of the port share: the tubes that are in use, their pauses, the counts of commands, and the
//! numbers of jobs.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::sync::watch;

use super::super::api::Api;
use super::super::problem::Problem;
use super::handoff::HandoffSender;
use super::held::JobNumberTable;
use super::number::{TopicHashes, number_of};
use super::tube_topic::{topic_of, tube_of};
use super::unregistered::UnregisteredTubes;
use host::now_ms;
use model::job::{JobKey, TopicName};
use model::scope::RequiredAccess;
use model::topic::{Topic, Topics};
use protocol::beanstalk::{ServerStats, TubeName};
use role::lock;

/// What the connections of the port share. The value is cheap to clone.
#[derive(Clone)]
pub(super) struct BeanstalkPort {
    pub api: Api,
    state: Arc<Mutex<BeanstalkPortState>>,
    numbers: Arc<Mutex<BeanstalkJobNumbers>>,
    /// Changes when a tube is paused or resumed.
    pauses: watch::Sender<()>,
    pub started: Instant,
    /// Passes connections to the next process.
    pub handoff: HandoffSender,
}

/// The numbers of jobs.
struct BeanstalkJobNumbers {
    topics: watch::Receiver<Topics>,
    tags: TopicHashes,
    aliases: JobNumberTable,
    /// The count in the last number (see `number`). It begins at random, so that processes rarely make the same numbers
    /// in the same second.
    next: u64,
}

impl BeanstalkJobNumbers {
    fn make(&mut self, topic: &TopicName) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.tags.number(topic, now_ms(), self.next)
    }
}

/// What is known of the tubes and the connections. It is kept only in memory.
#[derive(Default)]
pub(super) struct BeanstalkPortState {
    /// The tubes that are in use, and registered tubes that were in use. A tube that an earlier process has paused has
    /// an entry, too.
    tubes: HashMap<TubeName, TubeState>,
    /// The counts of commands and of connections.
    pub counts: ServerStats,
    /// The tubes that have no topic and that the log has named.
    pub unregistered: UnregisteredTubes,
}

/// What is known of a tube.
#[derive(Debug, Default)]
pub(super) struct TubeState {
    pub using: u64,
    pub watching: u64,
    pub waiting: u64,
    pub total_jobs: u64,
    pub cmd_delete: u64,
    pub cmd_pause_tube: u64,
    /// The length of the pause, and its end.
    pub pause: Option<(Duration, Instant)>,
}

impl TubeState {
    /// Returns the end of the tube's pause. None: the tube is not paused.
    pub fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.pause.map(|(_, until)| until).filter(|until| *until > now)
    }
}

/// Returns the tube with which each connection begins. This tube always exists.
pub(super) fn default_tube() -> TubeName {
    TubeName::new(b"default").expect("it is a valid name")
}

impl BeanstalkPort {
    pub(super) fn new(api: Api) -> BeanstalkPort {
        let topics = api.topics.clone();
        let tags = TopicHashes::new(&topics.borrow());
        let numbers =
            BeanstalkJobNumbers { topics, tags, aliases: JobNumberTable::default(), next: fastrand::u64(..) };
        BeanstalkPort {
            api,
            state: Arc::default(),
            numbers: Arc::new(Mutex::new(numbers)),
            pauses: watch::Sender::new(()),
            started: Instant::now(),
            handoff: HandoffSender::default(),
        }
    }

    pub(super) fn with_state<T>(&self, work: impl FnOnce(&mut BeanstalkPortState) -> T) -> T {
        work(&mut lock(&self.state))
    }

    /// Changes what is known of a tube. If nobody uses the tube and the tube has no pull topic, its entry is removed,
    /// even if the tube is paused.
    pub(super) fn with_tube<T>(&self, tube: &TubeName, work: impl FnOnce(&mut TubeState) -> T) -> T {
        let is_registered = self.is_registered(tube);
        self.with_state(|state| {
            let entry = state.tubes.entry(tube.clone()).or_default();
            let done = work(entry);
            let is_in_use = entry.using + entry.watching + entry.waiting > 0;
            if !is_in_use && !is_registered {
                state.tubes.remove(tube);
            }
            done
        })
    }

    /// Returns what is known of a tube. None: nothing is known, because the tube has no entry.
    pub(super) fn tube<T>(&self, tube: &TubeName, look: impl FnOnce(&TubeState) -> T) -> Option<T> {
        self.with_state(|state| state.tubes.get(tube).map(look))
    }

    /// Returns the end of a tube's pause. None: the tube is not paused.
    pub(super) fn paused_until(&self, tube: &TubeName, now: Instant) -> Option<Instant> {
        self.tube(tube, |known| known.paused_until(now)).flatten()
    }

    /// Pauses a tube for `span`. If `span` is zero, resumes the tube.
    pub(super) fn pause(&self, tube: &TubeName, span: Duration) {
        self.with_tube(tube, |known| {
            known.cmd_pause_tube += 1;
            known.pause = Some((span, Instant::now() + span)).filter(|_| !span.is_zero());
        });
        self.pauses.send_replace(());
    }

    /// Returns the paused tubes, the length of each pause, and its end.
    pub(super) fn pauses(&self, now: Instant) -> Vec<(TubeName, Duration, Instant)> {
        self.with_state(|state| {
            let paused = |(tube, known): (&TubeName, &TubeState)| {
                let (span, until) = known.pause.filter(|(_, until)| *until > now)?;
                Some((tube.clone(), span, until))
            };
            state.tubes.iter().filter_map(paused).collect()
        })
    }

    /// Takes over a pause from an earlier process. If the tube is already paused in this process, this pause stays as
    /// it is.
    pub(super) fn keep_pause(&self, tube: &TubeName, span: Duration, until: Instant) {
        // The entry stays although nobody uses the tube yet, because the connections that use the tube arrive later.
        // All pauses arrive in one message of limited size. So the number of entries is limited too.
        self.with_state(|state| {
            let known = state.tubes.entry(tube.clone()).or_default();
            let now = Instant::now();
            known.pause = known.pause.filter(|(_, until)| *until > now).or(Some((span, until)));
        });
        self.pauses.send_replace(());
    }

    /// Returns a receiver that is notified when a tube is paused or resumed.
    pub(super) fn follow_pauses(&self) -> watch::Receiver<()> {
        self.pauses.subscribe()
    }

    pub(super) fn permits(&self, need: RequiredAccess<'_>) -> bool {
        self.api.settings.beanstalk.scopes.iter().any(|scope| scope.permits(need))
    }

    /// Returns an error if `beanstalk.scopes` does not permit `produce` for the topic.
    pub(super) fn check_produces(&self, topic: &TopicName) -> Result<(), Problem> {
        if self.permits(RequiredAccess::Produce(topic.as_str())) {
            return Ok(());
        }
        let detail = format!("beanstalk.scopes does not permit produce:{topic}");
        Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail))
    }

    /// Returns the topic with this name, if it is registered.
    pub(super) fn topic(&self, name: &TopicName) -> Option<Arc<Topic>> {
        self.api.topics.borrow().get(name.as_str()).cloned()
    }

    fn is_registered(&self, tube: &TubeName) -> bool {
        self.api.topics.borrow().is_pulled(topic_of(tube).as_str())
    }

    /// Whether a tube exists: it is the default tube, its topic is registered, or somebody uses or watches it.
    pub(super) fn exists(&self, tube: &TubeName) -> bool {
        let is_in_use = || self.tube(tube, |known| known.using + known.watching > 0) == Some(true);
        *tube == default_tube() || self.is_registered(tube) || is_in_use()
    }

    /// Returns the pull topics whose jobs the clients may see.
    pub(super) fn topics(&self) -> Vec<Arc<Topic>> {
        let topics = self.api.topics.borrow();
        let is_shown = |topic: &&Arc<Topic>| {
            topics.is_pulled(topic.name.as_str()) && self.permits(RequiredAccess::Jobs(topic.name.as_str()))
        };
        topics.iter().filter(is_shown).cloned().collect()
    }

    /// Returns all tubes, sorted by name.
    pub(super) fn tubes(&self) -> BTreeSet<TubeName> {
        let mut tubes: BTreeSet<TubeName> = self.topics().iter().filter_map(|topic| tube_of(topic)).collect();
        tubes.insert(default_tube());
        self.with_state(|state| {
            let in_use = state.tubes.iter().filter(|(_, known)| known.using + known.watching > 0);
            tubes.extend(in_use.map(|(tube, _)| tube.clone()));
        });
        tubes
    }

    fn with_numbers<T>(&self, work: impl FnOnce(&mut BeanstalkJobNumbers) -> T) -> T {
        let mut numbers = lock(&self.numbers);
        if numbers.topics.has_changed().unwrap_or(false) {
            let tags = TopicHashes::new(&numbers.topics.borrow_and_update());
            numbers.tags = tags;
        }
        work(&mut numbers)
    }

    /// Makes a number for a job of a topic.
    pub(super) fn new_number(&self, topic: &TopicName) -> u64 {
        self.with_numbers(|numbers| numbers.make(topic))
    }

    /// Sets the count in the numbers to a new random value. This is needed when another process makes the same numbers.
    pub(super) fn change_numbers(&self) {
        self.with_numbers(|numbers| numbers.next = fastrand::u64(..));
    }

    /// Returns the number of a job. A job that was not added on this port gets a number that only this process knows.
    pub(super) fn number_of(&self, key: &JobKey) -> u64 {
        number_of(key).unwrap_or_else(|| {
            self.with_numbers(|numbers| match numbers.aliases.number(key) {
                Some(number) => number,
                None => {
                    let mut number = numbers.make(&key.topic);
                    while numbers.aliases.find(number).is_some() {
                        number = numbers.make(&key.topic);
                    }
                    numbers.aliases.insert(number, key);
                    number
                }
            })
        })
    }

    /// Keeps the number that an earlier process gave to a job that was not added on this port.
    pub(super) fn keep_number(&self, number: u64, key: &JobKey) {
        if number_of(key).is_none() {
            self.with_numbers(|BeanstalkJobNumbers { aliases, .. }| {
                if aliases.number(key).is_none() && aliases.find(number).is_none() {
                    aliases.insert(number, key);
                }
            });
        }
    }

    /// Returns the keys that the job with this number may have.
    pub(super) fn keys(&self, number: u64) -> Vec<JobKey> {
        self.with_numbers(|BeanstalkJobNumbers { tags, aliases, .. }| match aliases.find(number) {
            Some(key) => vec![key.clone()],
            None => {
                let key =
                    |topic: &TopicName| JobKey { topic: topic.clone(), id: super::number::id_of(number) };
                tags.find(number).iter().map(key).collect()
            }
        })
    }
}
