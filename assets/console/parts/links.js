// Links to the job that a job follows, and to its followers.

import { h } from '../dom.js';
import { t } from '../i18n.js';

/** @param {{topic: string, id: string}} job */
const link = ({ topic, id }) => h('a', { key: `${topic}:${id}`, class: 'mono', href: `#/topics/${encodeURIComponent(topic)}/jobs/${encodeURIComponent(id)}` }, `${topic}:${id}`);

/** Facts with links: to the job that a job or record follows, and to its followers. @param {{then?: {topic: string, id: string}[], after?: {topic: string, id: string}}} job */
export function linkFacts({ then, after }) {
  return [
    after && [t('job.after'), link(after)],
    then?.length > 0 && [t('job.then'), then.map((one, i) => [i > 0 && ' ', link(one)]).flat()],
  ];
}
