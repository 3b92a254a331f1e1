import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { UNSTORABLE_CONTENT_TYPE } from '../activities/tools/answers.js';
import { CatalogueError, manifestOf, ToolCatalogue } from '../activities/tools/catalogue.js';
import { ToolDeclarationError } from '../activities/tools/declaration.js';
import {
  absent,
  defineTool,
  found,
  inProgress,
  isFunctionTool,
  notSent,
  rejected,
  succeeded,
  throttled,
} from '../activities/tools/define-tool.js';
import type { ToolContext, ToolDefinition } from '../activities/tools/define-tool.js';
import { RESULT_BYTES_MAX } from '../activities/tools/tool.js';
import type { ToolAnswer, ToolBody, ToolCall } from '../activities/tools/tool.js';
import { until } from './support/until.js';

const anything = { type: 'object' } as const;
type Loose = ToolDefinition<typeof anything>;

function makeTool(changes: Partial<Loose>) {
  return defineTool<typeof anything>({
    name: 'act',
    description: 'Acts.',
    input: anything,
    effect: { class: 'opaque' },
    run: () => null,
    ...changes,
  });
}

function newCall(changes: Partial<ToolCall> = {}): ToolCall {
  return {
    arguments: {},
    idempotencyKey: 'key-0123456789abcdef',
    effectId: 'eff_1',
    runId: 'run_1',
    tenantId: 'default',
    attempt: 2,
    signal: new AbortController().signal,
    timeoutMs: 5000,
    progress: () => undefined,
    ...changes,
  };
}

function read(body: ToolBody | null): unknown {
  return body === null ? null : JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(body.bytes));
}

async function answerTo(run: Loose['run']): Promise<ToolAnswer> {
  return makeTool({ run }).call(newCall());
}

describe('what run gives back', () => {
  test('a value is succeeded, and so is nothing', async () => {
    const answer = await answerTo(() => ({ sum: 3, list: [1, 'a', null] }));
    if (answer.kind !== 'succeeded') throw new Error(answer.kind);
    expect(answer.reference).toBeNull();
    expect(read(answer.body)).toEqual({ sum: 3, list: [1, 'a', null] });
    const nothing = await answerTo(() => undefined);
    expect(nothing.kind === 'succeeded' && read(nothing.body)).toBe(null);
  });

  test('a named answer says more; JSON that looks like one is only a value', async () => {
    const named = await answerTo(() => succeeded({ reference: 'pay_1', value: { ok: true } }));
    expect(named).toMatchObject({ kind: 'succeeded', reference: 'pay_1' });
    expect(await answerTo(() => rejected({ status: 'no_such_order' }))).toMatchObject({
      kind: 'rejected',
      status: 'no_such_order',
    });
    expect(await answerTo(() => notSent('offline'))).toEqual({ kind: 'not_sent', reason: 'offline' });
    expect(await answerTo(() => throttled({ retryAfterMs: 5 }))).toMatchObject({ retryAfterMs: 5 });
    expect(await answerTo(() => throttled({ retryAfterMs: NaN }))).toMatchObject({ retryAfterMs: null });
    expect(await answerTo(() => inProgress())).toMatchObject({ kind: 'in_progress', retryAfterMs: null });
    const copy = await answerTo(() => ({ kind: 'not_sent', reason: 'offline' }));
    expect(copy.kind).toBe('succeeded');
  });

  test('throwing, in either way, is unknown and keeps what was thrown', async () => {
    for (const run of [
      () => {
        throw new TypeError('the line went dead');
      },
      () => Promise.reject(new TypeError('the line went dead')),
    ]) {
      const answer = await answerTo(run);
      if (answer.kind !== 'unknown') throw new Error(answer.kind);
      expect(answer.reason).toBe('tool_threw');
      expect(read(answer.body)).toMatchObject({ name: 'TypeError', message: 'the line went dead' });
    }
    // eslint-disable-next-line @typescript-eslint/prefer-promise-reject-errors -- tools of others do this
    expect(await answerTo(() => Promise.reject(undefined))).toMatchObject({ reason: 'tool_threw' });
  });

  const cycle: Record<string, unknown> = {};
  cycle['self'] = cycle;
  let deep: unknown = 'bottom';
  for (let level = 0; level < 70; level += 1) deep = { deep };
  const throwing = Object.defineProperty({}, 'x', {
    enumerable: true,
    get() {
      throw new Error('no');
    },
  });

  test.each([
    ['a Date', { when: new Date(0) }, '/when'],
    ['a BigInt', { a: [1, 2n] }, '/a/1'],
    ['undefined inside', { a: undefined }, '/a'],
    ['NaN', { a: NaN }, '/a'],
    ['Infinity', [Infinity], '/0'],
    ['a cycle', cycle, '/self'],
    ['2^53+1', { n: 2 ** 53 + 2 }, '/n'],
    ['a class instance', { m: new Map() }, '/m'],
    ['a NUL', { s: 'a\u0000b' }, '/s'],
    ['a lone surrogate', { s: '\ud800' }, '/s'],
    ['a forbidden key', JSON.parse('{"__proto__":1}') as unknown, '/__proto__'],
    ['a function', { f: () => 1 }, '/f'],
    ['too deep', deep, undefined],
    ['a throwing getter', throwing, '/x'],
  ])(
    '%s cannot be stored: the effect is succeeded, and its body says where and why',
    async (_what, value, at) => {
      let runs = 0;
      const answer = await answerTo(() => {
        runs += 1;
        return succeeded({ reference: 'pay_1', value });
      });
      if (answer.kind !== 'succeeded') throw new Error(answer.kind);
      expect(runs).toBe(1);
      expect(answer.reference).toBe('pay_1');
      expect(answer.body.contentType).toBe(UNSTORABLE_CONTENT_TYPE);
      const body = read(answer.body) as { error: string; at: string; message: string };
      expect(body.error).toBe('unstorable_result');
      if (at !== undefined) expect(body.at).toBe(at);
      expect(body.message).toContain(body.at);
    },
  );

  test('six letters that spell an escape stay as they are', async () => {
    const answer = await answerTo(() => ({ s: '\\u0000' }));
    expect(answer.kind === 'succeeded' && read(answer.body)).toEqual({ s: '\\u0000' });
  });

  test('a value above the cap is cut and marked', async () => {
    const answer = await answerTo(() => 'x'.repeat(RESULT_BYTES_MAX + 10));
    if (answer.kind !== 'succeeded') throw new Error(answer.kind);
    expect(answer.body.truncated).toBe(true);
    expect(answer.body.bytes.byteLength).toBe(RESULT_BYTES_MAX);
  });
});

describe('what run is given', () => {
  test('the key, the attempt and the arguments, parsed by zod with defaults filled in', async () => {
    let seen: ToolContext | undefined;
    const tool = defineTool({
      name: 'add',
      description: 'Adds.',
      input: z.strictObject({ a: z.number(), b: z.number().default(2) }),
      effect: { class: 'read' },
      run({ a, b }, context) {
        seen = context;
        return a + b;
      },
    });
    const answer = await tool.call(newCall({ arguments: { a: 1 } }));
    expect(answer.kind === 'succeeded' && read(answer.body)).toBe(3);
    expect(seen).toMatchObject({ idempotencyKey: 'key-0123456789abcdef', attempt: 2, runId: 'run_1' });
    expect(tool.inputSchema).toMatchObject({ type: 'object', required: ['a'] });
  });

  test('nothing, when the arguments do not fit: the tool does not run', async () => {
    let runs = 0;
    const tool = defineTool({
      name: 'count',
      description: 'Counts.',
      input: z.strictObject({ n: z.int() }),
      effect: { class: 'opaque' },
      run: () => (runs += 1),
    });
    const answer = await tool.call(newCall({ arguments: { n: 'ten' } }));
    expect(answer).toEqual({ kind: 'not_sent', reason: 'arguments_invalid' });
    expect(runs).toBe(0);
  });
});

describe('time', () => {
  test('ends a tool that hangs, aborts it, and drops its late answer', async () => {
    let aborted = false;
    const tool = makeTool({
      run: (_args, { signal }) =>
        new Promise((_resolve, reject) => {
          signal.addEventListener('abort', () => {
            aborted = true;
            reject(new Error('late'));
          });
        }),
    });
    expect(await tool.call(newCall({ timeoutMs: 100 }))).toMatchObject({
      kind: 'unknown',
      reason: 'timed_out',
    });
    expect(aborted).toBe(true);
  });

  test('an abort while it runs is unknown; before, the tool does not run', async () => {
    const controller = new AbortController();
    let runs = 0;
    const tool = makeTool({
      run: (_args, { signal }) => {
        runs += 1;
        controller.abort();
        signal.throwIfAborted();
      },
    });
    const call = newCall({ signal: controller.signal });
    expect(await tool.call(call)).toMatchObject({ kind: 'unknown', reason: 'aborted' });
    expect(await tool.call(call)).toEqual({ kind: 'not_sent', reason: 'aborted_before_send' });
    expect(runs).toBe(1);
  });

  test('is not over before the function is: what it says after the abort counts', async () => {
    const controller = new AbortController();
    let stop: (() => void) | undefined;
    const tool = makeTool({
      run: () => {
        controller.abort();
        return new Promise((resolve) => {
          stop = () => resolve(rejected({ status: 'stopped' }));
        });
      },
    });
    let isOver = false;
    const answer = tool.call(newCall({ signal: controller.signal })).finally(() => (isOver = true));
    await until('it runs', () => stop !== undefined);
    expect(isOver).toBe(false);
    stop?.();
    expect(await answer).toMatchObject({ kind: 'rejected', status: 'stopped' });
  });
});

describe('a probe', () => {
  const query = { settlingSeconds: 0, equalAnswers: 1, intervalSeconds: 1, queriesMax: 3 };
  const probed = (probe: NonNullable<Loose['probe']>) =>
    makeTool({ effect: { class: 'queryable', query }, probe });

  test('answers by name; what it throws or leaves open settles nothing', async () => {
    expect(await probed(() => found({ reference: 'r' })).probe?.(newCall())).toMatchObject({ kind: 'found' });
    expect(await probed(() => absent()).probe?.(newCall())).toEqual({ kind: 'absent', body: null });
    const thrown = probed(() => Promise.reject(new Error('down')));
    expect(await thrown.probe?.(newCall())).toMatchObject({ kind: 'inconclusive', reason: 'tool_threw' });
    const unnamed = probed((() => ({ kind: 'found' })) as never);
    expect(await unnamed.probe?.(newCall())).toMatchObject({ kind: 'inconclusive' });
    const hanging = probed(() => new Promise(() => undefined));
    expect(await hanging.probe?.(newCall({ timeoutMs: 50 }))).toMatchObject({ reason: 'timed_out' });
  });
});

describe('a definition', () => {
  const refusal = (changes: Partial<Loose>) => {
    try {
      makeTool(changes);
    } catch (error) {
      if (error instanceof ToolDeclarationError) return error.problems.map(({ path }) => path.join('.'));
      throw error;
    }
    return [];
  };
  const keyed = { windowSeconds: 1, resendsMax: 1, comparesBodies: true, keepsServerErrors: false };

  test.each<[Partial<Loose>, string]>([
    [{ name: 'has space' }, 'name'],
    [{ name: 'x'.repeat(65) }, 'name'],
    [{ description: ' ' }, 'description'],
    [{ timeoutSeconds: 0 }, 'timeoutSeconds'],
    [{ effect: { class: 'keyed' } }, 'effect.class'],
    [{ effect: { class: 'opaque', keyed } }, 'effect.keyed'],
    [{ effect: { class: 'queryable' } }, 'effect.class'],
    [{ probe: () => absent() }, 'effect.probe'],
    [{ effect: { class: 'opaque', colour: 1 } as never }, 'effect.colour'],
    [{ input: { type: 'array' } as never }, 'input'],
  ])('%j is refused at %s', (changes, at) => {
    expect(refusal(changes)).toContain(at);
  });

  test('has a version that changes with what is declared, and with nothing else', () => {
    const { version } = makeTool({});
    expect(version).toMatch(/^[0-9a-f]{64}$/);
    expect(makeTool({ run: () => 1 }).version).toBe(version);
    expect(makeTool({ description: 'Acts otherwise.' }).version).not.toBe(version);
    expect(makeTool({ effect: { class: 'read' } }).version).not.toBe(version);
    expect(isFunctionTool(makeTool({}))).toBe(true);
    expect(isFunctionTool({ name: 'act' })).toBe(false);
  });
});

describe('a catalogue', () => {
  test('gives tools by name, and its version does not depend on their order', () => {
    const [a, b] = [makeTool({ name: 'a' }), makeTool({ name: 'b' })];
    const catalogue = new ToolCatalogue([b, a]);
    expect(catalogue.get('a')).toBe(a);
    expect(catalogue.get('toString')).toBeUndefined();
    expect(catalogue.list()).toEqual([a, b]);
    expect(new ToolCatalogue([a, b]).version).toBe(catalogue.version);
    expect(new ToolCatalogue([a]).version).not.toBe(catalogue.version);
  });

  test('refuses two tools of one name in any order, and a compensation that is none', () => {
    const one = makeTool({ name: 'a' });
    const two = makeTool({ name: 'a', effect: { class: 'read' } });
    expect(() => new ToolCatalogue([one, two])).toThrow(CatalogueError);
    expect(() => new ToolCatalogue([two, one])).toThrow(/two tools are named a/);
    const undone = (compensation: string) =>
      makeTool({ name: 'b', effect: { class: 'opaque', compensation } });
    expect(() => new ToolCatalogue([undone('gone')])).toThrow(/is no tool of the project/);
    expect(() => new ToolCatalogue([undone('b')])).toThrow(/names itself/);
    expect(() => new ToolCatalogue([undone('a'), two])).toThrow(/is a read/);
    const both = new ToolCatalogue([undone('a'), one]);
    expect(manifestOf(both.get('b') ?? one, 'required', both)).toMatchObject({
      name: 'b',
      compensation: { tool: 'a', toolVersion: one.version, arguments: null },
      namespace: 'b',
      keyed: null,
      approval: 'required',
    });
  });
});
