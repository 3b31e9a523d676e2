export class DqError extends Error {
  constructor(code, detail, status = 0, field = undefined, options = undefined) {
    super(`${code}: ${detail}`, options);
    this.name = 'DqError';
    this.code = code;
    this.detail = detail;
    this.status = status;
    this.field = field;
  }

  static fromAnswer(status, answer) {
    return typeof answer?.code === 'string'
      ? new DqError(answer.code, answer.detail ?? '', status, answer.field)
      : new DqError('bad_answer', `status ${status} without a problem of dq`, status);
  }

  get isTransient() {
    return ['no_answer', 'in_progress'].includes(this.code) || [408, 502, 503, 504].includes(this.status);
  }
}
