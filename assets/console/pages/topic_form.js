// The form of a topic: registers one, or changes one. The daemon checks values while the user types. Nothing is changed
// before the user saves the form. A change that somebody else has made meanwhile is not overwritten.

import { change, get, path, post, Problem, query, request } from '../api.js';
import { h } from '../dom.js';
import { moment } from '../format.js';
import { dropDraft, keepDraft, keptDraft } from '../drafts.js';
import { has, t } from '../i18n.js';
import { button, linkButton } from '../parts/button.js';
import { card, pageHead } from '../parts/card.js';
import { checkbox, field } from '../parts/field.js';
import { note, problemNote, skeleton } from '../parts/problem.js';
import { timeline } from '../parts/retry.js';
import { topicHref } from '../parts/search.js';
import { say } from '../parts/toast.js';
import { FIELDS, formOf, given, GROUPS, newForm, newSecret, saidOf } from '../parts/topic_fields.js';
import { topicHead } from '../parts/topic_head.js';
import { topicSettings } from '../parts/topic_settings.js';
import { detailText, reasonText } from '../reason.js';
import { redraw } from '../redraw.js';
import { mayChange } from '../session.js';

const CHECK_AFTER_MS = 250;

function optionsOf(told, value) {
  // Other programs may write the registry, with values that are not options here. Such a value is shown as it is.
  const options = told.options.includes(value) ? told.options : [...told.options, value];
  return options.map((option) => {
    const key = `option.${told.name}.${option}`;
    return [option, has(key) ? t(key) : option];
  });
}

/** A text about who changed the topic first. Empty if the audit log does not say. */
async function whoWasFaster(name) {
  try {
    const { entries } = await get(`/v1/audit${query({ limit: 50 })}`);
    const last = entries.find((entry) => entry.target === name && /^topic\.(create|set|change|delete)$/.test(entry.action));
    return last ? t('form.faster.who', { who: last.who || t('audit.nobody'), at: moment(last.at_ms) }) : '';
  } catch {
    return '';
  }
}

class Form {
  constructor(context, name) {
    Object.assign(this, { name, isNew: name === null, topic: null, etag: null, values: newForm(), touched: new Set(), opened: new Set(['retry']), noSecrets: false, problems: new Map(), checked: null, busy: false, problem: null, faster: null, loading: null });
    context.onLeave(() => clearTimeout(this.timer));
    if (!this.isNew) this.load(keptDraft());
    else {
      Object.assign(this, keptDraft());
      this.check();
    }
  }

  /** Reads the topic. `draft`: the entries from before the session ended. */
  async load(draft = null) {
    if (!draft) dropDraft();
    Object.assign(this, { loading: null, problem: null, faster: null });
    try {
      const { json, headers } = await request('GET', path('topics', this.name));
      Object.assign(this, { topic: json, etag: headers.get('etag'), values: formOf(json), touched: new Set(), noSecrets: false }, draft);
      this.check();
    } catch (problem) {
      this.loading = problem;
    }
    redraw();
  }

  set(name, value) {
    this.values[name] = value;
    this.touched.add(name);
    this.entered();
  }

  /** Keeps the entries. They are kept with their revision, so that a later save does not overwrite another person's change. */
  entered() {
    const { values, touched, opened, noSecrets, etag } = this;
    keepDraft({ values, touched, opened, noSecrets, ...(etag && { etag }) });
    this.later();
    redraw();
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), CHECK_AFTER_MS);
  }

  given() {
    const topic = given(this.values, this.noSecrets);
    if (!this.isNew) topic.name = this.name;
    // The stored `old_secrets_until` belongs to the secrets that this change replaces. If `secrets` is sent without
    // `old_secrets_until`, the daemon sets `old_secrets_until` to null.
    if ('secrets' in topic && !this.touched.has('old_secrets_until')) delete topic.old_secrets_until;
    return topic;
  }

  async check() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const topic = Object.fromEntries(Object.entries(this.given()).filter(([, value]) => value !== null));
    try {
      const checked = await post('/v1/check/topic', topic);
      if (turn !== this.turn) return;
      this.checked = checked.timetable?.length > 0 ? checked : this.checked;
      this.problems = new Map(checked.problems.map((one) => [one.field ?? '', reasonText({ code: 'bad_field', ...one })]));
    } catch (problem) {
      if (turn !== this.turn) return;
      if (problem.field) this.problems = new Map([[problem.field, problem.detail]]);
    }
    redraw();
  }

  problemOf(name) {
    // A list of delays has its own field in this form. For the daemon, the list is the value of `retry`.
    const isList = this.values.retry === 'list';
    if (name === 'retry' && isList) return null;
    const own = name === 'retry_list' ? 'retry' : name;
    const isSeen = this.touched.has(name) || this.tried;
    return isSeen ? this.problems.get(own) ?? null : null;
  }

  async save() {
    if (this.busy) return;
    Object.assign(this, { busy: true, tried: true, problem: null, faster: null });
    redraw();
    try {
      await this.send();
    } catch (problem) {
      await this.refused(problem);
    }
    this.busy = false;
    redraw();
    requestAnimationFrame(() => document.querySelector('[aria-invalid="true"]')?.focus());
  }

  async send() {
    const topic = this.given();
    if (this.isNew) {
      await post('/v1/topics', Object.fromEntries(Object.entries(topic).filter(([, value]) => value !== null)));
      dropDraft();
      say(t('topic.registered', { topic: topic.name }));
      location.hash = topicHref(topic.name);
    } else {
      // This is a PATCH. A PUT would remove the secrets, because the form does not know them.
      await change(path('topics', this.name), topic, this.etag ? { 'if-match': this.etag } : {});
      dropDraft();
      say(t('topic.saved', { topic: this.name }));
      location.hash = topicHref(this.name);
    }
  }

  async refused(problem) {
    if (problem instanceof Problem && problem.status === 412) this.faster = (await whoWasFaster(this.name)) || t('form.faster');
    else if (problem.field && FIELDS.some((one) => one.name === problem.field)) this.problems = new Map([...this.problems, [problem.field, problem.detail]]);
    else this.problem = problem;
  }
}

function secretsField(form, common) {
  const n = form.topic?.secrets ?? 0;
  return h('div', { class: 'field--wide', key: 'secrets' },
    n > 0 && h('p', { class: 'field-help', key: 'n' }, t('form.secrets.now', { n })),
    field({ ...common, kind: 'area', rows: 2, help: t('field.secrets.help') }),
    h('div', { class: 'line', key: 'do' },
      button({ label: t('form.secrets.new'), icon: 'tokens', small: true, onclick: () => form.set('secrets', [form.values.secrets.trim(), newSecret()].filter(Boolean).join('\n')) }),
      n > 0 && checkbox({ name: 'no_secrets', label: t('form.secrets.none'), checked: form.noSecrets, onchange: (no) => { form.noSecrets = no; form.entered(); } })));
}

function entry(form, told) {
  if (told.shown && !told.shown(form.values)) return null;
  if (told.name === 'name' && !form.isNew) return null;
  const common = {
    name: told.name, label: t(`field.${told.name}`), help: t(`field.${told.name}.help`), value: form.values[told.name], problem: form.problemOf(told.name), mono: told.mono, wide: told.wide,
    onchange: (value) => form.set(told.name, value), required: told.name === 'name' || told.name === 'callback', autofocus: form.isNew && told.name === 'name',
  };
  if (told.kind === 'secrets') return secretsField(form, common);
  if (told.kind === 'select' || told.kind === 'switch') return field({ ...common, kind: 'select', options: optionsOf(told, common.value) });
  if (told.kind === 'headers') return field({ ...common, kind: 'area', rows: 3, placeholder: 'x-shop: 7' });
  return field({ ...common, placeholder: t(`field.${told.name}.hint`) === `field.${told.name}.hint` ? undefined : t(`field.${told.name}.hint`) });
}

function summary(form, group, fields) {
  const bad = fields.filter((told) => form.problemOf(told.name)).length;
  const said = group === 'security' && form.topic?.secrets > 0 && form.values.secrets === '' && !form.noSecrets
    ? t('form.secrets.kept', { n: form.topic.secrets })
    : saidOf(fields, form.values).map(([name, text]) => (name === 'secrets' ? t('field.secrets') : `${t(`field.${name}`)}: ${text.replaceAll('\n', ', ')}`)).join(' · ');
  return h('summary', { class: 'group-summary' }, h('span', { class: 'group-name' }, t(`group.${group}`)),
    bad > 0 ? h('span', { class: 'bad-text', key: 'bad' }, t('form.problems', { n: bad })) : h('span', { class: 'soft group-said', key: 'said' }, said || t('form.defaults')));
}

function groupView(form, [group, fields], i) {
  const body = h('div', { class: 'fields' }, fields.map((told) => entry(form, told)));
  // A group is opened when one of its fields has a problem. It stays open when the problem is solved, because the user
  // is typing there.
  if (fields.some((told) => form.problemOf(told.name))) form.opened.add(group);
  const times = group === 'retry' && form.checked && h('div', { class: 'retry-card', key: 'times' }, h('h3', { class: 'sub' }, t('retry.title')), timeline(form.checked));
  if (i === 0) return card({ key: group, title: t(`group.${group}`) }, body);
  return h('details', { class: 'card group', key: group, open: form.opened.has(group), ontoggle: (event) => form.opened[event.target.open ? 'add' : 'delete'](group) }, summary(form, group, fields), h('div', { class: 'card-body' }, times, body));
}

function view(form) {
  return h('form', { class: 'form', novalidate: true, key: 'form', onsubmit: (event) => { event.preventDefault(); form.save(); } },
    GROUPS.map((group, i) => groupView(form, group, i)),
    h('div', { class: 'form-foot', key: 'foot' },
      form.problems.has('') && form.tried && note('bad', h('p', null, form.problems.get(''))),
      form.faster && note('warn', h('p', null, form.faster), button({ label: t('form.reload'), small: true, onclick: () => form.load() })),
      problemNote(form.problem),
      h('div', { class: 'form-actions' },
        button({ label: form.isNew ? t('topic.register') : t('save'), type: 'submit', kind: 'primary', busy: form.busy }),
        linkButton({ label: t('cancel'), href: form.isNew ? '#/topics' : topicHref(form.name) }))));
}

/** @param {import('../app.js').Context} context @returns {import('../app.js').Page} */
export default function topicForm(context) {
  const form = new Form(context, context.params.topic ?? null);
  const isFixed = () => form.topic?.source === 'file' || !mayChange();
  return {
    title: () => (form.isNew ? t('topic.register') : `${form.name} · ${t('tab.settings')}`),
    view: () => {
      if (form.isNew) {
        return [pageHead({ title: t('topic.register'), about: t('topic.register.about'), back: { href: '#/topics', label: t('nav.topics') } }),
          mayChange() ? view(form) : note('info', h('p', null, t('read_only.reason')))];
      }
      const head = topicHead({ name: form.name, set: form.topic, tab: 'edit', reload: () => {} });
      if (!form.topic) return [head, form.loading ? problemNote(form.loading, () => form.load(keptDraft())) : skeleton(6)];
      if (isFixed()) return [head, note('info', h('p', null, mayChange() ? t('topic.from_file') : t('read_only.reason'))), topicSettings(form.topic, form.checked)];
      return [head, form.topic.problem && note('warn', h('p', null, h('b', null, t('topic.problem')), ' ', detailText(form.topic.problem)), h('p', null, t('form.problem'))), view(form)];
    },
  };
}
