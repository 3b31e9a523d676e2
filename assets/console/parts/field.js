// Fields of forms. A field has a label, an input, a help text and an error message. Attributes connect these with each
// other.

import { classes, h } from '../dom.js';
import { icon } from './icon.js';

/**
 * @typedef {{name: string, label: string, help?: any, problem?: ?string, value?: any, onchange?: (value: any) => void, kind?: string,
 *   options?: [string, string][], placeholder?: string, required?: boolean, disabled?: boolean, autocomplete?: string, mono?: boolean, rows?: number,
 *   min?: number, max?: number, autofocus?: boolean, hideLabel?: boolean, key?: string, wide?: boolean, list?: string[]}} Field
 */

function control(told, ids) {
  const common = {
    id: ids.input, name: told.name, disabled: told.disabled ?? false, required: told.required, autocomplete: told.autocomplete ?? 'off',
    'aria-describedby': [told.help && ids.help, told.problem && ids.problem].filter(Boolean).join(' ') || undefined,
    'aria-invalid': told.problem ? 'true' : undefined, placeholder: told.placeholder,
    // (A dialog gives the focus to the element with this attribute. A page does not, so `mount` does it.)
    autofocus: told.autofocus, mount: told.autofocus ? (el) => el.focus() : undefined,
  };
  const changed = (event) => told.onchange?.(event.target.value);
  if (told.kind === 'select') {
    return h('select', { ...common, class: 'input', value: told.value, onchange: changed }, told.options.map(([value, label]) => h('option', { key: value, value }, label)));
  }
  if (told.kind === 'area') {
    return h('textarea', { ...common, class: classes('input', told.mono && 'mono'), rows: told.rows ?? 3, spellcheck: 'false', value: told.value, oninput: changed });
  }
  return h('input', {
    ...common, class: classes('input', told.mono && 'mono'), type: told.kind ?? 'text', value: told.value, oninput: changed, spellcheck: 'false', min: told.min, max: told.max,
  });
}

/** @param {Field} told */
export function field(told) {
  const ids = { input: `f-${told.name}`, help: `f-${told.name}-help`, problem: `f-${told.name}-problem` };
  return h('div', { class: classes('field', told.problem && 'field--bad', told.wide && 'field--wide'), key: told.key ?? told.name },
    h('label', { class: told.hideLabel ? 'sr' : 'field-label', for: ids.input }, told.label),
    control(told, ids),
    told.problem && h('p', { class: 'field-problem', id: ids.problem, key: 'problem' }, icon('warn'), told.problem),
    told.help && h('p', { class: 'field-help', id: ids.help, key: 'help' }, told.help));
}

/** A checkbox. @param {{name: string, label: any, checked: boolean, onchange: (checked: boolean) => void, disabled?: boolean, hideLabel?: boolean, key?: string, some?: boolean}} told */
export function checkbox({ name, label, checked, onchange, disabled = false, hideLabel = false, key, some = false }) {
  return h('label', { class: 'check', key: key ?? name },
    h('input', { type: 'checkbox', name, checked, indeterminate: some, disabled, onchange: (event) => onchange(event.target.checked) }),
    h('span', { class: hideLabel ? 'sr' : '' }, label));
}

/**
 * A choice between few options, which are shown side by side.
 * @param {{name: string, label: string, value: string, options: [string, any][], onchange: (value: string) => void, key?: string}} told
 */
export function segments({ name, label, value, options, onchange, key }) {
  return h('div', { class: 'segments', role: 'group', 'aria-label': label, key: key ?? name },
    options.map(([option, text]) => h('button', {
      key: option, type: 'button', class: classes('segment', option === value && 'segment--on'), 'aria-pressed': option === value ? 'true' : 'false', onclick: () => onchange(option),
    }, text)));
}
