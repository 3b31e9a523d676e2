// A topic's settings as names and values, by group. Empty settings are left out. Only the form changes
// settings.

import { h } from '../dom.js';
import { spanText } from '../span.js';
import { t } from '../i18n.js';
import { card, facts } from './card.js';
import { timeline } from './retry.js';
import { codeBlock } from './snippet.js';

const isSpan = (text) => text && text !== '0s';
const list = (values) => (values?.length > 0 ? values.join(', ') : null);

function retryText(topic) {
  if (Array.isArray(topic.retry)) return topic.retry.map(spanText).join(', ');
  const base = spanText(topic.retry_base);
  return topic.retry === 'exponential' ? t('settings.exponential', { base, cap: spanText(topic.retry_cap) }) : t('settings.2n1', { base });
}

/** @param {any} topic the answer of `GET /v1/topics/{t}` @param {?any} checked the answer of `POST /v1/check/topic` */
export function topicSettings(topic, checked) {
  const headers = Object.entries(topic.headers ?? {}).map(([name, value]) => `${name}: ${value}`).join('\n');
  const name = (field) => t(`field.${field}`);
  return card({ title: t('settings'), key: 'settings' },
    h('div', { class: 'grid grid--2', key: 'groups' },
      h('div', { key: 'delivery' }, h('h3', { class: 'sub' }, t('group.delivery')), facts([
        topic.mode === 'pull' && [name('mode'), t('option.mode.pull')],
        topic.mode === 'pull' && [name('ttr'), spanText(topic.ttr)],
        topic.mode === 'pull' && topic.on_reserve === 'remove' && [name('on_reserve'), t('option.on_reserve.remove')],
        topic.mode === 'pull' && topic.retried_first && [name('retried_first'), String(topic.retried_first)],
        [name('callback'), topic.callback && h('span', { class: 'mono break' }, `${topic.method} ${topic.callback}`)],
        [name('payload'), t(`option.payload.${topic.payload}`)],
        [name('timeout'), t('settings.timeout', { all: spanText(topic.timeout), connect: spanText(topic.connect_timeout) })],
        topic.tls_verify === false && [name('tls_verify'), t('option.tls_verify.false')],
        [name('success'), h('code', null, topic.success)],
        [name('re_notify_flag'), topic.re_notify_flag && h('code', null, topic.re_notify_flag)],
        topic.re_notify_flag && [name('max_notifications'), topic.max_notifications ?? t('settings.no_limit')],
        [name('delay'), isSpan(topic.delay) ? spanText(topic.delay) : t('settings.at_once')],
        isSpan(topic.expire_after) && [name('expire_after'), spanText(topic.expire_after)],
        [name('answer_later'), isSpan(topic.answer_later) ? spanText(topic.answer_later) : t('settings.never')],
        topic.job_hosts?.length > 0 && [name('job_hosts'), list(topic.job_hosts)],
        [name('headers'), headers && codeBlock(headers, name('headers'))],
      ])),
      h('div', { key: 'limits' }, h('h3', { class: 'sub' }, t('group.limits')), facts([
        [name('max_in_flight'), topic.max_in_flight ?? t('settings.no_limit')],
        [name('rate'), topic.rate ?? t('settings.no_limit')],
        [name('priority'), t(`priority.${topic.priority}`)],
        [name('breaker_failures'), topic.breaker_failures > 0 ? t('settings.breaker', { n: topic.breaker_failures, pause: spanText(topic.breaker_pause) }) : t('settings.never')],
        [name('catch_up'), topic.catch_up],
        [name('durability'), topic.durability ?? t('settings.as_store')],
        [name('alert'), list(topic.alert) ?? t('settings.nobody')],
        [name('secrets'), topic.secrets > 0 ? t(topic.old_secrets_until && topic.secrets > 1 ? 'settings.secrets.until' : 'settings.secrets', { n: topic.secrets, until: topic.old_secrets_until }) : t('settings.unsigned')],
        [name('keep_dead'), isSpan(topic.keep_dead) ? spanText(topic.keep_dead) : t('settings.for_ever')],
        [name('keep_done'), isSpan(topic.keep_done) ? spanText(topic.keep_done) : t('settings.never')],
        [name('keep_done_jobs'), String(topic.keep_done_jobs)],
        [name('keep_done_body'), String(topic.keep_done_body)],
        topic.on_done && [name('on_done'), topic.on_done],
        [name('creator'), topic.creator || null],
      ]))),
    h('h3', { class: 'sub', key: 'retry' }, t('group.retry'), h('span', { class: 'soft' }, ` · ${retryText(topic)}`)),
    checked?.timetable?.length > 0 && timeline(checked),
    facts([[name('max_attempts'), String(topic.max_attempts)], [name('retry_on'), list(topic.retry_on) ?? t('settings.all_failures')]], 'retry_facts'));
}
