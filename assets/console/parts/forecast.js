// The jobs that become due, as bars for the next minutes and hours: of all topics, or of one topic.

import { barChart } from '../chart.js';
import { h } from '../dom.js';
import { clockTime, count } from '../format.js';
import { t } from '../i18n.js';
import { card } from './card.js';
import { loaded } from './problem.js';

const isMinute = (bucket) => bucket.to_ms - bucket.from_ms <= 60000;
const sum = (buckets) => buckets.reduce((all, bucket) => all + bucket.jobs, 0);

function bars(buckets, each) {
  return buckets.map((bucket, i) => ({
    key: bucket.from_ms, parts: [{ value: bucket.jobs, color: 'delayed' }], caption: i % each === 0 ? clockTime(bucket.from_ms) : '',
    title: `${clockTime(bucket.from_ms)} – ${clockTime(bucket.to_ms)}: ${t('n.jobs', { n: count(bucket.jobs) })}`,
  }));
}

function half(key, title, buckets, each, jobs) {
  const all = t('n.jobs', { n: count(jobs) });
  return h('div', { class: 'forecast', key }, h('h3', { class: 'sub' }, title, h('span', { class: 'soft' }, ` · ${all}`)),
    barChart({ key, label: `${title}: ${all}`, bars: bars(buckets, each), height: 96 }));
}

/** @param {import('../resource.js').Resource<any>} it the resource of `GET /v1/forecast` */
export function forecastCard(it) {
  return card({ title: t('forecast'), key: 'forecast', help: t('forecast.help') }, loaded(it, (data) => {
    const minutes = data.buckets.filter(isMinute);
    const hours = data.buckets.filter((bucket) => !isMinute(bucket));
    return [
      h('div', { class: 'grid grid--2 grid--tight', key: 'halves' },
        half('minutes', t('forecast.minutes'), minutes, 2, sum(minutes)), half('hours', t('forecast.hours'), hours, 4, sum(data.buckets))),
      data.capped && h('p', { class: 'soft', key: 'capped' }, t('forecast.capped')),
      data.later > 0 && h('p', { class: 'soft', key: 'later' }, t('forecast.later', { n: count(data.later) }))];
  }));
}
