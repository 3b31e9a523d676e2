// The tags of jobs. Each tag is a link to the jobs of all topics that have it.

import { query } from '../api.js';
import { h } from '../dom.js';
import { t } from '../i18n.js';

/** Whether a text is a valid tag, or is empty. @param {string} text */
export const isTag = (text) => /^[^\s,"\\]*$/.test(text) && new TextEncoder().encode(text).length <= 64;

/** @param {string[]} tags */
export function tagLinks(tags) {
  return tags.map((tag, i) => [i > 0 && ' ', h('a', { key: tag, class: 'mono', href: `#/find${query({ tag })}` }, tag)]).flat();
}

/** The column of tags, if any of the jobs or records has some. @param {{tags?: string[]}[]} rows */
export function tagColumn(rows) {
  return rows.some((row) => row.tags) && { key: 'tags', label: t('job.tags'), view: (row) => tagLinks(row.tags ?? []) };
}
