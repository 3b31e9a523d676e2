// Commands that add the first job of a topic, for the user to copy. They have the address of this daemon.

import { h } from '../dom.js';
import { t } from '../i18n.js';
import { path } from '../api.js';
import { snippet } from './snippet.js';

const TOKEN = 'dq_YOUR_TOKEN';

/** The command for curl. @param {string} topic */
function curl(topic) {
  return `curl -H 'Authorization: Bearer ${TOKEN}' \\\n  --json '{"id": "42", "delay": "30m", "body": {"order": 42}}' \\\n  ${location.origin}${path('topics', topic, 'jobs')}`;
}

/** The PHP code. It needs no library. @param {string} topic */
function php(topic) {
  return [
    '<?php',
    "$job = ['id' => '42', 'delay' => '30m', 'body' => ['order' => 42]];",
    "$context = stream_context_create(['http' => [",
    "    'method' => 'POST',",
    `    'header' => "Content-Type: application/json\\r\\nAuthorization: Bearer ${TOKEN}",`,
    "    'content' => json_encode($job),",
    "    'ignore_errors' => true,",
    ']]);',
    `echo file_get_contents('${location.origin}${path('topics', topic, 'jobs')}', false, $context);`,
  ].join('\n');
}

/** @param {string} topic */
export function firstJob(topic) {
  return h('div', { class: 'first-job', key: 'first' }, h('p', { class: 'soft' }, t('first_job.text')),
    h('div', { class: 'grid grid--2 grid--tight' }, snippet({ key: 'curl', label: 'curl', text: curl(topic) }), snippet({ key: 'php', label: 'PHP', text: php(topic) })),
    h('p', { class: 'field-help' }, t('first_job.token'), ' ', h('a', { href: '#/tokens' }, t('first_job.token.link'))));
}
