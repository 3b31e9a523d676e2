//! Shows jobs, and kicks jobs. As in beanstalkd, a kick makes buried or delayed jobs ready.

use super::super::problem::Problem;
use super::super::store_client::AnswerSender;
use super::session::BeanstalkSession;
use super::stored_job::body_bytes;
use super::tube_topic::topic_of;
use model::job::{JobKey, State, TopicName};
use model::letters::RedrivePace;
use model::scope::RequiredAccess;
use protocol::beanstalk::BeanstalkResponse;
use role::submit::{DeadLetterTask, ListRequest, StoreRequest};
use store::{Changed, DeadLetterSelection, StoredJob};

/// How many jobs one step of a kick handles.
const KICKED: usize = 100;

impl BeanstalkSession {
    /// Returns the first jobs of a topic in one state.
    async fn first_jobs(
        &self,
        topic: &TopicName,
        state: State,
        limit: usize,
    ) -> Result<Vec<StoredJob>, Problem> {
        let listing = ListRequest { topic: topic.clone(), state, filter: None, cursor: None, limit };
        let ask = |reply: AnswerSender<_>| StoreRequest::list(listing, |page| reply.with(page));
        Ok(self.port().api.store_client.read(Some(self.holder().clone()), ask).await??.jobs)
    }

    /// Returns the topic of the used tube, if clients may see the jobs of this topic.
    fn used_topic(&self) -> Option<TopicName> {
        let topic = topic_of(self.used());
        let is_pulled = self.port().api.topics.borrow().is_pulled(topic.as_str());
        (is_pulled && self.port().permits(RequiredAccess::Jobs(topic.as_str()))).then_some(topic)
    }

    pub(super) async fn peek(&self, state: State) -> Result<BeanstalkResponse<'static>, Problem> {
        let Some(topic) = self.used_topic() else { return Ok(BeanstalkResponse::NotFound) };
        let first = self.first_jobs(&topic, state, 1).await?.pop();
        let number = first.as_ref().map_or(0, |view| self.port().number_of(&view.key));
        Ok(shown(number)(first))
    }

    pub(super) async fn redrive(
        &self,
        topic: TopicName,
        which: DeadLetterSelection,
        limit: usize,
    ) -> Result<usize, Problem> {
        let task = DeadLetterTask::Redrive(RedrivePace::default());
        let ask = |reply: AnswerSender<_>| {
            StoreRequest::dead_letters(topic, which, limit, task, |count| reply.with(count))
        };
        Ok(self.port().api.store_client.ask(0, ask).await??)
    }

    async fn run(&self, key: JobKey) -> Result<bool, Problem> {
        let ask = |reply: AnswerSender<_>| StoreRequest::run(key, |_, changed| reply.with(changed));
        Ok(self.port().api.store_client.ask(0, ask).await?? == Changed::Done)
    }

    /// Makes buried jobs of the used tube ready. If the tube has no buried jobs, makes its delayed jobs due now.
    pub(super) async fn kick(&self, count: u32) -> Result<BeanstalkResponse<'static>, Problem> {
        let Some(topic) = self.used_topic() else { return Ok(BeanstalkResponse::Kicked(0)) };
        self.port().check_produces(&topic)?;
        let most = count as usize;
        let mut kicked = 0;
        while kicked < most && !*self.port().api.closing.borrow() {
            match self.redrive(topic.clone(), DeadLetterSelection::All, (most - kicked).min(KICKED)).await? {
                0 => break,
                some => kicked += some,
            }
        }
        let are_buried = kicked > 0;
        while !are_buried && kicked < most && !*self.port().api.closing.borrow() {
            let mut some = 0;
            for view in self.first_jobs(&topic, State::Delayed, (most - kicked).min(KICKED)).await? {
                some += usize::from(self.run(view.key).await?);
            }
            if some == 0 {
                break;
            }
            kicked += some;
        }
        Ok(BeanstalkResponse::Kicked(kicked as u64))
    }

    pub(super) async fn kick_job(&self, number: u64) -> Result<BeanstalkResponse<'static>, Problem> {
        let found = self.find(number).await?;
        found.iter().try_for_each(|view| self.port().check_produces(&view.key.topic))?;
        let is_kicked = match found {
            Some(StoredJob { key, state: State::Delayed, .. }) => self.run(key).await?,
            Some(StoredJob { key: JobKey { topic, id }, state: State::Dead, .. }) => {
                self.redrive(topic, DeadLetterSelection::Ids(vec![id]), 1).await? > 0
            }
            _ => false,
        };
        Ok(if is_kicked { BeanstalkResponse::JobKicked } else { BeanstalkResponse::NotFound })
    }
}

/// Returns a function that makes the response of a command that shows a job. `number` is the number of the job.
pub(super) fn shown(number: u64) -> impl FnOnce(Option<StoredJob>) -> BeanstalkResponse<'static> {
    move |view| match view {
        Some(view) => {
            BeanstalkResponse::Found { id: number, body: body_bytes(&view.body, &view.headers).into() }
        }
        None => BeanstalkResponse::NotFound,
    }
}
