import type { LookUp } from './expand.js';
import type { ProbeAnswer, Tool, ToolAnswer, ToolBody } from './tool.js';

/** What stands in place of a secret that a target sent back. */
const HIDDEN = '[secret]';

/** Shorter values are in too much that is none of them. */
const LENGTH_MIN = 6;
/** Values that are remembered: those in force, and the last ones before them. */
const VALUES_MAX = 200;

/**
 * Secrets as they are handed out, so that a target which sends one back (in an error, say) does not make it part of the
 * record: what a target says is kept whatever it is, but a secret is never in prompts, histories, events or exports
 * (SPEC 3.1, 11).
 */
export class UsedSecrets {
  readonly #lookUp: LookUp;
  readonly #values = new Set<string>();

  constructor(lookUp: LookUp) {
    this.#lookUp = lookUp;
  }

  /** The value of a secret as it is now, remembered. */
  readonly read: LookUp = (name) => {
    const value = this.#lookUp(name);
    if (value !== undefined && value.length >= LENGTH_MIN && !this.#values.has(value)) {
      this.#values.add(value);
      const [oldest = ''] = this.#values;
      if (this.#values.size > VALUES_MAX) this.#values.delete(oldest);
    }
    return value;
  };

  /** The same tool, whose answers hold no secret that this process has handed out. */
  hideFrom(tool: Tool): Tool {
    const { probe } = tool;
    return {
      ...tool,
      call: async (call) => this.#hideInAnswer(await tool.call(call)),
      ...(probe === undefined
        ? {}
        : { probe: async (query) => this.#hideInProbe(await probe.call(tool, query)) }),
    };
  }

  #hideInAnswer(answer: ToolAnswer): ToolAnswer {
    switch (answer.kind) {
      case 'succeeded':
        return {
          ...answer,
          reference: this.#hideOrNull(answer.reference),
          body: this.#hideInBody(answer.body),
        };
      case 'rejected':
        return { ...answer, status: this.#hide(answer.status), body: this.#hideInBody(answer.body) };
      case 'not_sent':
        return { ...answer, reason: this.#hide(answer.reason) };
      case 'throttled':
      case 'in_progress':
        return { ...answer, body: this.#hideInBodyOrNull(answer.body) };
      case 'unknown':
        return { ...answer, reason: this.#hide(answer.reason), body: this.#hideInBodyOrNull(answer.body) };
    }
  }

  #hideInProbe(answer: ProbeAnswer): ProbeAnswer {
    switch (answer.kind) {
      case 'found':
        return {
          ...answer,
          reference: this.#hideOrNull(answer.reference),
          body: this.#hideInBody(answer.body),
        };
      case 'absent':
        return { ...answer, body: this.#hideInBodyOrNull(answer.body) };
      case 'inconclusive':
        return { ...answer, reason: this.#hide(answer.reason), body: this.#hideInBodyOrNull(answer.body) };
    }
  }

  #hideOrNull(text: string | null): string | null {
    return text === null ? null : this.#hide(text);
  }

  #hide(text: string): string {
    return this.#forms().reduce((shown, form) => shown.replaceAll(form, HIDDEN), text);
  }

  #hideInBodyOrNull(body: ToolBody | null): ToolBody | null {
    return body === null ? null : this.#hideInBody(body);
  }

  // Byte by byte: a body need not be text.
  #hideInBody(body: ToolBody): ToolBody {
    const bytes = this.#forms().reduce(
      (shown, form) => withoutBytes(shown, Buffer.from(form)),
      Buffer.from(body.bytes.buffer, body.bytes.byteOffset, body.bytes.byteLength),
    );
    return bytes.length === body.bytes.length && bytes.equals(body.bytes) ? body : { ...body, bytes };
  }

  /** The values as they are, as JSON writes them, and as basic credentials; the longest first. */
  #forms(): string[] {
    const forms = [...this.#values].flatMap((value) => [
      value,
      JSON.stringify(value).slice(1, -1),
      Buffer.from(value).toString('base64'),
    ]);
    return [...new Set(forms)].sort((a, b) => b.length - a.length);
  }
}

function withoutBytes(bytes: Buffer, secret: Buffer): Buffer {
  const parts: Buffer[] = [];
  let from = 0;
  for (let at = bytes.indexOf(secret); at >= 0; at = bytes.indexOf(secret, from)) {
    parts.push(bytes.subarray(from, at), Buffer.from(HIDDEN));
    from = at + secret.length;
  }
  return from === 0 ? bytes : Buffer.concat([...parts, bytes.subarray(from)]);
}
