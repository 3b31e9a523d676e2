//! The threads that send: one for mail, and one for each webhook, so that a server that hangs delays only its own
//! messages. Messages for a thread wait in a short queue, and the thread reports their results.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use anyhow::Result;
use jiff::tz::TimeZone;

use delivery::alert::{AlertSendError, Mailer, Webhook};
use delivery::callback::{GuardRules, guarded_agent};
use model::notice::{Message, Recipient};
use model::settings::{Settings, SmtpSettings};

/// How many messages may wait for a thread.
const QUEUE: usize = 64;

/// How long a call to a webhook may take in all.
const PATIENCE: Duration = Duration::from_secs(10);

/// What happened to a message.
pub(super) type DeliveryReport = (Recipient, std::result::Result<(), AlertSendError>);

/// A mail to send.
type Mail = (SmtpSettings, String, Message);

/// The queues of the threads.
pub(super) struct Senders {
    mail: SyncSender<Mail>,
    webhooks: HashMap<String, SyncSender<Message>>,
}

impl Senders {
    /// Starts the threads.
    pub(super) fn start<W: Send + 'static>(
        settings: &Settings,
        zone: &TimeZone,
        report: &Sender<W>,
        word: fn(DeliveryReport) -> W,
    ) -> Result<Senders> {
        let (mail, queue) = sync_channel(QUEUE);
        let report_sender = report.clone();
        role::vital_thread("mail", move || {
            send_mails(&queue, |became| drop(report_sender.send(word(became))))
        })?;
        let mut webhooks = HashMap::new();
        for webhook in &settings.alert.webhooks {
            let agent = guarded_agent(GuardRules::new(&settings.callback), PATIENCE);
            let (sender, queue) = sync_channel::<Message>(QUEUE);
            let (report_sender, name) = (report.clone(), webhook.name.clone());
            let made = Webhook::new(agent, webhook, zone.clone());
            role::vital_thread("webhook", move || {
                while let Ok(message) = queue.recv() {
                    let sent = match &made {
                        Ok(webhook) => webhook.send(&message),
                        Err(e) => Err(AlertSendError::Server(e.to_string())),
                    };
                    let _ = report_sender.send(word((Recipient::Webhook(name.clone()), sent)));
                }
            })?;
            webhooks.insert(webhook.name.clone(), sender);
        }
        Ok(Senders { mail, webhooks })
    }

    /// Hands a message to its thread. Returns false if the thread's queue is full, or if there is no such thread.
    pub(super) fn send(&self, smtp: Option<&SmtpSettings>, to: &Recipient, message: Message) -> bool {
        match (to, smtp) {
            (Recipient::Mail(address), Some(smtp)) => {
                is_taken(self.mail.try_send((smtp.clone(), address.clone(), message)))
            }
            (Recipient::Mail(_), None) => false,
            (Recipient::Webhook(name), _) => {
                self.webhooks.get(name).is_some_and(|sender| is_taken(sender.try_send(message)))
            }
        }
    }
}

fn is_taken<T>(sent: std::result::Result<(), TrySendError<T>>) -> bool {
    sent.is_ok()
}

fn send_mails(queue: &Receiver<Mail>, report: impl Fn(DeliveryReport)) {
    let mut known: Option<(SmtpSettings, Mailer)> = None;
    while let Ok((smtp, to, message)) = queue.recv() {
        if known.as_ref().is_none_or(|(of, _)| *of != smtp) {
            known = match Mailer::new(&smtp) {
                Ok(mailer) => Some((smtp, mailer)),
                Err(e) => {
                    report((Recipient::Mail(to), Err(e)));
                    continue;
                }
            };
        }
        let sent = match &known {
            Some((_, mailer)) => mailer.send(&to, &message),
            None => continue,
        };
        // If the server does not work, the other waiting mails fail at once. Otherwise each of them would wait for the
        // server.
        let away = sent.as_ref().err().filter(|e| e.is_of_server()).map(ToString::to_string);
        report((Recipient::Mail(to), sent));
        if let Some(why) = away {
            for (_, to, _) in queue.try_iter() {
                report((Recipient::Mail(to), Err(AlertSendError::Server(why.clone()))));
            }
        }
    }
}
